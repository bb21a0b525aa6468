"""The parts that all processes of an online run share: starting, ending with their parent, and loading the policy.

No process outlives the one that it works for. The worker ends after the engine is gone. Background validation is a
child of the engine and ends with it: its standard input is a pipe whose other end only the engine holds. In the same
way the engine of a chat with a checkpoint stops with the app that started it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pkgutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ..launch.outcome import FAILED, alert_sender, run_recorded, set_up_logging
from ..launch.settings import read_config
from ..runs.control.requests import ControlChannel
from ..runs.control.status import process_state
from ..runs.durable import Locked, hold
from ..runs.write.writer import RunWriter

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ...configs.schema import RunConfig
    from ..agents.sampling import AgentSettings
    from ..agents.transformers_agent import TransformersAgent

    Life = Callable[[RunConfig, Path, RunWriter, ControlChannel, bool], bool]


def run_process(name: str, life: str | Life, arguments: list[str] | None = None) -> int:
    """Run the process `name` of a run with the arguments RUN_DIR [--resume] [--child]. Returns 0 when it finished or
    was stopped, 1 when it failed.

    A second process of the same name is refused while the first one lives. `life` is `module:function`, imported only
    after the niceness is set and the start is recorded, since imports take seconds. `life(config, run_dir, writer,
    control, resume)` returns whether it finished by itself. With `--child` the process ends when its standard input
    does, even while it imports or loads.
    """
    parser = argparse.ArgumentParser(prog=f"the process {name!r} of an online run")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on where the run was left")
    parser.add_argument("--child", action="store_true", help="end when standard input ends")
    given = parser.parse_args(arguments)
    if given.child:
        end_with_parent()
    set_up_logging()

    with contextlib.ExitStack() as held:
        if not given.child:  # a child whose parent was killed may take a moment to end: nothing of the run is its own
            try:
                held.enter_context(hold(given.run_dir, name))
            except Locked as problem:
                print(f"error: {problem}", file=sys.stderr)
                return FAILED
        writer = RunWriter(given.run_dir, process=name, alerts=alert_sender(given.run_dir))
        control = ControlChannel(given.run_dir, process=name, sigterm=True)

        def work() -> bool:
            config = read_config(given.run_dir)
            if name == "engine" and config.online.requests != "-" and _is_pipe():
                end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))  # a stop, which `control` notes
            if name != "engine":
                with contextlib.suppress(OSError):
                    os.nice(max(0, config.online.worker_nice - os.nice(0)))
            whole: Life = pkgutil.resolve_name(life) if isinstance(life, str) else life
            return whole(config, given.run_dir, writer, control, given.resume)

        return run_recorded(writer, name, work)


def _is_pipe() -> bool:
    """Return whether standard input is a pipe."""
    try:
        return stat.S_ISFIFO(os.fstat(0).st_mode)
    except OSError:  # closed
        return False


def end_with_parent(end: Callable[[], None] = lambda: os._exit(0)) -> None:
    """End this process when its standard input ends. Call it before anything slow.

    The parent holds the only other end of that pipe, so the kernel closes it however the parent dies.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                continue
        end()

    threading.Thread(target=watch, name="parent", daemon=True).start()


class EngineWatch:
    """Detects that the engine is gone, by a look each second."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._looked = time.monotonic()
        self._missed = 0

    def gone(self) -> bool:
        """Return True after two looks in a row found the engine dead, never for a run that has had no engine."""
        if time.monotonic() - self._looked < 1.0:
            return self._missed > 1
        self._looked = time.monotonic()
        state = process_state(self.run_dir, "engine")
        dead = bool(state.get("pid")) and not state["alive"] and not state["launcher_alive"]
        self._missed = self._missed + 1 if dead else 0
        return self._missed > 1


def load_serving_policy(config: RunConfig) -> tuple[PeftModel | PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model that serving starts from, in eval mode with trainable adapters, and its tokenizer.

    Engine and worker load it in the same way, so that a snapshot of one fits the other.
    """
    from ..policy.forward import use_packed_forward
    from ..policy.models import load_policy

    model, tokenizer = load_policy(config.model, adapters=config.model.sft_adapters, trainable=True)
    model = model.eval()
    use_packed_forward(model)
    return model, tokenizer


def serving_agent(
    config: RunConfig, model: PeftModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> TransformersAgent:
    """Return the agent that answers and that validation measures."""
    from ..agents.transformers_agent import TransformersAgent
    from ..policy.models import load_vision

    settings = serving_settings(config)
    return TransformersAgent(
        model,
        tokenizer,
        vision=load_vision(config.model, model, tokenizer),
        temperature=settings.temperature,
        max_turn_tokens=settings.max_turn_tokens,
        max_trajectory_tokens=settings.max_trajectory_tokens,
        template_kwargs=config.model.chat_template_kwargs,
        native_calls=config.model.native_calls,
    )


def serving_settings(config: RunConfig) -> AgentSettings:
    """Return the settings with which answers are written."""
    from ..agents.sampling import AgentSettings

    online = config.online
    return AgentSettings(
        temperature=online.temperature,
        max_turn_tokens=online.max_turn_tokens,
        max_trajectory_tokens=online.max_trajectory_tokens,
    )
