"""The tables that an index adds to those of a record: files, places of rollouts, later values of rollouts."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from typing import Any

from ..runs.errors import RecordVersion
from ..runs.paths import DATABASE
from ..runs.write.store import RecordStore
from .groups import DumpGroups

VERSION = "21"
"""The version of these tables. An index of another version is rebuilt."""
PROBLEMS = 100
"""The maximum number of reported problems. Ten times as many are stored."""

_TABLES = """
CREATE TABLE IF NOT EXISTS sources (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, container TEXT NOT NULL, size INTEGER NOT NULL,
    changed INTEGER NOT NULL, position INTEGER NOT NULL, line INTEGER NOT NULL, tail BLOB, done INTEGER NOT NULL,
    ends INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS places (
    n INTEGER PRIMARY KEY, source INTEGER NOT NULL, at INTEGER NOT NULL, length INTEGER NOT NULL, part INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS amendments (
    id TEXT NOT NULL, source INTEGER NOT NULL, at INTEGER NOT NULL, length INTEGER NOT NULL,
    step INTEGER, reward REAL, advantage REAL, extra TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS amendments_id ON amendments (id);
CREATE TABLE IF NOT EXISTS seen (format TEXT PRIMARY KEY, documents INTEGER NOT NULL, rollouts INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS lacking (
    format TEXT NOT NULL, what TEXT NOT NULL, rollouts INTEGER NOT NULL, PRIMARY KEY (format, what)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS reached (path TEXT PRIMARY KEY, words INTEGER NOT NULL, reached INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS skipped (id INTEGER PRIMARY KEY, path TEXT NOT NULL, line INTEGER, why TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS measured (step INTEGER PRIMARY KEY, rollouts INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS named (id TEXT PRIMARY KEY, source INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logged (name TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_STARTS = {
    "searchable": "0", "searchable_bytes": "0", "measured": "", "means": "{}", "diagnosed": "", "looked_for": "",
    "missing": "[]", "index": VERSION,
}  # fmt: skip
"""The values in `meta` of an empty index."""
_META = "SELECT value FROM meta WHERE key = ?"


class IndexStore:
    """The database of one index. Only one process at a time writes to it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            self.record = RecordStore(folder / DATABASE)
            version = self.record.db.execute(_META, ("index",)).fetchone()
            old = version is not None and version[0] not in (None, VERSION)
            if old:
                self.record.close()
        except sqlite3.OperationalError:
            raise  # a full disk
        except (sqlite3.DatabaseError, RecordVersion):
            old = True
        if old:  # everything in it can be read again from the files
            for end in ("", "-wal", "-shm"):
                (folder / f"{DATABASE}{end}").unlink(missing_ok=True)
            self.record = RecordStore(folder / DATABASE)
        self.db = self.record.db
        self.db.executescript(_TABLES)
        self.db.execute("PRAGMA cache_size = -32768")
        self.db.execute("PRAGMA wal_autocheckpoint = 4000")
        self.groups = DumpGroups(self.db, self.meta("groups"))
        self._first: str | None = None
        self.problems: int = self.one("SELECT count(*) FROM skipped")
        self.look_for_expected()
        if self.meta("index") is None:
            self.forget()

    def one(self, sql: str, *params: object) -> Any:
        row = self.db.execute(sql, params).fetchone()
        return None if row is None else row[0]

    def meta(self, key: str) -> str | None:
        return self.one(_META, key)

    def skip(self, path: str, line: int | None, why: str) -> None:
        self.problems += 1
        if self.problems <= PROBLEMS * 10:
            why = why.encode("utf-8", "replace").decode()
            self.db.execute("INSERT INTO skipped (path, line, why) VALUES (?, ?, ?)", (path, line, why[:500]))

    def unskip(self, path: str) -> None:
        """Forget the problems of a file that will be read again from the start."""
        self.problems -= self.db.execute("DELETE FROM skipped WHERE path = ?", (path,)).rowcount

    def torn(self) -> str | None:
        """Return the first JSON lines file whose last line is incomplete, or None."""
        return self.one(
            "SELECT path FROM sources WHERE done AND container = 'json lines' AND position < size ORDER BY id LIMIT 1"
        )

    def look_for_expected(self) -> None:
        """Note whether some rows come only from the writer's own index. Reset `replaced`: open lists are up to date."""
        self.expecting = bool(self.one("SELECT 1 FROM rows WHERE turns IS NULL LIMIT 1"))
        self.replaced = False

    def scope(self, format_: str) -> str:
        """Return a prefix for the groups of a format. It is empty for the dump's first format."""
        if self._first is None:
            self._first = self.one("SELECT format FROM seen WHERE rollouts ORDER BY rowid LIMIT 1") or format_
        return "" if format_ == self._first else format_

    def forget(self) -> None:
        """Empty the index in one transaction. Open readers start again."""
        with self.record.transaction():
            tables = self.db.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' "
                "AND name NOT LIKE 'search%' AND name <> 'meta'"
            ).fetchall()
            for (table,) in tables:
                self.db.execute(f"DELETE FROM {table}")
            self.db.execute("INSERT INTO search (search) VALUES ('delete-all')")
            for key, value in {**_STARTS, "epoch": str(time.time_ns())}.items():
                self.record.set_meta(key, value)
            self.groups.forget()
            self.record.set_meta("groups", "")
        self.record.forget()
        self._first = None
        self.problems = 0
        self.look_for_expected()
