"""Code shared by all processes of an online run: starting, ending with the parent, and loading the policy.

No process outlives the one that it works for. The worker exits after the engine is gone. Background validation is a
child of the engine and exits with it, because its standard input is a pipe whose other end only the engine holds. The
engine of a chat with a checkpoint stops with the app in the same way.
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
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..launch.outcome import FAILED, alert_sender, imports, run_recorded, set_up_logging
from ..launch.settings import read_config
from ..runs.control.requests import ControlChannel
from ..runs.durable import Locked, hold
from ..runs.write.writer import RunWriter

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from ...configs.schema import RunConfig
    from ..agents.transformers_agent import TransformersAgent

    Life = Callable[[RunConfig, Path, RunWriter, ControlChannel, bool], bool]


def run_process(name: str, life: str | Life, arguments: list[str] | None = None) -> int:
    """Run process `name` of a run with the arguments RUN_DIR [--resume] [--child]. Returns the exit code: 0 if it
    finished or was stopped, 1 if it failed.

    Only one process of a name can run at a time. life: `module:function`, imported only after niceness is set and the
    start is recorded, because imports take seconds. `life(config, run_dir, writer, control, resume)` returns whether it
    finished by itself. With `--child`, the process exits when its standard input closes, even while it imports or
    loads.
    """
    parser = argparse.ArgumentParser(prog=f"the process {name!r} of an online run")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", action="store_true", help="resume the run")
    parser.add_argument("--child", action="store_true", help="exit when standard input ends")
    args = parser.parse_args(arguments)
    if args.child:
        end_with_parent()
    set_up_logging()

    with contextlib.ExitStack() as stack:
        if not args.child:  # a child owns nothing of the run, and an old one may still be exiting
            try:
                stack.enter_context(hold(args.run_dir, name))
            except Locked as problem:
                print(f"error: {problem}", file=sys.stderr)
                return FAILED
        writer = RunWriter(args.run_dir, process=name, alerts=alert_sender(args.run_dir))
        control = ControlChannel(args.run_dir, process=name, sigterm=True)

        def work() -> bool:
            config = read_config(args.run_dir)
            with contextlib.suppress(OSError):  # standard input is closed, or the system refuses
                if name == "engine" and config.online.requests != "-" and stat.S_ISFIFO(os.fstat(0).st_mode):
                    end_with_parent(lambda: os.kill(os.getpid(), signal.SIGTERM))  # a stop, which `control` notes
                if name != "engine":
                    os.nice(max(0, config.online.worker_nice - os.nice(0)))
            with imports():
                run: Life = pkgutil.resolve_name(life) if isinstance(life, str) else life
            return run(config, args.run_dir, writer, control, args.resume)

        return run_recorded(writer, name, work)


def end_with_parent(end: Callable[[], None] = lambda: os._exit(0)) -> None:
    """End this process when its standard input closes. Call this before anything slow.

    Only the parent holds the other end of that pipe, so the kernel closes it however the parent dies.
    """

    def watch() -> None:
        with contextlib.suppress(OSError):
            while os.read(0, 1):
                continue
        end()

    threading.Thread(target=watch, name="parent", daemon=True).start()


def load_serving_policy(config: RunConfig) -> tuple[PeftModel | PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model that serving starts from, in eval mode with trainable adapters, and its tokenizer.

    Engine and worker load it identically, so the worker's snapshots fit the engine.
    """
    from ..policy.models import load_policy
    from ..policy.prepared import PreparedModel

    model, tokenizer = load_policy(config.model, adapters=config.model.sft_adapters, trainable=True)
    model = model.eval()
    PreparedModel(model)  # candidates of a request share their prompt: on packed rows it is computed once
    return model, tokenizer


def serving_agent(
    config: RunConfig, model: PeftModel | PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> TransformersAgent:
    """Return the agent that answers requests and that validation measures."""
    from ..agents.transformers_agent import TransformersAgent
    from ..policy.models import load_vision

    return TransformersAgent(
        model,
        tokenizer,
        **serving_settings(config),
        vision=load_vision(config.model, model, tokenizer),
        template_kwargs=config.model.chat_template_kwargs,
        native_calls=config.model.native_calls,
    )


def serving_settings(config: RunConfig) -> dict[str, Any]:
    """Return the fields of `AgentSettings` for answers."""
    return config.online.model_dump(include={"temperature", "max_turn_tokens", "max_trajectory_tokens"})
