"""What the processes of an online run have in common: how they start, whom they end with, and what they load.

No process of a run outlives the one it works for. The worker ends when the engine is gone; background validation,
the engine's child, ends with the engine: its standard input is a pipe whose other end only the engine holds.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from ..launch.alerts import alert_sender
from ..launch.outcome import FAILED, run_recorded
from ..launch.process_logging import set_up_logging
from ..launch.settings import read_config
from ..runs.control.lock import Locked, hold
from ..runs.control.requests import ControlChannel
from ..runs.control.status import process_state
from ..runs.write.writer import RunWriter

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ...configs.schema import RunConfig
    from ..agents.settings import AgentSettings
    from ..agents.transformers_agent import TransformersAgent

    Life = Callable[[RunConfig, Path, RunWriter, ControlChannel, bool], bool]


def run_process(
    name: str,
    life: str | Life,
    arguments: list[str] | None = None,
    niceness: Callable[[RunConfig], int] | None = None,
) -> int:
    """The process `name` of a run, called with RUN_DIR [--resume] [--child]: 0 when finished or stopped, 1 when failed.

    A second one beside a living one is refused before it touches anything of the run; children are not counted.

    `life(config, run_dir, writer, control, resume)` returns whether it finished by itself (else it was stopped). Given
    as `module:function` it is imported only once the process has said that it starts: that takes seconds. `niceness`
    is what the process gives way to others by, from before that import on: callers wait for the engine, not for it.

    With `--child` the process ends as soon as its standard input does, also while it still imports or loads.
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
            if niceness is not None:
                with contextlib.suppress(OSError):
                    os.nice(max(0, niceness(config) - os.nice(0)))
            whole = _imported(life) if isinstance(life, str) else life
            return whole(config, given.run_dir, writer, control, given.resume)

        return run_recorded(writer, name, work)


def _imported(path: str) -> Life:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


def end_with_parent() -> None:
    """End this process once its standard input ends, at whatever instant: to be called before anything slow.

    The parent holds the other end of that pipe and nobody else does, so the kernel closes it however the parent dies.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                continue
        os._exit(0)

    threading.Thread(target=watch, name="parent", daemon=True).start()


class EngineWatch:
    """Whether the engine that this process works for is gone. It looks every `every_s` seconds."""

    def __init__(self, run_dir: Path, every_s: float = 1.0) -> None:
        self.run_dir = run_dir
        self.every_s = every_s
        self._looked = time.monotonic()
        self._missed = 0

    def gone(self) -> bool:
        """True after two looks in a row that found it dead; never for a run that has had no engine."""
        if time.monotonic() - self._looked < self.every_s:
            return self._missed > 1
        self._looked = time.monotonic()
        state = process_state(self.run_dir, "engine")
        dead = bool(state.get("pid")) and not state["alive"] and not state["launcher_alive"]
        self._missed = self._missed + 1 if dead else 0
        return self._missed > 1


def load_serving_policy(config: RunConfig) -> tuple[PeftModel | PreTrainedModel, PreTrainedTokenizerBase]:
    """The model as it starts to serve, in eval mode with its adapters trainable, and its tokenizer.

    The engine and the worker load it alike, so that a snapshot of the one fits the other.
    """
    from ..policy.forward import use_packed_forward
    from ..policy.models import load_policy

    adapters = config.online.adapters or config.model.sft_adapters
    model, tokenizer = load_policy(config.model, adapters=adapters, trainable=True)
    model = model.eval()
    use_packed_forward(model)
    return model, tokenizer


def serving_agent(
    config: RunConfig, model: PeftModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> TransformersAgent:
    """The policy as it acts where it answers, and where it is validated: the numbers are of the same agent."""
    from ..agents.transformers_agent import TransformersAgent
    from ..policy.models import load_sight

    settings = serving_settings(config)
    return TransformersAgent(
        model,
        tokenizer,
        sight=load_sight(config.model, model, tokenizer),
        temperature=settings.temperature,
        max_turn_tokens=settings.max_turn_tokens,
        max_trajectory_tokens=settings.max_trajectory_tokens,
        template_kwargs=config.model.chat_template_kwargs,
        native_calls=config.model.native_calls,
    )


def serving_settings(config: RunConfig) -> AgentSettings:
    """How answers are written, whoever writes them."""
    from ..agents.settings import AgentSettings

    online = config.online
    return AgentSettings(
        temperature=online.temperature,
        max_turn_tokens=online.max_turn_tokens,
        max_trajectory_tokens=online.max_trajectory_tokens,
    )
