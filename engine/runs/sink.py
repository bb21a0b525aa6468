"""Where the record's thread puts what it is given: transactions, and what to do when a disk says no.

Trouble with the folder (full, read-only, removed, damaged) keeps the items for a later attempt; an item that cannot
be stored at all is left out alone. Either is told once, and counted.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from .codec import encode_json
from .images import encode_image, write_image
from .masking import mask
from .paths import DATABASE
from .position import meta_key
from .store import RecordStore
from .summary import NAMES, Summary

log = logging.getLogger(__name__)

TELL_AGAIN_SECONDS = 60.0
FOLD_SECONDS = 15.0
"""How often the write-ahead log is folded into the database, at most."""
SLOW = "rows came faster than the disk takes them, or could not be stored"
"""Why rows are missing when the folder is in no trouble."""
_BAD_ITEM = (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.ProgrammingError)


class Item(NamedTuple):
    """One thing to record: `kind`, what storing it needs, and about how many bytes it holds in memory."""

    kind: str
    payload: tuple[Any, ...]
    cost: int

    @property
    def rows(self) -> int:
        """How many rows are lost with it."""
        if self.kind == "together":
            return sum(part.rows for part in self.payload[0])
        return len(self.payload[1]) if self.kind == "rows" else 1

    @property
    def parts(self) -> tuple[Item, ...]:
        """What is in it: for `together` its parts and then its positions, else the item itself."""
        if self.kind != "together":
            return (self,)
        return (*self.payload[0], Item("positions", (self.payload[1],), 0))


class Sink:
    """The record's file as its thread sees it. `overflow` tells how many rows found no room in the queue."""

    def __init__(
        self, run_dir: Path, resume_from_step: int | None, overflow: Callable[[], int], tell: Callable[[str], None]
    ) -> None:
        self.run_dir = run_dir
        self.summary = Summary()
        self.step = 0
        """The last step of which something is committed."""
        self.trajectories: int | None = None
        """How many trajectories are committed, those of other processes too; None before the file was open."""
        self.lost = 0
        """Rows that could not be stored for what they are."""
        self.positions: dict[str, int] = {}
        """How far other journals are copied, as committed by this process."""
        self.trouble: str | None = None
        self.attempts = 0
        """Failed attempts since the last success."""
        self._resume = resume_from_step
        self._overflow = overflow
        self._tell = tell
        self._told = 0
        self._told_at: dict[str, float] = {}
        self._reason = SLOW
        self._quiet = False
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
        """Say what was lost, `left` rows that can no longer be written included, and let go of the file."""
        self.lost += left
        if self._lost_since() and self._store is not None and self.trouble is None:
            self._told_at.clear()
            try:
                self._transaction(deque())
            except (sqlite3.Error, OSError) as error:
                log.warning("record: %s", explain(error, self.run_dir))
        self._let_go()

    def _transaction(self, items: deque[Item]) -> None:
        store = self._opened()
        parts = [part for item in items for part in item.parts]
        for item in parts:
            if item.kind == "image":
                self._image(*item.payload)
        step, metrics, refused = self.step, [], 0
        store.begin()
        try:
            news = self._news(store)
            for kind, payload, _ in parts:
                if kind == "metrics":
                    store.add_metrics(*payload)
                    metrics.append(payload)
                    step = max(step, payload[0])
                elif kind == "rows":
                    refused += self._rows(store, *payload)
                    step = max(step, payload[0])
                else:
                    self._other(store, kind, payload)
            count = store.last_n()
            store.commit()
        except BaseException:
            store.rollback()
            raise
        self.step, self.trajectories = step, count
        self._fold(store)
        self.lost += refused
        self._told += refused
        for at, values in metrics:
            self.summary.add(at, values)
        for item in parts:
            if item.kind == "positions":
                self.positions = {**self.positions, **item.payload[0]}
        self._after(news)

    def _fold(self, store: RecordStore) -> None:
        """From time to time, so that what lies in the log alone, and is lost with it, is never old."""
        if time.monotonic() - self._folded >= FOLD_SECONDS:
            self._folded = time.monotonic()
            try:
                store.fold()
            except sqlite3.Error as error:  # what is committed stays committed in the log
                log.debug("the log of the record is folded in later: %s", error)

    def _rows(self, store: RecordStore, step: int, records: list[Any]) -> int:
        refused = store.add_trajectories(step, records)
        for sentence in refused:
            log.warning("record: %s", sentence)
            store.add_event("record", sentence, step, time.time(), b"{}")
        return len(refused)

    def _other(self, store: RecordStore, kind: str, payload: tuple[Any, ...]) -> None:
        if kind == "positions":
            for name, position in payload[0].items():
                store.set_meta(meta_key(name), str(position))
        elif kind == "uses":
            store.add_uses(*payload)
        elif kind == "event":
            event, message, step, when, data = payload
            store.add_event(event, message, step, when, encode_json(mask(data)))
        elif kind == "vocabulary":
            texts, byte_level = payload
            store.add_vocabulary(texts)
            store.set_meta("vocabulary", "byte-level" if byte_level else "text")

    def _image(self, path: str, image: Any) -> None:
        try:
            data = encode_image(path, image)
        except ValueError as error:  # readers say that it is missing
            log.warning("the record leaves out image %s: %s", path, error)
            return
        write_image(self.run_dir / path, data)

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
                removed = store.truncate_after(self._resume)
                log.info("the record goes on after step %d (%d later trajectories removed)", self._resume, removed)
                self._resume = None
            self.step = max(self.step, store.last_step())
            if self._inode is None:
                for step, name, value in store.values_of(NAMES):
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
        """One item that cannot be stored must not hold up the others: from here on one by one, and leave it out."""
        if not self._careful and (len(items) > 1 or items[0].rows > 1):
            self._careful = True
            return
        item = items.popleft()
        if item.kind == "together":
            items.extendleft(reversed(item.parts))
            return
        if item.rows > 1:
            step, records = item.payload
            items.extendleft(Item("rows", (step, [record]), 0) for record in reversed(records))
            return
        self.lost += 1
        log.warning("the record leaves out one item (%s): %s", item.kind, error, exc_info=error)

    def _in_trouble(self, error: Exception) -> None:
        self.attempts += 1
        locked = "locked" in str(error)
        if not locked:
            self._let_go()
        if self.trouble is None and not (locked and self.attempts == 1):
            self.trouble = explain(error, self.run_dir)
            # A disk that is nearly full says no, yes, no, …: that is one trouble, and is told once.
            self._reason = self.trouble
            self._quiet = self._told_lately()
            self._told_at[self.trouble] = time.monotonic()
            if not self._quiet:
                self._tell(f"{self.trouble}; training goes on without its record, which resumes when it can")

    def _lost_since(self) -> int:
        return self.lost + self._overflow() - self._told

    def _told_lately(self) -> bool:
        return time.monotonic() - self._told_at.get(self._reason, -TELL_AGAIN_SECONDS) < TELL_AGAIN_SECONDS

    def _news(self, store: RecordStore) -> tuple[str, int] | None:
        """Add the event that explains a hole in the record, once for a spell of trouble, at most once a minute."""
        lost = self._lost_since()
        loud = self.trouble is not None and not self._quiet
        if not loud and (self._told_lately() or not lost):
            return None
        message = f"{self._reason}: {lost} rows are missing from the record"
        if not lost:
            message = f"{self._reason}, but nothing was lost"
        data = orjson.dumps({"reason": self._reason, "dropped": lost})
        store.add_event("record", message, self.step, time.time(), data)
        return message, lost

    def _after(self, news: tuple[str, int] | None) -> None:
        recovered = self.trouble is not None
        self.trouble, self.attempts = None, 0
        if news is None:
            return
        message, lost = news
        self._told += lost
        self._told_at[self._reason] = time.monotonic()
        self._reason = SLOW
        self._tell(f"the record is written again ({message})" if recovered else message)


def explain(error: BaseException, run_dir: Path) -> str:
    """One sentence for a person about what a disk did."""
    text = str(error).lower()
    if not run_dir.is_dir():
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
