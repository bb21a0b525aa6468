"""The commands' way into the terminal app."""

from __future__ import annotations

from pathlib import Path

from ...engine.runs.types import RunInfo


def open_list(runs_dir: Path | None) -> None:
    """The list of runs."""
    from ...engine.runs.paths import runs_dir as resolve
    from ..app.app import run_app

    run_app(resolve(runs_dir))


def open_run(runs_dir: Path, run: RunInfo, view: str, trajectory: str | None = None) -> None:
    """The app on one run: `live` or `inspect`. Leaving it leaves the run going, and says how to come back."""
    from ..app.app import run_app

    run_app(runs_dir, Path(run.path), view, trajectory)
    # afterwards, so that nobody waits for Typer before the first paint
    from ...engine.runs.status import look
    from .common import say

    after = look(Path(run.path))
    if after.active:
        total = f"/{after.total_steps}" if after.total_steps else ""
        say(f"run {run.id} goes on ({after.status}, step {after.step}{total})")
        say(f"look again: grpo-tui inspect {run.id} · save and stop: grpo-tui stop {run.id}")
