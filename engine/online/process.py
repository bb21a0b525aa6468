"""What the processes of an online run have in common: a quiet start, and an end that is told in one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..launch.life import live
from ..launch.process_logging import set_up_logging

if TYPE_CHECKING:
    from ...configs.schema import RunConfig
    from ..runs.control import ControlChannel
    from ..runs.writer import RunWriter

    Life = Callable[[RunConfig, Path, RunWriter, ControlChannel, bool], bool]


def run_process(module: str, life: Life, arguments: list[str] | None = None) -> int:
    """`python -m grpo_tui.engine.online.<module> RUN_DIR [--resume]`: 0 when finished or stopped, 1 when failed.

    `life(config, run_dir, writer, control, resume)` returns whether it finished by itself (else it was stopped).
    """
    parser = argparse.ArgumentParser(prog=f"python -m grpo_tui.engine.online.{module}")
    name = module.rpartition(".")[2]
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on where the run was left")
    given = parser.parse_args(arguments)
    set_up_logging()

    from ..runs.control import ControlChannel
    from ..runs.writer import RunWriter

    writer = RunWriter(given.run_dir, process=name)
    control = ControlChannel(given.run_dir, process=name, sigterm=True)

    def whole_life() -> bool:
        from ..launch.settings import read_config

        return life(read_config(given.run_dir), given.run_dir, writer, control, given.resume)

    return live(writer, name, whole_life)


def load_serving_policy(config: RunConfig) -> tuple[Any, Any]:
    """The model as it starts to serve, in eval mode with its adapters trainable, and its tokenizer.

    The engine and the worker load it alike, so that a snapshot of the one fits the other.
    """
    from ..policy.forward import use_packed_forward
    from ..policy.models import load_policy

    model_config = config.model.model_copy(update={"gradient_checkpointing": False})
    model, tokenizer = load_policy(
        model_config, adapters=config.online.adapters or config.model.sft_adapters, trainable=True
    )
    model = model.eval()
    use_packed_forward(model)
    return model, tokenizer
