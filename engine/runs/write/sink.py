"""Commit items to the record's file, and handle a disk that refuses them.

If the folder is in trouble (full, read-only, removed, damaged), items wait for a later attempt. An item that cannot be
stored at all is dropped. Both cases are counted and reported once.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import orjson

from ....configs.errors import count
from ..health.headline import NAMES, Summary
from ..paths import DATABASE
from .items import Entry, Item, MetricsItem, PositionsItem, SavedImage, TrajectoriesItem, Write
from .store import RecordStore
from .truncation import truncate_after

log = logging.getLogger(__name__)

FOLD_SECONDS = 15.0
"""Minimum seconds between checkpoints of the write-ahead log into the database."""
TELL_AGAIN_SECONDS = 60.0
UNSTORABLE = "rows could not be stored"
"""The reason for missing rows if the folder itself is fine."""
_BAD_ITEM = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


class News(NamedTuple):
    """The explanation of a gap in the record: a sentence, the reason, and the number of missing rows."""

    message: str
    reason: str
    lost: int


class WriteTrouble:
    """Tracks and logs trouble with writing. overflow: returns the number of rows that did not fit into the queue."""

    def __init__(self, overflow: Callable[[], int]) -> None:
        self.now: str | None = None
        """The trouble with the folder, in words; None while it accepts writes."""
        self.attempts = 0
        """Failed attempts since the last success."""
        self.lost = 0
        """Rows that could not be stored because of their content."""
        self._overflow = overflow
        self._reported = 0
        self._reported_at: dict[str, float] = {}
        self._reason = UNSTORABLE
        self._quiet = False

    @property
    def sentence(self) -> str:
        return f"{self._reason}; training continues without its record until writing works again"

    def failed(self, reason: str, locked: bool) -> None:
        """Note a failed attempt to write. A lock counts only from the second time on."""
        self.attempts += 1
        if self.now is not None or (locked and self.attempts == 1):
            return
        # A nearly full disk alternates between failure and success. Report that only once.
        self.now = self._reason = reason
        self._quiet = self._reported_lately()
        self._reported_at[reason] = time.monotonic()
        if not self._quiet:
            log.warning("record: %s", self.sentence)

    def news(self) -> News | None:
        """Return the report that is due now, if any: once per period of trouble, at most once a minute."""
        lost = self._unreported()
        due = self.now is not None and not self._quiet
        if not due and (self._reported_lately() or not lost):
            return None
        message = f"{self._reason}: {count(lost, 'row is', 'rows are')} missing from the record"
        if not lost:
            message = f"{self._reason}, but nothing was lost"
        return News(message, self._reason, lost)

    def last_news(self) -> bool:
        """Return whether a final report is still due."""
        if not self._unreported() or self.now is not None:
            return False
        self._reported_at.clear()
        return True

    def refused(self, rows: int) -> None:
        """Count rows that the tables refused. Each has its own event."""
        self.lost += rows
        self._reported += rows

    def written(self, news: News | None) -> None:
        """Note that everything was stored, including the report."""
        recovered = self.now is not None
        self.now, self.attempts = None, 0
        if news is None:
            return
        self._reported += news.lost
        self._reported_at[news.reason] = time.monotonic()
        self._reason = UNSTORABLE
        log.warning("record: %s", f"recording has resumed ({news.message})" if recovered else news.message)

    def _unreported(self) -> int:
        return self.lost + self._overflow() - self._reported

    def _reported_lately(self) -> bool:
        return time.monotonic() - self._reported_at.get(self._reason, -TELL_AGAIN_SECONDS) < TELL_AGAIN_SECONDS


def explain(error: BaseException, run_dir: Path) -> str:
    """Describe a failure of the disk in one sentence."""
    text = str(error).lower()
    if not os.path.isdir(run_dir):
        return f"the run's folder {run_dir} was removed"
    if isinstance(error, FileNotFoundError):
        return f"the record in {run_dir} was removed"
    if "full" in text or getattr(error, "errno", None) in (27, 28, 122):  # EFBIG, ENOSPC, EDQUOT
        return f"the disk of {run_dir} is full"
    if "readonly" in text or "read-only" in text or "permission" in text:
        return f"the record in {run_dir} cannot be written (read-only)"
    if "malformed" in text or "not a database" in text:
        return f"the record in {run_dir} is damaged"
    return f"the record in {run_dir} cannot be written ({error})"


class Sink:
    """The record's file for its thread. `overflow` returns the number of rows that did not fit into the queue."""

    def __init__(self, run_dir: Path, resume_from_step: int | None, overflow: Callable[[], int]) -> None:
        self.run_dir = run_dir
        self.trouble = WriteTrouble(overflow)
        self.summary = Summary()
        self.step = 0
        """The last step with committed data."""
        self.trajectories: int | None = None
        """The number of committed trajectories, including other processes; None before the file is open."""
        self.positions: dict[str, int] = {}
        """The positions up to which other journals are copied, as committed by this process."""
        self._resume = resume_from_step
        self._store: RecordStore | None = None
        self._inode: tuple[int, int] | None = None
        self._one_by_one = False
        self._folded = time.monotonic()
        self._unfolded = False
        """Whether the write-ahead log holds data that the database lacks."""

    @property
    def idle(self) -> bool:
        return self._resume is None

    def write(self, entries: deque[Entry]) -> bool:
        """Store entries and remove them from the queue. Return False if the folder is in trouble: retry later."""
        self._one_by_one = False
        if not entries and self._unfolded and self._store is not None:
            self._fold(self._store)  # also while the run waits, because remote viewers see only the database
        while entries or self._resume is not None:
            part = deque([entries[0]]) if self._one_by_one and entries else entries
            try:
                self._transaction(part)
            except _BAD_ITEM as error:
                self._set_aside(entries, error)
                continue
            except (sqlite3.Error, OSError) as error:
                self._handle_failure(error)
                return False
            except Exception as error:
                if not entries:
                    self._handle_failure(error)
                    return False
                self._set_aside(entries, error)
                continue
            for _ in range(len(part)):
                entries.popleft()
        return True

    def close(self, left: int) -> None:
        """Report losses, including the `left` rows that can no longer be written, and close the file."""
        self.trouble.lost += left
        if self._store is not None and self.trouble.last_news():
            try:
                self._transaction(deque())
            except (sqlite3.Error, OSError) as error:
                log.warning("record: %s", explain(error, self.run_dir))
        self._release()

    def _transaction(self, entries: deque[Entry]) -> None:
        store = self._opened()
        parts = [part for entry in entries for part in entry]
        for part in parts:
            if isinstance(part, SavedImage):
                part.write(self.run_dir)
        with store.transaction():
            news = self.trouble.news()
            if news is not None:  # explain the gap in the record
                data = orjson.dumps({"reason": news.reason, "dropped": news.lost})
                store.add_event("record", news.message, self.step, time.time(), data)
            refused = sum(part.store(store) or 0 for part in parts)
            count = store.last_n()
        self.trajectories = count
        self._fold(store)
        self.trouble.refused(refused)
        for part in parts:
            self._committed(part)
        self.trouble.written(news)

    def _committed(self, part: Item) -> None:
        match part:
            case MetricsItem(step, values):
                self.summary.add(step, values)
                self.step = max(self.step, step)
            case TrajectoriesItem(step):
                self.step = max(self.step, step)
            case PositionsItem(positions):
                self.positions = {**self.positions, **positions}

    def _fold(self, store: RecordStore) -> None:
        """Checkpoint the write-ahead log from time to time, so that a lost log costs little."""
        self._unfolded = True
        if time.monotonic() - self._folded >= FOLD_SECONDS:
            self._folded = time.monotonic()
            try:
                store.fold()
                self._unfolded = False
            except sqlite3.Error as error:  # committed data stays safe in the log
                log.debug("the write-ahead log of the record is merged later: %s", error)

    def _opened(self) -> RecordStore:
        path = self.run_dir / DATABASE
        if self._store is not None:
            found = path.stat()  # FileNotFoundError: SQLite would keep writing into a removed file
            if (found.st_dev, found.st_ino) == self._inode:
                return self._store
            self._release()
        elif self._inode is not None:
            path.stat()  # do not recreate a record that the user removed
        store = RecordStore(path)
        try:
            if self._resume is not None:
                removed = truncate_after(store, self._resume)
                log.info("the record continues after step %d (%d later trajectories removed)", self._resume, removed)
                self._resume = None
            self.step = max(self.step, store.last_step())
            if self._inode is None:
                for step, name, value in store.metrics.values_of(NAMES):
                    self.summary.add(step, {name: value})
            found = path.stat()
        except BaseException:
            store.close()
            raise
        self._store, self._inode = store, (found.st_dev, found.st_ino)
        return store

    def _release(self) -> None:
        if self._store is not None:
            try:
                self._store.close()
            except sqlite3.Error as error:
                log.warning("closing the record: %s", error)
            self._store = None

    def _set_aside(self, entries: deque[Entry], error: Exception) -> None:
        """Drop an item that cannot be stored. First switch to storing items one by one, so that no other is lost."""
        if not self._one_by_one and (len(entries) > 1 or sum(item.rows for item in entries[0]) > 1):
            self._one_by_one = True
            return
        first, *rest = entries.popleft()
        smaller = [first, *rest] if rest else first.pieces(1)
        if len(smaller) > 1:
            entries.extendleft((item,) for item in reversed(smaller))
            return
        self.trouble.lost += 1
        name = first.name if isinstance(first, Write) else type(first).__name__
        log.warning("the record leaves out one item (%s): %s", name, error, exc_info=error)

    def _handle_failure(self, error: Exception) -> None:
        locked = "locked" in str(error)
        if not locked:
            self._release()
        self.trouble.failed(explain(error, self.run_dir), locked)
