"""The file of the update queue: locks, and recovery from damage.

SQLite detects a damaged page when it reads it. A damaged file is never written again: it is renamed, and its readable
rows are copied to a new file. A process checks for damage if it is the only one to open the file, or if it runs into
damage. At their next call, other processes notice that the path leads to another file, and open that one.

Every process that has the file open holds a shared `flock` on a second file. Opening and recovery are mutually
exclusive. Locks end with their process.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from ...runs.durable import sync_folder

DAMAGE = re.compile(r"malformed|not a database|no such table|no such column|database disk image|file is encrypted")
"""SQLite's error messages that indicate damage."""
TABLES = ("tasks", "journal", "meta")


def is_alone(lock: IO[str]) -> bool:
    """Lock the queue while it is open, and return whether no other process has it open. Raises OSError.

    lock: the open lock file. If no other process has the queue open, the lock is exclusive, otherwise shared.
    """
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        fcntl.flock(lock, fcntl.LOCK_SH)
        return False


@contextlib.contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Keep other processes from opening or recovering the queue. Raises OSError."""
    with open(path.with_name(f".{path.name}.opening"), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def identity(path: Path) -> tuple[tuple[int, int] | None, ...]:
    """Identify the files of the queue and its write-ahead log. Both must stay the same while they are open."""
    return _inode(path), _inode(Path(f"{path}-wal"))


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def repair(path: Path, schema: str) -> str | None:
    """Replace a damaged queue with a new file of its readable rows. Returns a sentence, None if the queue is intact.

    Call it within `one_at_a_time`. Raises OSError or sqlite3.Error if no new file can be created.
    """
    if not path.exists() or _is_intact(path):
        return None
    aside = path.with_name(f"{path.stem}.damaged-{time.time_ns()}{path.suffix}")
    fresh = path.with_name(f"{path.name}.repaired")
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{end}", f"{aside}{end}")
    fresh.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(fresh, isolation_level=None)) as new:
        new.executescript(schema)
        saved = {table: _copy(aside, new, table) for table in TABLES}
    os.replace(fresh, path)
    sync_folder(path.parent)
    return (
        f"The update queue was damaged: {saved['tasks']} tasks, {saved['journal']} lines of the journal and "
        f"{saved['meta']} facts could be saved into a new one. The damaged file is {aside.name}."
    )


def _is_intact(path: Path) -> bool:
    """Return whether all pages are intact. A file without tables is new or was emptied."""
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=30.0)) as db:
            return db.execute("PRAGMA integrity_check(1)").fetchone() == ("ok",)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and not DAMAGE.search(str(error)):
            raise
        return False


def _copy(damaged: Path, new: sqlite3.Connection, table: str) -> int:
    """Copy a table's readable rows: forwards from the start, and backwards from the end to those after damage."""
    columns = [row[1] for row in new.execute(f"PRAGMA table_info({table})")]
    saved = 0
    for order in ("", "ORDER BY rowid DESC"):
        for row in _rows(damaged, table, order):
            known = {k: v for k, v in row.items() if k in columns}
            marks = ", ".join("?" * len(known))
            with contextlib.suppress(sqlite3.Error):
                added = new.execute(
                    f"INSERT OR IGNORE INTO {table} ({', '.join(known)}) VALUES ({marks})", list(known.values())
                )
                saved += added.rowcount
    return saved


def _rows(damaged: Path, table: str, order: str) -> Iterator[dict[str, object]]:
    with (
        contextlib.suppress(sqlite3.Error, UnicodeDecodeError, MemoryError),  # stop at damage
        contextlib.closing(sqlite3.connect(damaged)) as db,
    ):
        db.text_factory = lambda data: data.decode("utf-8", "replace")
        cursor = db.execute(f"SELECT * FROM {table} {order}")
        names = [column[0] for column in cursor.description]
        for row in cursor:
            yield dict(zip(names, row, strict=True))
