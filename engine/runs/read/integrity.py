"""Check whether a record is whole: the numbers that its writers committed, against those in the file."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from ..control.status import number, process_names
from ..durable import read_json
from ..errors import RecordDamaged
from ..paths import DATABASE, PROCESSES
from ..schema import connect_reader

CHECK_SECONDS = 60.0
"""The longest time that checking the pages of a record takes before a run resumes."""
_OPCODES = 20_000


def committed(run_dir: Path) -> int:
    """Return the largest number of trajectories that a process of the run has committed; 0 if none has."""
    said = (read_json(run_dir / PROCESSES / f"{name}.json").get("trajectories") for name in process_names(run_dir))
    return int(max((number(n) or 0 for n in said), default=0))


def missing_trajectories(run_dir: Path, found: int) -> str | None:
    """Return one sentence when fewer trajectories are found than were committed: a log that was lost leaves no other
    trace."""
    written = committed(run_dir)
    if found >= written:
        return None
    return f"{written - found} of {written} trajectories that were recorded are missing from {run_dir / DATABASE}"


def damage(run_dir: Path, seconds: float = CHECK_SECONDS) -> str | None:
    """Return one sentence when the record is not whole: its pages are checked, for some seconds at most."""
    path = run_dir / DATABASE
    if not path.exists():
        return missing_trajectories(run_dir, 0)
    try:
        db = connect_reader(path)
    except RecordDamaged as error:
        return str(error)
    deadline = time.monotonic() + seconds
    db.set_progress_handler(lambda: time.monotonic() > deadline, _OPCODES)
    try:
        (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if answer != "ok":
            return f"{path} is damaged ({answer.splitlines()[-1]})"
        tables = db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'rows'").fetchone()[0]
        return missing_trajectories(
            run_dir, db.execute("SELECT coalesce(max(n), 0) FROM rows").fetchone()[0] if tables else 0
        )
    except sqlite3.Error as error:
        return None if "interrupted" in str(error) else f"{path} is damaged ({error})"
    finally:
        db.close()
