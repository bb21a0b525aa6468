"""Begin and end of the parts of a step, as they overlap and alternate."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

Span = tuple[float, float]
"""Begin and end in seconds."""
MOST = 64
"""Spans of one name that are kept of a step."""


class Spans:
    """Spans by name, in seconds of `time.perf_counter`. Any thread may add some."""

    def __init__(self) -> None:
        self._spans: dict[str, list[Span]] = defaultdict(list)

    def add(self, name: str, began: float, ended: float | None = None) -> None:
        """Add a span. ended: None for now."""
        self._spans[name].append((began, time.perf_counter() if ended is None else ended))

    def extend(self, spans: Mapping[str, Iterable[Span]]) -> None:
        for name, some in spans.items():
            self._spans[name] += some

    def take(self) -> dict[str, list[Span]]:
        """Return the spans by name in their order, joined where they overlap, and forget them."""
        taken, self._spans = self._spans, defaultdict(list)
        return {name: joined(spans) for name, spans in taken.items()}


def joined(spans: Sequence[Span]) -> list[Span]:
    """Return spans without overlaps, at most `MOST`: those with the smallest pauses between them become one."""
    made: list[Span] = []
    for began, ended in sorted(spans):
        if made and began <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], ended))
        else:
            made.append((began, ended))
    if len(made) <= MOST:
        return made
    pauses = sorted(after[0] - before[1] for before, after in pairwise(made))
    least = pauses[len(made) - MOST - 1]
    kept = made[:1]
    for began, ended in made[1:]:
        if began - kept[-1][1] <= least:
            kept[-1] = (kept[-1][0], ended)
        else:
            kept.append((began, ended))
    return kept
