"""One reading connection: queries with a time limit, stopped from any thread, and errors turned into sentences."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .errors import QueryInterrupted, RecordDamaged
from .labels import clean
from .schema import connect_reader

_OPCODES = 20_000  # between two looks at the clock: well under a millisecond of work


class OutOfTime(Exception):
    """A query ran past its deadline. Callers catch it and answer with the rows they have."""


class Connection:
    """A read-only connection for use by several threads, one at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = connect_reader(path)
        self.lock = threading.RLock()
        self._deadline: float | None = None
        self._stop = False
        self.db.set_progress_handler(self._tick, _OPCODES)

    def close(self) -> None:
        """Stop a query in another thread, and close."""
        self._stop = True
        with self.lock:
            self.db.close()

    @contextmanager
    def limit(self, seconds: float | None) -> Iterator[None]:
        """Let queries inside raise OutOfTime once this much time has passed since entering. The tighter limit holds."""
        with self.lock:  # the deadline must not cut off another thread's query
            before = self._deadline
            if seconds is not None:
                deadline = time.monotonic() + seconds
                self._deadline = deadline if before is None else min(before, deadline)
            try:
                yield
            finally:
                self._deadline = before

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        with self.lock, self._errors():
            return self._execute(sql, params).fetchall()

    def one(self, sql: str, params: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        with self.lock, self._errors():
            return self._execute(sql, params).fetchone()

    def each(self, sql: str, params: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield row after row: the caller keeps the rows before an error."""
        with self.lock, self._errors():
            yield from self._execute(sql, params)

    def _execute(self, sql: str, params: Sequence[Any]) -> sqlite3.Cursor:
        try:
            return self.db.execute(sql, params)
        except UnicodeEncodeError:  # half a surrogate pair: the record holds the text as it could be stored
            return self.db.execute(sql, [clean(p) if isinstance(p, str) else p for p in params])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        self._stop = False
        try:
            yield
        except sqlite3.OperationalError as error:
            if "interrupted" in str(error):
                if self._stop:
                    self._stop = False
                    raise QueryInterrupted("the query was stopped") from None
                raise OutOfTime from None
            if "fts5:" in str(error):
                raise
            raise RecordDamaged(f"{self.path}: this part of the record cannot be read ({error})") from error
        except sqlite3.DatabaseError as error:
            raise RecordDamaged(f"{self.path}: this part of the record cannot be read ({error})") from error

    def _tick(self) -> int:
        return int(self._stop or (self._deadline is not None and time.monotonic() > self._deadline))
