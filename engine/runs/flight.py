"""Rollouts in flight: what was begun and has not ended, for how long, and how long those took that have ended.

A writer keeps one `Flights` a process; its `state` goes into the process's status file, so that a viewer sees what a
training waits for while no rollout of the step is there yet.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN = 20
"""Of those in flight, so many are told one by one: those that have been for longest."""
LAST = 512
"""Ended rollouts over which times are told."""


@dataclass(frozen=True)
class Flight:
    """One rollout in flight; `began` in seconds since the epoch."""

    id: str
    what: str
    began: float


@dataclass(frozen=True)
class InFlight:
    """What a viewer sees: how many, the longest of them first, and seconds that the last ended ones took."""

    count: int
    longest: Sequence[Flight] = ()
    median: float | None = None
    p95: float | None = None
    ended: int = 0


class Flights:
    """Begin and end may be called from any thread, in any order; an id that was begun twice counts once."""

    def __init__(self) -> None:
        self._now: dict[str, Flight] = {}
        self._took: deque[float] = deque(maxlen=LAST)
        self._ended = 0
        self._lock = threading.Lock()

    def begin(self, id_: str, what: str = "") -> None:
        """A rollout was begun."""
        with self._lock:
            self._now[id_] = Flight(id_[:200], what[:200], time.time())

    def end(self, id_: str) -> None:
        """It has ended, however it did; one that was never begun is passed over."""
        with self._lock:
            flight = self._now.pop(id_, None)
            if flight is not None:
                self._took.append(max(0.0, time.time() - flight.began))
                self._ended += 1

    def state(self) -> dict[str, Any] | None:
        """As the status file holds it; None where nothing was ever begun."""
        with self._lock:
            if not self._now and not self._ended:
                return None
            longest = sorted(self._now.values(), key=lambda f: f.began)[:SHOWN]
            took = sorted(self._took)
            return {
                "count": len(self._now),
                "longest": [[f.id, f.what, f.began] for f in longest],
                "median": took[len(took) // 2] if took else None,
                "p95": took[int(0.95 * (len(took) - 1))] if took else None,
                "ended": self._ended,
            }


def in_flight(facts: Mapping[str, Any]) -> InFlight | None:
    """What the facts of a run say; None where its writer says nothing, or nonsense."""
    said = facts.get("in_flight")
    if not isinstance(said, dict):
        return None
    try:
        longest = tuple(Flight(str(id_), str(what), float(began)) for id_, what, began in said["longest"])
        times = [None if said[k] is None else float(said[k]) for k in ("median", "p95")]
        return InFlight(int(said["count"]), longest, times[0], times[1], int(said["ended"]))
    except (KeyError, TypeError, ValueError):
        return None
