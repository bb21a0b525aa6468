"""The search matches of a rollout in the order of its texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.runs.types import Trajectory
from .rollout_fields import fields_at
from .text_search import span_after, span_before


@dataclass(frozen=True, order=True)
class Match:
    """Characters `start` to `end` of a text, by step position and field position in `fields_at`."""

    step: int
    field: int
    start: int
    end: int


def beside(trajectory: Trajectory, wanted: Sequence[str], step: int, match: Match | None, by: int) -> Match | None:
    """Return the next (`by` +1) or previous (−1) match around another one, or around `step` itself."""
    last = max(0, len(trajectory.steps) - 1)
    for here in range(step, last + 1) if by > 0 else range(step, -1, -1):
        at = match if match is not None and match.step == here else None
        fields = list(enumerate(fields_at(trajectory, here)))
        for index, field in fields if by > 0 else reversed(fields):
            if at is not None and (index < at.field if by > 0 else index > at.field):
                continue
            inside = at is not None and index == at.field
            if by > 0:
                span = span_after(field.text, wanted, at.end if at is not None and inside else 0)
            else:
                span = span_before(field.text, wanted, at.start if at is not None and inside else len(field.text))
            if span is not None:
                return Match(here, index, *span)
    return None
