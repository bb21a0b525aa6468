"""The commands' way into the terminal app."""

from __future__ import annotations

from pathlib import Path

from ...engine.runs.types import RunInfo
from ..app.destinations import Destination, Live, Trajectories


def open_run(runs_dir: Path, run: RunInfo, start: Destination | None = None) -> None:
    """Open the app on one run, by default on the dashboard of an active run, the trajectories of an ended one.

    Leaving it leaves the run going and prints how to return.
    """
    from ..app.app import run_app

    run_app(runs_dir, start or (Live if run.active else Trajectories)(Path(run.path)))
    # afterwards, so that nobody waits for Typer before the first paint
    from ...engine.runs.control.status import look
    from .common import say

    after = look(Path(run.path))
    if after.active:
        total = f"/{after.total_steps}" if after.total_steps else ""
        say(f"run {run.id} goes on ({after.status}, step {after.step}{total})")
        say(f"look again: grpo-tui inspect {run.id} · save and stop: grpo-tui stop {run.id}")
