"""Rollouts in flight: which have begun and not ended, since when, and how long the ended ones took.

A writer keeps one `Flights` for each process. Its `state` is part of the process's status file, so viewers see the
rollouts that a training waits for before any rollout of the step is recorded.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN = 20
"""The number of rollouts that are listed one by one: those that have been in flight for longest."""
LAST = 512
"""The number of ended rollouts that durations are computed from."""


@dataclass(frozen=True)
class Flight:
    """One rollout in flight. `began` is in seconds since the epoch."""

    id: str
    what: str
    began: float


@dataclass(frozen=True)
class InFlight:
    """The rollouts in flight as viewers see them: the count, the longest ones first, and seconds of the last ended
    ones."""

    count: int
    longest: Sequence[Flight] = ()
    median: float | None = None
    p95: float | None = None
    ended: int = 0


class Flights:
    """Tracks rollouts. `begin` and `end` may be called from any thread, in any order. An id that began twice counts
    once."""

    def __init__(self) -> None:
        self._now: dict[str, Flight] = {}
        self._took: deque[float] = deque(maxlen=LAST)
        self._ended = 0
        self._lock = threading.Lock()

    def begin(self, id_: str, what: str = "") -> None:
        with self._lock:
            self._now[id_] = Flight(id_[:200], what[:200], time.time())

    def end(self, id_: str) -> None:
        """End a rollout. One that never began is ignored."""
        with self._lock:
            flight = self._now.pop(id_, None)
            if flight is not None:
                self._took.append(max(0.0, time.time() - flight.began))
                self._ended += 1

    def state(self) -> dict[str, Any] | None:
        """Return the part of the status file; None if no rollout ever began."""
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
    """Read the rollouts in flight from the facts of a run; None if there are none, or the file is damaged."""
    said = facts.get("in_flight")
    if not isinstance(said, dict):
        return None
    try:
        longest = tuple(Flight(str(id_), str(what), float(began)) for id_, what, began in said["longest"])
        times = [None if said[k] is None else float(said[k]) for k in ("median", "p95")]
        return InFlight(int(said["count"]), longest, times[0], times[1], int(said["ended"]))
    except (KeyError, TypeError, ValueError):
        return None
