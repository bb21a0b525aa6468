"""A record opened for writing: transactions, trajectories, events.

`writer.py` owns the thread and the queue and handles failures. `row_tables.py` and `metric_tables.py` hold the SQL of
the lists and of the metrics.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from .. import codec
from ..columns import listed
from ..labels import clean
from ..schema import connect_writer
from ..types import TrajectoryRecord
from .metric_tables import MetricTables
from .row_tables import RowTables

log = logging.getLogger(__name__)


class RecordStore:
    """One connection that writes. Not for use by two threads at once. Two processes may each have one.

    Raises RecordDamaged for a record of another version.
    """

    def __init__(self, path: Path) -> None:
        self.db = connect_writer(path)
        self.rows = RowTables(self.db)
        self.metrics = MetricTables(self.db)

    def fold(self, *, whole: bool = False) -> None:
        """Move the write-ahead log into the database. `whole`: move all of it, and empty the log.

        Pages that other connections read at this moment stay in the log. Raises `sqlite3.Error`.
        """
        self.db.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if whole else 'PASSIVE'})").fetchone()

    def close(self) -> None:
        """Fold the log in, so that one file is the whole record, and close."""
        try:
            if not self.db.in_transaction:
                # Do not wait long for a viewer in the middle of a query.
                self.db.execute("PRAGMA busy_timeout = 1000")
                self.fold(whole=True)
        except sqlite3.Error as error:
            log.debug("the write-ahead log of the record stays for the next process: %s", error)
        self.db.close()

    def begin(self) -> None:
        """Start a transaction that sees the commits of other processes."""
        self.db.execute("BEGIN IMMEDIATE")
        self.rows.names.labels.refresh()

    def commit(self) -> None:
        self.db.execute("COMMIT")

    def rollback(self) -> None:
        """Undo everything since `begin`, cached names included."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        self.rows.names.forget()
        self.metrics.forget()

    def add_event(self, kind: str, message: str, step: int, when: float, data: bytes) -> None:
        """Add one event. `data` is JSON."""
        self.db.execute(
            "INSERT INTO events (kind, time, step, message, data) VALUES (?, ?, ?, ?, ?)",
            (clean(kind), when, step, clean(message), data.decode("utf-8", "replace")),
        )

    def add_vocabulary(self, texts: Iterable[str]) -> None:
        """Add the text of every token id, from 0. Only the first call has an effect."""
        if self.db.execute("SELECT 1 FROM vocabulary LIMIT 1").fetchone() is None:
            rows = ((i, clean(text)) for i, text in enumerate(texts))
            self.db.executemany("INSERT INTO vocabulary VALUES (?, ?)", rows)

    def set_meta(self, key: str, value: str) -> None:
        """Set a fact about the record itself."""
        self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def last_n(self) -> int:
        """Return the number of the last trajectory, which is how many there are."""
        return int(self.db.execute("SELECT coalesce(max(n), 0) FROM rows").fetchone()[0])

    def last_step(self) -> int:
        """Return the last recorded step; 0 for none."""
        return int(self.db.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()[0])

    def add_trajectories(self, step: int, records: Sequence[TrajectoryRecord]) -> list[str]:
        """Append the records of one step. Returns one sentence for each that cannot be stored and is left out."""
        refused: list[str] = []
        encoded: list[tuple[TrajectoryRecord, bytes, tuple[str, ...]]] = []
        for record in records:
            try:
                encoded.append((record, codec.encode_body(record), codec.search_text(record)))
            except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
                name = str(getattr(getattr(record, "trajectory", None), "id", "?"))[:80]
                refused.append(f"trajectory {name} cannot be written as JSON: {error}")
        self.metrics.touch(step)
        first = self.rows.add([listed(step, record) for record, _, _ in encoded])
        self.rows.add_search((first + i, text) for i, (_, _, text) in enumerate(encoded))
        start = size = 0
        for i, (_, body, _) in enumerate(encoded):
            size += len(body)
            if i + 1 - start == codec.CHUNK or size >= codec.CHUNK_BYTES or i + 1 == len(encoded):
                part = encoded[start : i + 1]
                arrays = codec.encode_tokens([r.tokens for r, _, _ in part])
                self.put_chunk(first + start, [body for _, body, _ in part], arrays)
                start, size = i + 1, 0
        return refused

    def put_chunk(self, first: int, bodies: Sequence[bytes], arrays: bytes | None) -> None:
        """Store the bodies of consecutive trajectories as one compressed blob."""
        body = codec.compress(b"\n".join(bodies))
        tokens = None if arrays is None else codec.compress(arrays)
        self.db.execute("INSERT INTO chunks VALUES (?, ?, ?, ?)", (first, len(bodies), body, tokens))
