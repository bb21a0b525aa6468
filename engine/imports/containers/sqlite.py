"""Rows of a SQLite database, opened for reading only."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from ..errors import DumpError
from .base import Container, FoundDocument, cached_by_file

TABLES = ("traces", "metrics", "alerts")
"""The trackio tables that hold documents, in reading order."""
_SPAN = 1 << 40  # offsets: rows of the first table, then of the second


class Sqlite(Container):
    """`.db` of any name."""

    name = "sqlite"

    def detect(self, head: bytes) -> bool:
        return head[:16] == b"SQLite format 3\0"

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        """Yield `{"table": name, "row": {…}}` for each row of a known table."""
        with _connected(path) as db:
            for number, table in enumerate(TABLES):
                if not db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (table,)).fetchone():
                    continue
                start = max(0, after - number * _SPAN)
                rows = db.execute(f"SELECT rowid, * FROM {table} WHERE rowid > ? ORDER BY rowid", (start,))
                names = [column[0] for column in rows.description][1:]
                for rowid, *values in rows:
                    offset = number * _SPAN + rowid
                    document = {"table": table, "row": dict(zip(names, values, strict=True))}
                    yield FoundDocument(offset, 1, rowid, offset, document)

    def read(self, path: Path, offset: int, length: int) -> object:
        return super().read(path, offset - 1, length)


@cached_by_file(maxsize=8)
def runs_of(path: Path) -> tuple[str, ...]:
    """Return the names of the runs in a trackio project."""
    found: set[str] = set()
    for table in TABLES:
        with suppress(DumpError), _connected(path) as db:  # a project may lack a table or a column
            found.update(str(name) for (name,) in db.execute(f"SELECT DISTINCT run_name FROM {table}"))
    return tuple(sorted(found))


@cached_by_file(maxsize=8)
def is_empty(path: Path, table: str) -> bool:
    """Return whether a table has no rows."""
    with suppress(DumpError), _connected(path) as db:
        return db.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() is None
    return True


@contextmanager
def _connected(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a database for reading. Raises DumpError, also for `sqlite3` errors inside the block."""
    # Without a log file nobody is writing a WAL database, and opening it normally would leave two files next to it.
    with path.open("rb") as file:
        idle = file.read(20)[18:] == b"\2\2" and not os.path.exists(f"{path}-wal")
    address = f"file:{quote(str(path.absolute()))}?mode=ro" + "&immutable=1" * idle
    try:
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as db:
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            yield db
    except sqlite3.Error as error:
        raise DumpError(f"{path}: this database cannot be read ({error})") from None
