"""`python -m grpo_tui.engine.training RUN_DIR [--resume]`: the training process of a run.

Started by the launcher, once or (under `accelerate launch`) once for each process; the first one writes the record.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from pathlib import Path

from ..launch.life import live
from ..launch.process_logging import set_up_logging


def main(arguments: list[str] | None = None) -> int:
    """Run what RUN_DIR/config.yaml says. 0: finished or stopped; 1: failed, with one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m grpo_tui.engine.training", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    given = parser.parse_args(arguments)
    return run(given.run_dir, resume=given.resume)


def run(run_dir: Path, *, resume: bool = False) -> int:
    """The whole life of a training process; see `main`."""
    began = time.perf_counter()
    set_up_logging()

    from ..runs.control import ControlChannel
    from ..runs.writer import NullWriter, RunWriter
    from .checkpoints import checkpoint_folder, latest

    main_process = int(os.environ.get("RANK", "0")) == 0
    start = latest(checkpoint_folder(run_dir)) if resume else None
    writer = (
        RunWriter(run_dir, resume_from_step=(start[0] if start else 0) if resume else None)
        if main_process
        else NullWriter()
    )
    control = ControlChannel(run_dir, sigterm=True)

    def life() -> bool | None:
        from ..launch.settings import read_config

        config = read_config(run_dir)
        if config.mode == "sft":
            from .sft import run_sft as train
        else:
            from .rft import run_rft as train
        logging.getLogger(__name__).info("loaded in %.1f s", time.perf_counter() - began)
        return train(config, run_dir, writer, control, resume)

    return live(writer, "training", life, step=start[0] if start else 0)


if __name__ == "__main__":
    sys.exit(main())
