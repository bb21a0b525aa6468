"""`grpo-tui repair`: what can be read of a damaged record, as a record again."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from .common import RunReference, RunsDir, fail, say
from .runs import find

HELP = "Save what can be read of a run's damaged record into a new one; the damaged file is kept."


def repair(run: RunReference, runs_dir: RunsDir = None) -> None:
    """Put a new record in the place of the damaged one, and say how much is whole."""
    from ...engine.launch.stop import living
    from ...engine.runs.errors import RecordError
    from ...engine.runs.health import damage
    from ...engine.runs.paths import runs_dir as resolve_runs_dir
    from ...engine.runs.repair import repair as repaired

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
