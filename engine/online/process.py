"""What the processes of an online run have in common: a quiet start, and an end that is told in one sentence."""

from __future__ import annotations

import argparse
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..launch.process_logging import set_up_logging

if TYPE_CHECKING:
    from ...configs.schema import RunConfig
    from ..runs.control import ControlChannel
    from ..runs.writer import RunWriter

    Life = Callable[[RunConfig, Path, RunWriter, ControlChannel, bool], bool]

FAILED = 1


def run_process(name: str, life: Life, arguments: list[str] | None = None) -> int:
    """`python -m grpo_tui.engine.online.<name> RUN_DIR [--resume]`: 0 when finished or stopped, 1 when failed.

    `life(config, run_dir, writer, control, resume)` returns whether it finished by itself (else it was stopped).
    """
    parser = argparse.ArgumentParser(prog=f"python -m grpo_tui.engine.online.{name}")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on where the run was left")
    given = parser.parse_args(arguments)
    set_up_logging()

    from ..runs.control import ControlChannel
    from ..runs.writer import RunWriter

    writer = RunWriter(given.run_dir, process=name)
    control = ControlChannel(given.run_dir, process=name, sigterm=True)
    log = logging.getLogger(__name__)
    try:
        writer.status("starting")
        from ..launch.settings import read_config

        finished = life(read_config(given.run_dir), given.run_dir, writer, control, given.resume)
        writer.status("finished" if finished else "stopped", exit_code=0)
        return 0
    except KeyboardInterrupt:
        writer.status("stopped", error="interrupted from the keyboard", exit_code=130)
        return 130
    except BaseException as problem:
        message = one_sentence(problem)
        log.error("%s", traceback.format_exc())
        writer.event("error", message, where=name, traceback=traceback.format_exc())
        writer.status("crashed", error=message, exit_code=FAILED)
        print(f"error: {message}", file=sys.stderr)
        return FAILED
    finally:
        writer.close()


def one_sentence(problem: BaseException) -> str:
    """An error for a person: our own errors are sentences already; others say what kind they are."""
    text = " ".join(str(problem).split())
    if type(problem).__module__.startswith("grpo_tui."):
        return text
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__


def load_serving_policy(config: RunConfig) -> tuple[Any, Any]:
    """The model as it starts to serve, in eval mode with its adapters trainable, and its tokenizer.

    The engine and the worker load it alike, so that a snapshot of the one fits the other.
    """
    from ..training.models import load_policy
    from .forward import use_packed_forward

    model_config = config.model.model_copy(update={"gradient_checkpointing": False})
    model, tokenizer = load_policy(
        model_config, adapters=config.online.adapters or config.model.sft_adapters, trainable=True
    )
    model = model.eval()
    use_packed_forward(model)
    return model, tokenizer
