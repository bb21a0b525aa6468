"""The uncommitted work of the update worker, and its commit, which is atomic.

A commit writes the state to a new file. Then one transaction of the queue names that file, settles the tasks that are
in it and adds their journal rows. The logs are written from the journal afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...runs.schema import JOURNAL_POSITION, recorded_position
from ..store.opening import RunStore
from ..store.update_log import UpdateLogs
from ..store.update_queue import JournalRow, QueueError, Settled, UpdateQueue
from .policy_update import PolicyUpdater
from .worker_state import prune_states, write_state

JOURNAL_KEPT = 2000
"""Journal rows kept for the engine, which copies them into the run's record."""


@dataclass
class Ledger:
    """`tell` receives messages for the user."""

    updater: PolicyUpdater
    store: RunStore
    queue: UpdateQueue
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self.folder = self.store.folder
        self.logs = UpdateLogs(self.folder.run_dir)
        self.state: str | None = None
        """The name of the committed state."""
        self.candidate: dict[str, Any] | None = self.queue.get("candidate")
        """The offered state with its update and request. It is not pruned."""
        self.changed = False
        """Whether the updater differs from the committed state."""
        self._settled: list[Settled] = []
        self._journal: list[Mapping[str, Any]] = []
        self._unlogged: list[JournalRow] = []
        self._told: set[str] = set()

    @property
    def kept(self) -> str | None:
        return None if self.candidate is None else str(self.candidate["state"])

    @property
    def waiting(self) -> int:
        """Number of tasks processed since the last commit."""
        return len(self._settled)

    def settle(self, settled: Settled, *rows: Mapping[str, Any]) -> None:
        """Record the outcome of a task and its journal rows for the next commit."""
        self._settled.append(settled)
        self.add(*rows)

    def add(self, *rows: Mapping[str, Any]) -> None:
        self._journal += rows

    def commit(self) -> bool:
        """Commit all work since the last commit. Returns False, with a message, when the disk refuses; it can be
        repeated.
        """
        if not self._settled and not self._journal:
            return True
        name = self.state
        try:
            if self.changed:
                name = self.write_state()
            rows = self.queue.settle(
                self._settled,
                self._journal,
                {"state": name, "update": self.updater.update, "beta": self.updater.beta.beta},
            )
        except (OSError, QueueError) as error:
            self.tell_once(f"Updates cannot be committed and wait in memory: {error}")
            return False
        self._told.clear()
        self.state, self.changed = name, False
        self._settled, self._journal = [], []
        self.prune_states()
        self._unlogged += rows
        self._write_logs()
        return True

    def write_state(self) -> str:
        """Write the current state to a new file and return its name. Raises OSError, QueueError."""
        tensors, values = self.updater.state()
        name = write_state(self.folder.state, self.updater.update, tensors, values)
        self.store.put_state(name)
        return name

    def prune_states(self) -> None:
        if self.state is not None:
            prune_states(self.folder.state, self.state, keep=self.kept)
            self.store.prune_states(self.state, self.kept)

    def note(self, *rows: Mapping[str, Any], **meta: Any) -> None:
        """Commit journal rows and facts that belong to no update."""
        try:
            self._unlogged += self.queue.settle([], rows, meta)
        except QueueError as error:
            self.tell_once(str(error))
        self._write_logs()

    def catch_up(self, logged: int) -> None:
        """Write the journal rows after number `logged` to the logs, and number further rows above both."""
        copied = recorded_position(self.folder.run_dir, JOURNAL_POSITION) or 0
        self.queue.continue_after(max(logged, copied))
        self._unlogged = self.queue.journal(limit=1_000_000)
        self._write_logs()

    def _write_logs(self) -> None:
        try:
            self.logs.append(self._unlogged)
        except OSError as error:
            self.tell_once(f"The update logs cannot be written ({error.strerror}). Their lines wait in the queue.")
            return
        if self._unlogged:
            last = self._unlogged[-1].n
            self._unlogged = []
            with contextlib.suppress(QueueError):
                copied = int(self.queue.get("recorded", 0))  # by the engine, into the run's record
                self.queue.prune_journal(min(last, copied) - JOURNAL_KEPT)

    def tell_once(self, message: str) -> None:
        """Report a message once between two commits."""
        if message not in self._told:
            self._told.add(message)
            self.tell(message)
