"""Record when each part of a step starts and ends. Parts may overlap."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Span = tuple[float, float]
"""Start and end in seconds."""
MOST = 64
"""Maximum number of spans per name and step."""


class Stopwatch(contextlib.AbstractContextManager[None]):
    """Measures the `seconds` during which at least one block was open: the sum of `spans` (`time.perf_counter`)."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.spans: list[Span] = []
        self._open = 0
        self._began = 0.0

    def __enter__(self) -> None:
        if self._open == 0:
            self._began = time.perf_counter()
        self._open += 1

    def __exit__(self, *error: object) -> None:
        self._open -= 1
        if self._open == 0:
            ended = time.perf_counter()
            self.seconds += ended - self._began
            self.spans.append((self._began, ended))


@dataclass(frozen=True)
class TrialWatches:
    """The time of a trial during which the agent generates, and during which the environment works."""

    generating: Stopwatch = field(default_factory=Stopwatch)
    environment: Stopwatch = field(default_factory=Stopwatch)

    def timings(self) -> dict[str, object]:
        """Return the `timings` of a `MultiTurnEnv.run_trial` result. Both watches must have stopped."""
        return {
            "generate_s": self.generating.seconds,
            "environment_s": self.environment.seconds,
            "spans": {"generate": self.generating.spans, "environment": self.environment.spans},
        }


class Spans:
    """Spans by name, in seconds of `time.perf_counter`. Any thread may add spans."""

    def __init__(self) -> None:
        self._spans: dict[str, list[Span]] = defaultdict(list)

    def add(self, name: str, began: float, ended: float | None = None) -> None:
        """Add a span. ended: None means now."""
        self._spans[name].append((began, time.perf_counter() if ended is None else ended))

    def extend(self, spans: Mapping[str, Iterable[Span]]) -> None:
        for name, some in spans.items():
            self._spans[name] += some

    def take(self) -> dict[str, list[Span]]:
        """Return and clear the spans by name, in order, with overlaps merged."""
        taken, self._spans = self._spans, defaultdict(list)
        return {name: joined(spans) for name, spans in taken.items()}


def joined(spans: Sequence[Span]) -> list[Span]:
    """Merge overlapping spans, then those with the smallest gaps, until at most `MOST` remain."""
    merged = _merged(sorted(spans), 0.0)
    if len(merged) > MOST:
        gaps = sorted(after[0] - before[1] for before, after in pairwise(merged))
        merged = _merged(merged, gaps[len(merged) - MOST - 1])
    return merged


def _merged(spans: Iterable[Span], gap: float) -> list[Span]:
    """Merge spans, which are in order, if at most `gap` seconds are between them."""
    merged: list[Span] = []
    for start, ended in spans:
        if merged and start - merged[-1][1] <= gap:
            merged[-1] = (merged[-1][0], max(merged[-1][1], ended))
        else:
            merged.append((start, ended))
    return merged
