"""The commands' way into the terminal app."""

from __future__ import annotations

from pathlib import Path

from ...engine.runs.types import RunInfo
from ..app.destinations import Destination, Live, Trajectories


def open_list(runs_dir: Path | None) -> None:
    """The list of runs."""
    from ...engine.runs.paths import runs_dir as resolve
    from ..app.app import run_app

    run_app(resolve(runs_dir))


def open_run(runs_dir: Path, run: RunInfo, start: Destination | None = None) -> None:
    """Open the app on one run, by default where it is best looked at. Leaving it leaves the run going and prints how to
    return."""
    from ..app.app import run_app

    run_app(runs_dir, start or first_look(run))
    # afterwards, so that nobody waits for Typer before the first paint
    from ...engine.runs.control.status import look
    from .common import say

    after = look(Path(run.path))
    if after.active:
        total = f"/{after.total_steps}" if after.total_steps else ""
        say(f"run {run.id} goes on ({after.status}, step {after.step}{total})")
        say(f"look again: grpo-tui inspect {run.id} · save and stop: grpo-tui stop {run.id}")


def first_look(run: RunInfo) -> Destination:
    """Return the dashboard for an active run, the trajectories for an ended one."""
    return Live(Path(run.path)) if run.active else Trajectories(Path(run.path))
