"""An engine's side of a shared queue: a queue of its own, and a thread that synchronises both.

The engine only waits for its own disk. Its tasks stay there until the shared queue has them, and the worker's journal
is copied here with its numbers. If the server is unavailable, no answer waits and nothing is lost. The task id
identifies a task that was sent twice.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence

import xxhash

from .redis_queue import RedisQueue
from .sqlite_queue import SqliteQueue
from .update_queue import JournalRow, QueuedTask, QueueError

log = logging.getLogger(__name__)

ROWS = 500
"""Journal rows per copy."""


class Outbox(SqliteQueue):
    """The engine's own queue: unsent tasks, the copied journal, and its facts."""

    elsewhere = 0
    """Tasks in the shared queue at the last synchronisation."""

    def oldest(self) -> QueuedTask | None:
        with self._speaking_plainly():
            row = self._db.execute(
                "SELECT id, policy_version, attempts, payload, checksum FROM tasks WHERE state = 'queued' "
                "ORDER BY seq LIMIT 1"
            ).fetchone()
        if row is None:
            return None
        id_, version, attempts, payload, checksum = row
        return QueuedTask(id_, version, attempts, payload, xxhash.xxh3_128_hexdigest(payload) == checksum)

    def sent(self, task_id: str) -> None:
        """Delete a task that the shared queue has."""
        with self._transaction() as db:
            db.execute("DELETE FROM tasks WHERE id = ?", (task_id,))

    def journal_end(self) -> int | None:
        """Return the number of the newest copied row, None before the first."""
        with self._speaking_plainly():
            row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
            return None if row is None else int(row[0])

    def copied(self, rows: Sequence[JournalRow]) -> None:
        """Insert rows of the shared journal with their numbers."""
        with self._transaction() as db:
            db.executemany(
                "INSERT OR IGNORE INTO journal (n, row) VALUES (?, ?)", [(row.n, json.dumps(row.row)) for row in rows]
            )

    def depth(self) -> int:
        return super().depth() + self.elsewhere


class QueueLink:
    """Synchronises an engine's outbox with the shared queue on its own thread, until `close`.

    start: the last journal row in the engine's record, None for a new one. shown: the engine's own connection, which
    shows the depth of the shared queue. before: called with each task before it is sent.
    """

    def __init__(
        self,
        outbox: Outbox,
        shared: RedisQueue,
        engine: str,
        *,
        poll_s: float,
        start: int | None = None,
        shown: Outbox | None = None,
        before: Callable[[QueuedTask], None] | None = None,
        tell: Callable[[str], None] = log.warning,
    ) -> None:
        self.outbox = outbox
        self.shared = shared
        self.engine = engine
        self._poll_s = poll_s
        self._start = start
        self._shown = shown or outbox
        self._before = before
        self._tell = tell
        self._trouble = False
        self._recorded = -1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="queue-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def step(self) -> None:
        """Send waiting tasks and copy new rows. Raises QueueError; the next call continues."""
        while (task := self.outbox.oldest()) is not None:
            if task.whole:
                if self._before is not None:
                    self._before(task)
                self.shared.put(task.id, task.payload, task.policy_version)
            else:
                self._tell(f"Task {task.id} was damaged on this disk before it could be sent: it is lost.")
            self.outbox.sent(task.id)
        end = self.outbox.journal_end()
        if end is None:  # an engine that joins others: what was learnt before is not part of its record
            end = self.shared.journal_end() if self._start is None else self._start
            self.outbox.continue_after(end)
        while rows := self.shared.journal(after=end, limit=ROWS):
            self.outbox.copied(rows)
            end = rows[-1].n
        self._shown.elsewhere = self.shared.depth()
        recorded = int(self.outbox.get("recorded", 0))
        if recorded != self._recorded:
            self.shared.record(self.engine, recorded)
            self.outbox.prune_journal(recorded)
            self._recorded = recorded

    def close(self) -> None:
        """Synchronise once more if possible, and close both queues."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        self.shared.close()
        self.outbox.close()

    def _run(self) -> None:
        while True:
            ending = self._ended.wait(self._poll_s)
            try:
                self.step()
                if self._trouble:
                    self._trouble = False
                    self._tell("The shared queue can be used again: what waited here was sent.")
            except QueueError as error:
                if not self._trouble:
                    self._trouble = True
                    self._tell(f"{error} Serving continues. Tasks wait on this machine's disk, learning waits.")
            except Exception:
                log.exception("the shared queue could not be kept in step. It is tried again.")
            if ending:
                return
