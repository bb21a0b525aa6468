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
    """The app on one run: there, or where it is best looked at now. Leaving it leaves the run going, and says how to
    come back."""
    from ..app.app import run_app

    run_app(runs_dir, start or first_look(run))
    # afterwards, so that nobody waits for Typer before the first paint
    from ...engine.runs.status import look
    from .common import say

    after = look(Path(run.path))
    if after.active:
        total = f"/{after.total_steps}" if after.total_steps else ""
        say(f"run {run.id} goes on ({after.status}, step {after.step}{total})")
        say(f"look again: grpo-tui inspect {run.id} · save and stop: grpo-tui stop {run.id}")


def first_look(run: RunInfo) -> Destination:
    """The dashboard of a run that goes on, the trajectories of one that has ended."""
    return Live(Path(run.path)) if run.active else Trajectories(Path(run.path))
