"""What engine, worker and validation know of the queue between them, whatever keeps it (`opening.open_queue`).

A task is *queued* by an engine, *taken* by the worker, and *settled* once: `applied`, `rejected` (applied and taken
back, too large a move), `stale` (answered by a policy too many versions ago), `refused` (it would do harm; kept aside,
not retried) or `dropped` (the queue was full).

Delivery is at least once: a task that was taken by a worker that died is queued again at the next start. Its effect
is exactly once, because `settle` commits in one transaction which tasks are applied, the name of the state file (model,
EMA, optimiser, beta) that contains exactly those updates, and the journal rows that the logs are made from. A worker
killed before the commit comes back to the state file and to the tasks from before; one killed after it, to both after.

When the queue is full the oldest waiting task goes: the freshest experience is the one nearest to the current policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from ....configs.errors import GrpoTuiError

Outcome = Literal["applied", "rejected", "stale", "refused", "dropped"]

REFUSED_KEPT = 64
"""Refused tasks whose content is kept for looking at."""


class QueueError(GrpoTuiError, RuntimeError):
    """The queue cannot be used now (a full disk, a lock); the message is for a person."""


class QueueDamaged(QueueError):
    """What this process knew of the queue is no longer so: only opening it anew mends that."""


class LeaseHeld(QueueError):
    """Another worker is at work: this one stands by until that one ends."""


class LeaseLost(QueueDamaged):
    """What this worker does may not count any more: another has taken over, or one of its calls was broken off, and
    nobody knows whether it was carried out. It begins again at what is committed."""


@dataclass(frozen=True)
class QueuedTask:
    """A task as it comes out of the queue. `attempts` counts how often it was taken, this time included; `whole` is
    false when its bytes are not those that were put in."""

    id: str
    policy_version: int
    attempts: int
    payload: bytes
    whole: bool = True


@dataclass(frozen=True)
class Settled:
    """What became of one task, and why if it was not applied."""

    id: str
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True)
class JournalRow:
    """One thing that the worker did; `n` grows by at least one a row and is never used twice."""

    n: int
    row: Mapping[str, Any]


class UpdateQueue(Protocol):
    """One process's connection to the queue. Methods may be called from any thread of it.

    Each raises QueueError when it cannot be done now, and has then done nothing; QueueDamaged when the queue has to be
    opened anew, whereupon the worker begins again at what is committed.
    """

    limit: int
    """Tasks that may wait."""
    mended: str | None
    """One sentence when opening the queue found it damaged, with what was saved."""

    # An engine's side.

    def put(self, task_id: str, payload: bytes, policy_version: int) -> list[str] | None:
        """Add a task, durably. Returns the ids of older tasks that had to make room; None if this id was queued
        before."""
        ...

    # The worker's side.

    def lead(self) -> int:
        """Become the one worker, and queue again what a worker that died had taken; returns how many.

        LeaseHeld while another one is at work."""
        ...

    def take(self) -> QueuedTask | None:
        """The oldest waiting task, now taken; None when there is none."""
        ...

    def settle(
        self,
        settled: Sequence[Settled],
        journal: Iterable[Mapping[str, Any]] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> list[JournalRow]:
        """Commit what was done, all or nothing: outcomes, journal rows and facts. Returns the rows, numbered.

        A task that is settled already is left as it is; QueueError then, and nothing is committed.
        """
        ...

    def continue_after(self, n: int) -> None:
        """Number further journal rows above `n`: the logs and the record may know of rows that a lost queue held."""
        ...

    def prune_journal(self, through: int) -> None:
        """Forget journal rows up to and including number `through`: they are in the logs and in the record."""
        ...

    # For everybody.

    def journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Rows above number `after`, oldest first."""
        ...

    def depth(self) -> int:
        """Tasks that wait or are being worked on."""
        ...

    def counts(self) -> dict[str, int]:
        """How many tasks are in each state."""
        ...

    def tasks(self, state: str) -> list[tuple[str, str]]:
        """Ids and reasons of the tasks in a state, in the order of arrival."""
        ...

    def payload(self, task_id: str) -> bytes | None:
        """A task's bytes, while they are kept."""
        ...

    def get(self, key: str, default: Any = None) -> Any:
        """A fact (a JSON value) stored by `set` or `settle`."""
        ...

    def set(self, **meta: Any) -> None:
        """Store facts (JSON values), durably."""
        ...

    def close(self) -> None:
        """Let go of the queue."""
        ...


def full(limit: int) -> str:
    """Why a task was dropped."""
    return f"the queue was full ({limit} tasks)"


def was_settled(settled: Sequence[Settled]) -> QueueError:
    """What `settle` raises for tasks of which one was settled before."""
    return QueueError(f"A task in {[s.id for s in settled]} was settled before; nothing was committed.")
