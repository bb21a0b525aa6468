"""The commands' way into the terminal app."""

from __future__ import annotations

from pathlib import Path

from ...engine.imports.opening import Opened
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


def open_dumped(runs_dir: Path, run: RunInfo, dump: Opened) -> None:
    """The app on a dump; while it is open, a process of its own indexes on behind it and follows what grows."""
    from ..app.app import run_app

    run_app(runs_dir, Trajectories(Path(run.path)), greeting="\n".join(greeting(dump)))


def greeting(dump: Opened) -> list[str]:
    """What is said over the first screen: what was recognised, and what was skipped."""
    from .dumps import told

    return [text for text in told(dump.summary) if not text.startswith("not in ")][:4]


def first_look(run: RunInfo) -> Destination:
    """The dashboard of a run that goes on, the trajectories of one that has ended."""
    return Live(Path(run.path)) if run.active else Trajectories(Path(run.path))
