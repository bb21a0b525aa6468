"""Where a rollout holds what was searched for: from match to match, in the order in which its texts are shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...engine.runs.types import Trajectory
from .rollout_fields import fields_at


@dataclass(frozen=True, order=True)
class Match:
    """Characters `start` to `end` of a text: the position of the step, and that of the field in `fields_at`."""

    step: int
    field: int
    start: int
    end: int


def spans(text: str, wanted: Sequence[str]) -> list[tuple[int, int]]:
    """`[start, end)` of all that is wanted in a text, in any case, from left to right."""
    lower = text.lower()
    if len(lower) != len(text):  # a few letters are longer in lower case
        any_case = re.compile("|".join(re.escape(word) for word in wanted if word) or "(?!)", re.IGNORECASE)
        return [found.span() for found in any_case.finditer(text)]
    found = []
    for word in {w.lower() for w in wanted if w}:
        at = lower.find(word)
        while at >= 0:
            found.append((at, at + len(word)))
            at = lower.find(word, at + len(word))
    return sorted(found)


def matches(trajectory: Trajectory, wanted: Sequence[str], step: int) -> list[Match]:
    """The matches of one step, in order."""
    return [
        Match(step, index, start, end)
        for index, field in enumerate(fields_at(trajectory, step))
        for start, end in spans(field.text, wanted)
    ]


def beside(trajectory: Trajectory, wanted: Sequence[str], step: int, match: Match | None, by: int) -> Match | None:
    """The match after (`by` +1) or before (−1) another one of step `step`; with None, also those of the step itself."""
    last = max(0, len(trajectory.steps) - 1)
    for here in range(step, last + 1) if by > 0 else range(step, -1, -1):
        found: Iterator[Match] = iter(matches(trajectory, wanted, here)[:: 1 if by > 0 else -1])
        for other in found:
            if match is None or (other > match if by > 0 else other < match):
                return other
    return None
