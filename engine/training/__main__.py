"""`python -m grpo_tui.engine.training RUN_DIR [--resume]`: the training process of a run.

Started by the launcher, once or (under `accelerate launch`) once for each process; the first one writes the record.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...configs.errors import GrpoTuiError
from ..launch.outcome import FAILED, imports, run_recorded, set_up_logging

if TYPE_CHECKING:
    from ...configs.schema import RunConfig


def main(arguments: list[str] | None = None) -> int:
    """Run RUN_DIR/config.yaml. Returns 0 if finished or stopped, 1 after one sentence on standard error."""
    parser = argparse.ArgumentParser(prog="python -m grpo_tui.engine.training", description=__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--resume", action="store_true", help="resume from the newest checkpoint")
    args = parser.parse_args(arguments)
    return run(args.run_dir, resume=args.resume)


def run(run_dir: Path, *, resume: bool = False) -> int:
    """Run a training process from start to end (see `main`)."""
    started = time.perf_counter()
    set_up_logging()

    from ..launch.outcome import alert_sender
    from ..launch.settings import read_config, unless_refused
    from ..runs.control.requests import ControlChannel
    from ..runs.durable import Locked, hold
    from ..runs.health.checkpoints import checkpoint_folder
    from ..runs.paths import DATABASE
    from ..runs.write.writer import open_writer
    from .checkpoints import Start, discard, find_start, set_aside

    rank = int(os.environ.get("RANK", "0"))
    main_process = rank == 0
    start, refused = Start(), None
    with contextlib.ExitStack() as stack:
        if main_process:  # before touching any file of the run, which another process may be training
            try:
                stack.enter_context(hold(run_dir, "training"))
            except Locked as problem:
                print(f"error: {problem}", file=sys.stderr)
                return FAILED
        try:
            mode = read_config(run_dir).mode
            start = find_start(run_dir) if resume and mode != "eval" else start
            if main_process:
                discard(checkpoint_folder(run_dir))  # a run that is killed while it saves and resumed at its end
                set_aside(start.damaged)
        except (GrpoTuiError, OSError) as problem:
            refused = problem
        alerts = alert_sender(run_dir) if main_process else None
        writer = open_writer(run_dir, rank=rank, resume_from_step=start.record_from, alerts=alerts)
        control = ControlChannel(run_dir, sigterm=True)

        def work() -> bool | None:
            # `check_one_folder` reports it to all.
            other_folder = not main_process and not (run_dir / DATABASE).exists()
            undoing = unless_refused(run_dir, writer, start.step if refused is None else None)
            with undoing if main_process else contextlib.nullcontext():
                if refused is not None and not other_folder:
                    raise refused
                config = read_config(run_dir)
                with imports():
                    train = _training_of(config)
                logging.getLogger(__name__).info("loaded in %.1f s", time.perf_counter() - started)
                return train(config, run_dir, writer, control, start)

        return run_recorded(writer, "training", work, step=start.step)


def _training_of(config: RunConfig) -> Callable[..., bool | None]:
    """Return the function that runs this mode. Raises if the mode cannot run in several processes."""
    from .processes import check_supported

    check_supported(config.mode)
    if config.mode == "sft":
        from .sft import run_sft as train
    elif config.mode == "eval" and config.evaluation.branch.run:
        from .branch import run_branch as train
    elif config.mode == "eval":
        from .evaluate import run_eval as train
    else:
        from .rft import run_rft as train
    return train


if __name__ == "__main__":
    sys.exit(main())
