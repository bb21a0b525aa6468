"""Write update tasks to the durable queue on a separate thread, so that serving never waits for a disk."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence

from ..store.sqlite_queue import SqliteQueue
from ..store.update_queue import QueueError, Trouble
from ..store.update_task import UpdateTask

log = logging.getLogger(__name__)

AGAIN_S = 1.0
"""Pause before another attempt after a disk error."""
IN_HAND = 64
"""Maximum number of tasks that wait in memory."""


class Enqueuer:
    """Accepts tasks without blocking. If the disk fails and memory is full, new tasks are dropped and counted in
    `lost`."""

    def __init__(self, updates: SqliteQueue, *, tell: Callable[[str], None] = log.warning) -> None:
        self._updates = updates
        self._trouble = Trouble(tell)
        self._waiting: queue.Queue[tuple[UpdateTask | None, dict[str, object]] | None] = queue.Queue(IN_HAND)
        self.lost = 0
        self.dropped = 0
        """Number of older tasks that the full queue has dropped."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="enqueue", daemon=True)
        self._thread.start()

    def put(self, task: UpdateTask | None, **meta: object) -> None:
        """Add a task, or only facts to store. Never blocks, never raises."""
        try:
            self._waiting.put_nowait((task, meta))
        except queue.Full:
            self.lost += task is not None

    def gone(self, ids: Sequence[str]) -> Mapping[str, str]:
        """Return the reason for each of these tasks that will never be learned from, as known so far."""
        with contextlib.suppress(QueueError):
            return {} if self._waiting.unfinished_tasks else self._updates.gone(ids)
        return {}

    def flush(self) -> None:
        """Wait until all items are stored or lost."""
        self._waiting.join()

    def close(self, timeout: float = 10.0) -> None:
        self._closing.set()
        with contextlib.suppress(queue.Full):
            self._waiting.put(None, timeout=timeout)
        self._thread.join(timeout)

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if not self._stored(*item):
                self.lost += item[0] is not None
            self._waiting.task_done()

    def _stored(self, task: UpdateTask | None, meta: dict[str, object]) -> bool:
        """Store one item, retrying while the disk fails. Returns False if it is lost."""
        while True:
            try:
                if task is not None:
                    self.dropped += len(self._updates.put(task.id, task.to_bytes(), task.policy_version) or ())
                if meta:
                    self._updates.set(**meta)
                self._trouble.ends(f"The update queue can be used again. {self.lost} tasks were lost meanwhile.")
                return True
            except QueueError as error:
                advice = f"Up to {IN_HAND} tasks wait in memory, more are lost."
                self._trouble.begins(f"{error} Serving continues. {advice}")
                if self._closing.wait(AGAIN_S):
                    return False
            except Exception:
                log.exception("a task could not be enqueued")
                return False
