"""The interface of the queue between engine, worker and validation (`opening.open_queue`).

An engine *queues* a task, the worker *takes* it, and it is *settled* once: `applied`, `rejected` (reverted, too large a
move), `stale` (from a policy too many versions ago), `refused` (harmful; kept, not retried) or `dropped` (the queue was
full).

Delivery is at least once: a task that a dead worker had taken is queued again. Its effect is exactly once: one
transaction of `settle` commits the outcomes, the name of the state file that contains exactly those updates, and their
journal rows. A worker killed before the commit continues from the previous state, one killed after it from the new
state.

A full queue drops its oldest task, because newer experience is closer to the present policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ....configs.errors import GrpoTuiError

Outcome = Literal["applied", "rejected", "stale", "refused", "dropped"]

QUEUE_LIMIT = 512
"""Tasks that may wait. Beyond it the oldest is dropped."""
REFUSED_KEPT = 64
"""Refused tasks whose content is kept."""


class QueueError(GrpoTuiError, RuntimeError):
    """The queue cannot be used now (a full disk, a lock). The message is for the user."""


class QueueDamaged(QueueError):
    """The connection is invalid. Only a new one helps."""


class LeaseHeld(QueueError):
    """Another worker is active."""


class LeaseLost(QueueDamaged):
    """The worker may have been replaced, or a call was interrupted with an unknown result. It must restart from the
    last commit.
    """


class Trouble:
    """Reports a lasting problem once, and its end."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.lasts = False

    def begins(self, message: str) -> None:
        if not self.lasts:
            self.lasts = True
            self._tell(message)

    def ends(self, message: str) -> None:
        if self.lasts:
            self.lasts = False
            self._tell(message)


@dataclass(frozen=True)
class QueuedTask:
    """A task from the queue. attempts: how often it was taken, including now. whole: whether its bytes match their
    checksum.
    """

    id: str
    policy_version: int
    attempts: int
    payload: bytes
    whole: bool = True


@dataclass(frozen=True)
class Settled:
    """The outcome of one task, and the reason if it was not applied."""

    id: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class JournalRow:
    """One action of the worker. `n` grows and is never reused."""

    n: int
    row: Mapping[str, Any]


class UpdateQueue(Protocol):
    """One process's connection to the queue, usable from any thread.

    A method raises QueueError when it cannot act now, and has then done nothing. It raises QueueDamaged when a new
    connection is needed; the worker then restarts from the last commit.
    """

    limit: int
    """Tasks that may wait."""
    repaired: str | None
    """A sentence when opening found damage."""

    # An engine's side.

    def put(self, task_id: str, payload: bytes, policy_version: int) -> list[str] | None:
        """Add a task durably. Returns the ids of dropped older tasks, None if this id was queued before."""
        ...

    # The worker's side.

    def lead(self) -> int:
        """Become the active worker and queue again the tasks that a dead one had taken. Raises LeaseHeld while another
        is active.
        """
        ...

    def take(self) -> QueuedTask | None:
        """Take the oldest waiting task; None when there is none."""
        ...

    def settle(
        self,
        settled: Sequence[Settled],
        journal: Iterable[Mapping[str, object]] = (),
        meta: Mapping[str, object] | None = None,
    ) -> list[JournalRow]:
        """Commit outcomes, journal rows and facts atomically. Returns the rows with their numbers.

        Raises QueueError, with nothing committed, when a task was settled before.
        """
        ...

    def continue_after(self, n: int) -> None:
        """Number later journal rows above `n`, for a queue that lost rows."""
        ...

    def prune_journal(self, through: int) -> None:
        """Delete journal rows up to number `through`."""
        ...

    # For everybody.

    def journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Return rows above number `after`, oldest first."""
        ...

    def depth(self) -> int:
        """Count the tasks that wait or are taken."""
        ...

    def tasks(self, state: str) -> list[tuple[str, str]]:
        """Return the ids and reasons of the tasks in a state, in the order of arrival."""
        ...

    def payload(self, task_id: str) -> bytes | None:
        """Return a task's bytes while they are kept."""
        ...

    def get(self, key: str, default: object = None) -> Any:
        """Return a fact (a JSON value)."""
        ...

    def set(self, **meta: object) -> None:
        """Store facts durably."""
        ...

    def close(self) -> None: ...


def was_settled(settled: Sequence[Settled]) -> QueueError:
    """Return the error of a commit with a task that was settled before."""
    return QueueError(f"A task in {[s.id for s in settled]} was settled before. Nothing was committed.")
