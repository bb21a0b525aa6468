"""Commit items to the record's file, and handle a disk that refuses them.

Trouble with the folder (full, read-only, removed, damaged) keeps the items for a later attempt. An item that cannot be
stored at all is dropped. Both are reported once, and counted (`trouble.py`).
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import orjson

from ..paths import DATABASE
from .items import Item, Metrics, Positions, SavedImage, Trajectories, Write
from .store import RecordStore
from .summary import NAMES, Summary
from .trouble import News, Trouble, explain
from .truncation import truncate_after

log = logging.getLogger(__name__)

FOLD_SECONDS = 15.0
"""How often the write-ahead log is folded into the database, at most."""
_BAD_ITEM = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


class Sink:
    """The record's file for its thread. `overflow` returns how many rows found no room in the queue."""

    def __init__(
        self, run_dir: Path, resume_from_step: int | None, overflow: Callable[[], int], tell: Callable[[str], None]
    ) -> None:
        self.run_dir = run_dir
        self.trouble = Trouble(overflow, tell)
        self.summary = Summary()
        self.step = 0
        """The last step of which something is committed."""
        self.trajectories: int | None = None
        """The number of committed trajectories, of other processes as well; None before the file was open."""
        self.positions: dict[str, int] = {}
        """How far other journals are copied, as committed by this process."""
        self._resume = resume_from_step
        self._store: RecordStore | None = None
        self._inode: tuple[int, int] | None = None
        self._careful = False
        self._folded = time.monotonic()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do without items."""
        return self._resume is None

    def write(self, items: deque[Item]) -> bool:
        """Store items and take them off the queue given. False: the folder is in trouble, try the rest again later."""
        self._careful = False
        while items or self._resume is not None:
            part = deque([items[0]]) if self._careful and items else items
            try:
                self._transaction(part)
            except _BAD_ITEM as error:
                self._set_aside(items, error)
                continue
            except (sqlite3.Error, OSError) as error:
                self._in_trouble(error)
                return False
            except Exception as error:
                if not items:
                    self._in_trouble(error)
                    return False
                self._set_aside(items, error)
                continue
            for _ in range(len(part)):
                items.popleft()
        return True

    def close(self, left: int) -> None:
        """Report losses, the `left` rows that can no longer be written included, and close the file."""
        self.trouble.lost += left
        if self._store is not None and self.trouble.last_news():
            try:
                self._transaction(deque())
            except (sqlite3.Error, OSError) as error:
                log.warning("record: %s", explain(error, self.run_dir))
        self._let_go()

    def _transaction(self, items: deque[Item]) -> None:
        store = self._opened()
        parts = [part for item in items for part in item.parts]
        for part in parts:
            if isinstance(part, SavedImage):
                part.write(self.run_dir)
        store.begin()
        try:
            news = self._news(store)
            refused = sum(part.store(store) or 0 for part in parts)
            count = store.last_n()
            store.commit()
        except BaseException:
            store.rollback()
            raise
        self.trajectories = count
        self._fold(store)
        self.trouble.refused(refused)
        for part in parts:
            self._committed(part)
        self.trouble.written(news)

    def _committed(self, part: Item) -> None:
        match part:
            case Metrics(step, values):
                self.summary.add(step, values)
                self.step = max(self.step, step)
            case Trajectories(step):
                self.step = max(self.step, step)
            case Positions(positions):
                self.positions = {**self.positions, **positions}

    def _news(self, store: RecordStore) -> News | None:
        """Add the event that explains a hole in the record, where there is one to explain."""
        news = self.trouble.news()
        if news is not None:
            data = orjson.dumps({"reason": news.reason, "dropped": news.lost})
            store.add_event("record", news.message, self.step, time.time(), data)
        return news

    def _fold(self, store: RecordStore) -> None:
        """Fold the write-ahead log in from time to time: a log that is lost must hold little."""
        if time.monotonic() - self._folded >= FOLD_SECONDS:
            self._folded = time.monotonic()
            try:
                store.fold()
            except sqlite3.Error as error:  # what is committed stays committed in the log
                log.debug("the log of the record is folded in later: %s", error)

    def _opened(self) -> RecordStore:
        path = self.run_dir / DATABASE
        if self._store is not None:
            found = path.stat()  # FileNotFoundError: SQLite would go on writing into a removed file
            if (found.st_dev, found.st_ino) == self._inode:
                return self._store
            self._let_go()
        elif self._inode is not None:
            path.stat()  # a record that was removed is not begun again behind the user's back
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

    def _let_go(self) -> None:
        if self._store is not None:
            try:
                self._store.close()
            except sqlite3.Error as error:
                log.warning("closing the record: %s", error)
            self._store = None

    def _set_aside(self, items: deque[Item], error: Exception) -> None:
        """Drop an item that cannot be stored. From here on, items are stored one by one, so it holds up no other."""
        if not self._careful and (len(items) > 1 or items[0].rows > 1):
            self._careful = True
            return
        item = items.popleft()
        if smaller := item.apart():
            items.extendleft(reversed(smaller))
            return
        self.trouble.lost += 1
        name = item.name if isinstance(item, Write) else type(item).__name__
        log.warning("the record leaves out one item (%s): %s", name, error, exc_info=error)

    def _in_trouble(self, error: Exception) -> None:
        locked = "locked" in str(error)
        if not locked:
            self._let_go()
        self.trouble.failed(explain(error, self.run_dir), locked)
