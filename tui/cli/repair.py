"""`grpo-tui repair`: save the readable part of a damaged record as a new record."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from .common import RunReference, RunsDir, fail, say
from .runs import find

HELP = "Save the readable part of a run's damaged record into a new one. The damaged file is kept."


def repair(run: RunReference, runs_dir: RunsDir = None) -> None:
    """Replace a damaged record by a new one, and print how much of it is whole."""
    from ...engine.launch.stop import living
    from ...engine.runs.errors import RecordError
    from ...engine.runs.health.repair import repair as repaired
    from ...engine.runs.paths import runs_dir as resolve_runs_dir
    from ...engine.runs.read.integrity import damage

    info = find(resolve_runs_dir(runs_dir), run)
    path = Path(info.path)
    if info.active or living(path):
        fail(f"run {info.id} is {info.status}: stop it before its record is repaired")
    problem = damage(path)
    say(problem or "the pages of the record are whole; it is written again from its trajectories")
    try:
        done = repaired(path)
    except RecordError as error:
        fail(f"nothing can be saved: {error}; to begin a new record, move that file away and call repair again")
    except (OSError, sqlite3.Error) as error:
        fail(f"the new record cannot be written: {getattr(error, 'strerror', None) or error}")
    lost = done.expected - done.saved
    say(
        f"saved {done.saved:,} of {done.expected:,} trajectories, {done.metrics:,} values of metrics and "
        f"{done.events:,} events" + (f"; {lost:,} trajectories are lost" if lost else "")
    )
    if done.kept is not None:
        say(f"the old record is kept as {done.kept}")
