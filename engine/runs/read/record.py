"""The database of one run, opened for reading, even if it is damaged, being written, or not there yet.

Queries return the readable rows and report the rest in `problems`. All parts of a reader (`metrics.py`, `rollouts.py`,
`bodies.py`, `groups.py`) query through one `Record`.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ..control.status import look, number, process_names
from ..durable import read_json
from ..errors import QueryInterrupted, RecordDamaged
from ..labels import Labels, clean
from ..masking import mask_text
from ..notes import Notes
from ..paths import DATABASE, PROCESSES
from ..remote.address import address_of
from ..schema import connect_reader, other_version, version

_OPCODES = 20_000  # between two clock checks: well under a millisecond of work
CHECK_SECONDS = 60.0
"""The time limit for checking a record's pages before a run resumes."""


def committed(run_dir: Path) -> int:
    """Return the largest number of trajectories that any process of the run has committed; 0 if none has."""
    counts = (read_json(run_dir / PROCESSES / f"{name}.json").get("trajectories") for name in process_names(run_dir))
    return int(max((number(n) or 0 for n in counts), default=0))


def missing_trajectories(place: Path | str, written: int, found: int) -> str | None:
    """Return one sentence if fewer trajectories are found than were committed. A lost write-ahead log leaves no other
    trace."""
    if found >= written:
        return None
    return f"{written - found} of {written} trajectories that were recorded are missing from {place}"


def damage(run_dir: Path, seconds: float = CHECK_SECONDS) -> str | None:
    """Check the record's pages for at most some seconds. Return one sentence if the record is damaged."""
    path, written = run_dir / DATABASE, committed(run_dir)
    if not path.exists():
        return missing_trajectories(path, written, 0)
    deadline = time.monotonic() + seconds
    try:
        with closing(connect_reader(path)) as db:
            db.set_progress_handler(lambda: time.monotonic() > deadline, _OPCODES)
            (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if answer != "ok":
                return f"{path} is damaged ({answer.splitlines()[-1]})"
            last = 0
            if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'rows'").fetchone():
                (last,) = db.execute("SELECT coalesce(max(n), 0) FROM rows").fetchone()
            return missing_trajectories(path, written, last)
    except RecordDamaged as error:
        return str(error)
    except sqlite3.Error as error:
        return None if "interrupted" in str(error) else f"{path} is damaged ({error})"


class OutOfTime(Exception):
    """A query ran past its deadline. Callers catch it and return the rows that they have."""


class Connection:
    """A read-only connection that several threads may use, one at a time."""

    def __init__(self, path: Path) -> None:
        address = address_of(path.parent)
        self.path = path if address is None else mask_text(address)
        self.db = connect_reader(path)
        self.lock = threading.RLock()
        self._deadline: float | None = None
        self._stop = False
        self.db.set_progress_handler(self._tick, _OPCODES)

    def close(self) -> None:
        self._stop = True
        with self.lock:
            self.db.close()

    @contextmanager
    def limit(self, seconds: float | None) -> Iterator[None]:
        """Make queries inside the block raise OutOfTime when its time is up. The tighter of nested limits holds."""
        with self.lock:  # the deadline must not interrupt another thread's query
            before = self._deadline
            if seconds is not None:
                deadline = time.monotonic() + seconds
                self._deadline = deadline if before is None else min(before, deadline)
            try:
                yield
            finally:
                self._deadline = before

    def all(self, sql: str, params: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self.lock, self._errors():
            return self._execute(sql, params).fetchall()

    def one(self, sql: str, params: Sequence[object] = ()) -> tuple[Any, ...] | None:
        with self.lock, self._errors():
            return self._execute(sql, params).fetchone()

    def each(self, sql: str, params: Sequence[object] = ()) -> Iterator[tuple[object, ...]]:
        """Yield rows one by one, so that the caller keeps the rows before an error."""
        with self.lock, self._errors():
            yield from self._execute(sql, params)

    def _execute(self, sql: str, params: Sequence[object]) -> sqlite3.Cursor:
        try:
            return self.db.execute(sql, params)
        except UnicodeEncodeError:  # a lone surrogate: search for the text in its stored form
            return self.db.execute(sql, [clean(p) if isinstance(p, str) else p for p in params])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        self._stop = False
        try:
            yield
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and "interrupted" in str(error):
                if self._stop:
                    self._stop = False
                    raise QueryInterrupted("the query was stopped") from None
                raise OutOfTime from None
            if isinstance(error, sqlite3.OperationalError) and "fts5:" in str(error):
                raise
            raise RecordDamaged(f"{self.path}: this part of the record cannot be read ({error})") from error

    def _tick(self) -> int:
        return int(self._stop or (self._deadline is not None and time.monotonic() > self._deadline))


class Record:
    """The database behind a reader. Opening it reads no rows."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.problems: list[str] = []
        """The unreadable parts of this record, in sentences."""
        self.damages = 0
        """The number of queries so far that hit a damaged part."""
        self.notes = Notes(run_dir)
        """People's notes on the rollouts."""
        self._connection: Connection | None = None
        self._labels: Labels | None = None
        self._open()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def db(self) -> Connection | None:
        """The connection; None while there is no database that can be opened."""
        if self._connection is None and not self.problems:
            self._open()  # the run may have just begun
        return self._connection

    def all(self, sql: str, params: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query. In a damaged file, return the rows before the damage."""
        db = self.db
        rows: list[tuple[object, ...]] = []
        if db is None:
            return rows
        try:
            rows.extend(db.each(sql, params))
        except RecordDamaged as error:
            self.damages += 1
            self.tell(str(error))
        return rows

    def scalar(self, sql: str, params: Sequence[object] = ()) -> Any:
        rows = self.all(sql, params)
        return rows[0][0] if rows else None

    def labels(self) -> Labels | None:
        """Return the names of actions, rules, environments …, including newly recorded ones."""
        db = self.db
        if db is None:
            return None
        if self._labels is None:
            self._labels = Labels(db.db)
        try:
            with db.lock:
                self._labels.refresh()
        except sqlite3.Error as error:
            self.tell(f"{self.run_dir / DATABASE}: names cannot be read ({error})")
        return self._labels

    def extent(self) -> tuple[int, str | None]:
        """Return the number of the last trajectory, and the epoch that the numbers belong to (see
        `truncate_after`)."""
        rows = self.all("SELECT (SELECT max(n) FROM rows), (SELECT value FROM meta WHERE key = 'epoch')")
        return (int(rows[0][0] or 0), rows[0][1]) if rows else (0, None)

    def tell(self, message: str) -> None:
        if message not in self.problems:
            self.problems.append(message)

    def _open(self) -> None:
        path = self.run_dir / DATABASE
        written = committed(self.run_dir)  # read it before counting rows, because an active run writes both
        if not path.exists():
            if lost := missing_trajectories(path, written, 0):
                self.tell(lost)
            return
        try:
            connection = Connection(path)
            problem = other_version(connection.db, path)
            if empty := problem is None and version(connection.db) == 0:
                # Before the writer has created the tables, also in a mirror whose WAL is on another machine.
                waits = connection.path is not path and look(self.run_dir).active
                problem = None if waits else missing_trajectories(path, written, 0)
            if problem is not None:
                self.tell(problem)
            if empty or problem is not None:
                connection.close()
                return
            self._connection = connection
        except (RecordDamaged, sqlite3.Error) as error:
            self.tell(str(error))
            return
        if lost := missing_trajectories(connection.path, written, self.extent()[0]):
            if connection.path is path:
                self.tell(f"{lost}; `grpo-tui repair {look(self.run_dir).reference}` saves the readable part")
            elif not look(self.run_dir).active:  # if active, its newest rows are in the WAL on its machine
                self.tell(lost)
