"""An engine's side of a shared queue: a local queue, and a thread that synchronises it with the shared one.

The engine only waits for its own disk. Its tasks stay there until the shared queue has them, and the worker's journal
is copied here with its row numbers. If the server is unavailable, no answer is delayed and nothing is lost. A task that
is sent twice is recognised by its id.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from ..store.sqlite_queue import SqliteQueue
from ..store.update_queue import JournalRow, QueuedTask, QueueError, Settled, Trouble
from .redis_queue import RedisQueue

log = logging.getLogger(__name__)

ROWS = 500
"""Journal rows per copy."""


class Outbox(SqliteQueue):
    """The engine's local queue: unsent tasks, the copied journal, and facts."""

    elsewhere = 0
    """Number of tasks in the shared queue at the last synchronisation."""

    def journal_end(self) -> int | None:
        """Return the number of the newest copied row, None if there is none."""
        with self._readable_errors():
            row = self._db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
            return None if row is None else int(row[0])

    def copied(self, rows: Sequence[JournalRow]) -> None:
        """Insert rows of the shared journal, keeping their numbers."""
        with self._transaction() as db:
            db.executemany(
                "INSERT OR IGNORE INTO journal (n, row) VALUES (?, ?)", [(row.n, json.dumps(row.row)) for row in rows]
            )

    def depth(self) -> int:
        return super().depth() + self.elsewhere


@dataclass(eq=False)
class QueueLink:
    """Synchronises an engine's outbox with the shared queue on its own thread, until `close`.

    recorded: the last journal row in the engine's record, None for a new record. shown: the engine's own connection,
    which reports the depth of the shared queue. before: called with each task before it is sent.
    """

    outbox: Outbox
    shared: RedisQueue
    engine: str
    _: KW_ONLY
    poll_s: float
    recorded: int | None = None
    shown: Outbox | None = None
    before: Callable[[QueuedTask], None] = lambda task: None
    tell: Callable[[str], None] = log.warning

    def __post_init__(self) -> None:
        self._reported = -1
        """The last recorded row that was reported to the shared queue."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="queue-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def step(self) -> None:
        """Send waiting tasks and copy new rows. Raises QueueError; the next call continues."""
        self.outbox.lead()  # queue again a task that an earlier call took but could not send
        while (task := self.outbox.take()) is not None:
            if task.whole:
                self.before(task)
                self.shared.put(task.id, task.payload, task.policy_version)
            else:
                self.tell(f"Task {task.id} was damaged on this disk before it could be sent: it is lost.")
            self.outbox.settle([Settled(task.id, "applied")])
        end = self.outbox.journal_end()
        if end is None:  # an engine that joins later does not record earlier updates
            end = self.shared.journal_end() if self.recorded is None else self.recorded
            self.outbox.continue_after(end)
        while rows := self.shared.journal(after=end, limit=ROWS):
            self.outbox.copied(rows)
            end = rows[-1].n
        (self.shown or self.outbox).elsewhere = self.shared.depth()
        recorded = int(self.outbox.get("recorded", 0))
        if recorded != self._reported:
            self.shared.record(self.engine, recorded)
            self.outbox.prune_journal(recorded)
            self._reported = recorded

    def close(self) -> None:
        """Synchronise once more if possible, and close both queues."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout=30)
        self.shared.close()
        self.outbox.close()

    def _run(self) -> None:
        trouble, ending = Trouble(self.tell), False
        while not ending:
            ending = self._ended.wait(self.poll_s)
            try:
                self.step()
                trouble.ends("The shared queue can be used again: waiting tasks were sent.")
            except QueueError as error:
                trouble.begins(f"{error} Serving continues. Tasks wait on this machine's disk, learning waits.")
            except Exception:
                log.exception("the shared queue could not be synchronised. Retrying.")
