"""The interface of the queue between engine, worker and validation (`opening.open_queue`).

An engine *queues* a task, the worker *takes* it, and it is *settled* once: `applied`, `rejected` (reverted: it moved
the policy too far), `stale` (from a policy too many versions ago), `refused` (harmful; kept, not retried) or `dropped`
(the queue was full).

A full queue drops its oldest task, because newer experience is closer to the current policy.
`docs/architecture/online.md` lists the guarantees of delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ....configs.errors import GrpoTuiError

Outcome = Literal["applied", "rejected", "stale", "refused", "dropped"]

QUEUE_LIMIT = 512
"""Maximum number of waiting tasks. Beyond it, the oldest is dropped."""
REFUSED_KEPT = 64
"""Number of refused tasks whose content is kept."""


class QueueError(GrpoTuiError, RuntimeError):
    """The queue cannot be used now (a full disk, a lock). The message is for the user."""


class QueueDamaged(QueueError):
    """The connection is invalid. The caller must open a new one."""


class LeaseHeld(QueueError):
    """Another worker is active."""


class LeaseLost(QueueDamaged):
    """The worker may have been replaced, or a call was interrupted with an unknown result. It must restart from the
    last commit.
    """


class Trouble:
    """Reports the beginning and the end of a lasting problem once each."""

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
    """A task from the queue. attempts: how often it was taken, including now. whole: its bytes match their checksum."""

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

    A method that raises QueueError cannot act now and has done nothing. QueueDamaged means that a new connection is
    needed; the worker then restarts from the last commit.
    """

    limit: int
    """Maximum number of waiting tasks."""
    repaired: str | None
    """A sentence if opening found damage."""

    # An engine's side.

    def put(self, task_id: str, payload: bytes, policy_version: int) -> list[str] | None:
        """Add a task durably. Returns the ids of older tasks dropped for it, None if this id was queued before."""
        ...

    # The worker's side.

    def lead(self) -> int:
        """Become the active worker, and queue again the tasks that a dead worker had taken; return their number. Raises
        LeaseHeld while another worker is active.
        """
        ...

    def take(self) -> QueuedTask | None:
        """Take the oldest waiting task; None if there is none."""
        ...

    def settle(
        self,
        settled: Sequence[Settled],
        journal: Iterable[Mapping[str, object]] = (),
        meta: Mapping[str, object] | None = None,
    ) -> list[JournalRow]:
        """Commit outcomes, journal rows and facts atomically. Returns the rows with their numbers.

        Raises QueueError, with nothing committed, if a task was settled before.
        """
        ...

    def continue_after(self, n: int) -> None:
        """Number later journal rows above `n`, for a queue that has lost rows."""
        ...

    def prune_journal(self, through: int) -> None:
        """Delete journal rows up to number `through`."""
        ...

    # Any process.

    def journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Return rows above number `after`, oldest first."""
        ...

    def depth(self) -> int:
        """Return the number of tasks that are waiting or taken."""
        ...

    def tasks(self, state: str) -> list[tuple[str, str]]:
        """Return the ids and reasons of the tasks in a state, in order of arrival."""
        ...

    def payload(self, task_id: str) -> bytes | None:
        """Return a task's bytes; None once they are deleted."""
        ...

    def get(self, key: str, default: object = None) -> Any:
        """Return a fact (a JSON value)."""
        ...

    def set(self, **meta: object) -> None:
        """Store facts durably."""
        ...

    def close(self) -> None: ...


def was_settled(settled: Sequence[Settled]) -> QueueError:
    """Return the error for a commit with a task that was settled before."""
    return QueueError(f"A task in {[s.id for s in settled]} was settled before. Nothing was committed.")
