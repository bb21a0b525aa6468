"""The database of a record: its tables, its version, and how to open it for writing and for reading.

Tables are split by reader. `rows` holds only numbers, so that a filter over a million trajectories scans some tens of
megabytes. `cards` holds the texts that lists show. `chunks` holds whole trajectories, sixteen per compressed blob,
because neighbours in a group share their prompt. `search` is a full-text index without a copy of the text.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import cast
from urllib.parse import quote

from .columns import COLUMNS, INDEXED_LINKS, SCHEMA_VERSION
from .errors import RecordDamaged, RecordVersion
from .paths import DATABASE
from .remote.address import address_of

SPANS = (16, 1024)
"""The widths, in steps, of the spans with recorded means. They are powers of two."""
LAST_STEP = 2**62
"""After the last step of any run."""
SEARCH_COLUMNS = ("prompt", "agent", "observation", "answer", "penalty")

_ROWS = "".join(f", {column.name} {column.sql}" for column in COLUMNS)
_INDEXES = "".join(
    f"CREATE INDEX rows_{name} ON rows ({name});\n"
    for name in (*(column.name for column in COLUMNS if column.sortable), *INDEXED_LINKS)
)
SCHEMA = f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;

-- Names that repeat: actions and penalty rules (with a bit in the masks of `rows`), environments, splits, stop reasons.
CREATE TABLE labels (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, bit INTEGER, UNIQUE (kind, name)
);
CREATE TABLE groups (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE prompts (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, head TEXT NOT NULL);
CREATE TABLE toolsets (id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, env TEXT NOT NULL, tools TEXT NOT NULL);

-- Numbers only (`columns.py`): filters scan this table. `uses`: bits of what updates did with the rollout (see
-- learning.py); NULL: not recorded.
CREATE TABLE rows (n INTEGER PRIMARY KEY{_ROWS});
{_INDEXES}
-- Actions and rules beyond the bits of a mask (see labels.py).
CREATE TABLE overflow (label INTEGER, n INTEGER, PRIMARY KEY (label, n)) WITHOUT ROWID;

CREATE TABLE cards (n INTEGER PRIMARY KEY, id TEXT NOT NULL, actions TEXT NOT NULL, answer TEXT);
CREATE INDEX cards_id ON cards (id);

-- Trajectories first_n, first_n + 1, …: `body` is JSON lines, `tokens` arrays (see codec.py), both zstd.
CREATE TABLE chunks (first_n INTEGER PRIMARY KEY, count INTEGER NOT NULL, body BLOB NOT NULL, tokens BLOB);

CREATE VIRTUAL TABLE search USING fts5 (
    {", ".join(SEARCH_COLUMNS)}, content='', columnsize=0, tokenize="unicode61 remove_diacritics 2"
);

CREATE TABLE steps (step INTEGER PRIMARY KEY, time REAL NOT NULL);
CREATE TABLE metric_names (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
-- Ids only grow, also when a resumed run has removed its last rows: followers ask for what is behind the last id.
CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, name INTEGER NOT NULL, step INTEGER NOT NULL, value REAL);
CREATE INDEX metrics_series ON metrics (name, step, value);

-- Means of spans of steps, kept up while metrics are written: a curve of any length is drawn from some hundred rows.
CREATE TABLE spans (
    name INTEGER NOT NULL, width INTEGER NOT NULL, start INTEGER NOT NULL,
    count INTEGER NOT NULL, total REAL, low REAL, high REAL, last INTEGER NOT NULL,
    PRIMARY KEY (name, width, start)
) WITHOUT ROWID;

CREATE TABLE events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, time REAL NOT NULL, step INTEGER NOT NULL,
    message TEXT NOT NULL, data TEXT NOT NULL
);
CREATE INDEX events_kind ON events (kind);

CREATE TABLE vocabulary (id INTEGER PRIMARY KEY, text TEXT NOT NULL);

-- What updates after its own step did with a rollout; the first is in its row and its body (see learning.py).
-- `mask`: bits as in rows.uses. `data`: JSON.
CREATE TABLE uses (
    n INTEGER NOT NULL, step INTEGER NOT NULL, mask INTEGER NOT NULL, weight REAL, advantage REAL, data TEXT NOT NULL,
    PRIMARY KEY (n, step, mask)
) WITHOUT ROWID;
CREATE INDEX uses_step ON uses (step);

-- Columns of a writer's own (`extra.difficulty`) and, where they are not of this program, reward components
-- (`component.format`), by name: numbers where they are numbers, else text.
CREATE TABLE extras (name INTEGER, n INTEGER, number REAL, text TEXT, PRIMARY KEY (name, n)) WITHOUT ROWID;
"""
AMONG = "IN (SELECT value FROM json_each(?))"
"""A condition on a list of any length, which is one parameter: its JSON."""
TIMELINE = "CREATE TABLE IF NOT EXISTS timeline (step INTEGER PRIMARY KEY, data TEXT NOT NULL)"
"""The time spans of each step's parts, as JSON by name in seconds since the epoch. Older records of the same version
lack this table, and readers do not require it."""


def connect_writer(path: Path) -> sqlite3.Connection:
    """Open or create the database for writing. Raises `sqlite3.Error` if the disk does not allow it."""
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10.0)
    try:
        db.execute("PRAGMA page_size = 8192")
        db.execute("PRAGMA journal_mode = WAL")
        # In WAL mode, NORMAL loses nothing when the process is killed. Only a power cut may lose the last commits.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("PRAGMA cache_size = -16384")
        db.execute("PRAGMA journal_size_limit = 16777216")
        _make_current(db, path)
        return db
    except BaseException:
        db.close()
        raise


def _make_current(db: sqlite3.Connection, path: Path) -> None:
    """Create the tables in a new file. Raises RecordVersion for a file of another version."""
    if version(db) == 0:
        db.execute("BEGIN IMMEDIATE")  # another process of the run may be doing the same
        try:
            if version(db) == 0:
                # `executescript` would end the transaction.
                for statement in (*SCHEMA.split(";\n"), TIMELINE):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
    if (problem := other_version(db, path)) is not None:
        raise RecordVersion(problem)


def other_version(db: sqlite3.Connection, path: Path) -> str | None:
    """Return one sentence if the record has another version; None if this program can read it."""
    found = version(db)
    if found in (0, SCHEMA_VERSION):
        return None
    age = "newer" if found > SCHEMA_VERSION else "older"
    return (
        f"{path} was written by {'a' if age == 'newer' else 'an'} {age} grpo-tui (record version {found}; this one "
        f"reads and writes version {SCHEMA_VERSION}): open it with the version that wrote it"
    )


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open the database read-only, even while it is being written or in a read-only folder.

    The record of a remote run opens through fsspec. Raises RecordDamaged if the file is not a database at all.
    """
    if (address := address_of(path.parent)) is not None:
        from .remote.mirror import connect

        return cast("sqlite3.Connection", connect(address))  # it has the methods that readers use
    location = quote(os.fsencode(path.absolute()))
    problem: Exception | None = None
    # A read-only disk allows no -shm file. Then nobody can write to the record, so open it as immutable.
    for suffix in ("mode=ro", "mode=ro&immutable=1"):
        db = None
        try:
            db = sqlite3.connect(f"file:{location}?{suffix}", uri=True, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA cache_size = -4096")
            db.execute("PRAGMA busy_timeout = 2000")
            db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return db
        except (sqlite3.Error, UnicodeDecodeError) as error:  # UnicodeDecodeError: sqlite3 quotes a damaged schema
            problem = error
            if db is not None:
                db.close()
    if not os.access(path, os.R_OK):
        problem = PermissionError(os.strerror(errno.EACCES))
    raise RecordDamaged(
        f"{path}: this record cannot be opened ({problem}); the run's config, logs and checkpoints are still there"
    )


def version(db: sqlite3.Connection) -> int:
    """Return the schema version of an open database; 0 if it is empty."""
    return int(db.execute("PRAGMA user_version").fetchone()[0])


JOURNAL_POSITION = "journal"
"""Rows of the update worker's journal."""
REQUEST_POSITION = "request"
ROW_POSITION = "row"
"""Answered requests, and consumed rows of their source."""


def meta_key(name: str) -> str:
    """Return the key of a position in the table `meta`."""
    return f"position/{name}"


def recorded_position(run_dir: Path, name: str) -> int | None:
    """Return the last stored position; None if there is none or it cannot be read."""
    try:
        with closing(connect_reader(run_dir / DATABASE)) as db:
            row = db.execute("SELECT value FROM meta WHERE key = ?", (meta_key(name),)).fetchone()
        return None if row is None else int(row[0])
    except (RecordDamaged, sqlite3.Error, ValueError):
        return None
