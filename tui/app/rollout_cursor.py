"""The open rollout, its step and its search match. Nothing here paints."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...engine.runs.errors import RecordError
from ...engine.runs.read.reader import RunReader
from ...engine.runs.types import Step, TrajectoryRecord, TrajectoryRow
from ..plain import Whole, read_whole
from .rollout_fields import Key, RolloutTexts
from .text_search import span_after, span_before

_KEPT = 12
"""Opened rollouts that are kept, so that moving back and forth reads nothing."""
_KEPT_SIZE = 20_000_000
"""Characters in all of them. Above this, only the last two are kept."""


@dataclass(frozen=True)
class Match:
    """Characters `start` to `end` of the text `key`, which is shown with a step."""

    step: int
    key: Key
    start: int
    end: int


@dataclass(frozen=True)
class OpenedRollout:
    """One rollout as read, and the rollouts of its group in order, including this one. `whole` is None if its text is
    unreadable, and `problem` gives the reason."""

    n: int
    whole: Whole | None = None
    group: Sequence[TrajectoryRow] = ()
    problem: str = ""

    @property
    def record(self) -> TrajectoryRecord | None:
        return None if self.whole is None else self.whole.record

    @property
    def row(self) -> TrajectoryRow | None:
        return next((r for r in self.group if r.n == self.n), None)


class RolloutCursor:
    """A rollout, a step of it and a search match. Moves return whether the cursor moved."""

    def __init__(self) -> None:
        self.opened = OpenedRollout(0)
        self.step = 0
        self.match: Match | None = None
        self.kept: OrderedDict[int, OpenedRollout] = OrderedDict()

    @property
    def n(self) -> int:
        return self.opened.n

    @property
    def record(self) -> TrajectoryRecord | None:
        return self.opened.record

    @property
    def steps(self) -> Sequence[Step]:
        return self.record.trajectory.steps if self.record is not None else ()

    def keep(self, opened: OpenedRollout) -> None:
        self.kept[opened.n] = opened
        self.kept.move_to_end(opened.n)
        while len(self.kept) > 2 and (len(self.kept) > _KEPT or sum(map(_size, self.kept.values())) > _KEPT_SIZE):
            self.kept.popitem(last=False)

    def open(self, opened: OpenedRollout, step: int = 0) -> None:
        """Move to a rollout. A negative step counts from the end."""
        if opened.n:
            self.keep(opened)
        self.opened, self.match = opened, None
        last = len(self.steps) - 1
        self.step = max(0, min(step if step >= 0 else last + 1 + step, last))

    def go_to(self, step: int) -> bool:
        step = max(0, min(step, len(self.steps) - 1))
        moved, self.step, self.match = step != self.step, step, None
        return moved

    def sibling(self, by: int) -> int | None:
        numbers = [r.n for r in self.opened.group]
        if self.n not in numbers or len(numbers) < 2:
            return None
        return numbers[(numbers.index(self.n) + by) % len(numbers)]

    def find(self, words: Sequence[str], by: int = 1, raw: bool = False, task: bool = False) -> bool:
        """Move to the next (`by` +1) or previous (−1) match in the texts as shown (`RolloutTexts`)."""
        if self.record is None:
            return False
        found = beside(RolloutTexts(self.record.trajectory, raw, task), words, self.step, self.match, by)
        if found is not None:
            self.step, self.match = found.step, found
        return found is not None


def beside(texts: RolloutTexts, words: Sequence[str], step: int, match: Match | None, by: int) -> Match | None:
    """Return the next (`by` +1) or previous (−1) match from a match on, or from `step` on without one."""
    last = max(0, len(texts.trajectory.steps) - 1)
    for position in range(step, last + 1) if by > 0 else range(step, -1, -1):
        fields = texts.shown_with(position)[::by]
        current = match if match is not None and match.step == position else None
        if current is not None:
            fields = fields[[key for key, _ in fields].index(current.key) :]
        for key, field in fields:
            if by > 0:
                span = span_after(field.text, words, current.end if current is not None else 0)
            else:
                span = span_before(field.text, words, current.start if current is not None else len(field.text))
            if span is not None:
                return Match(position, key, *span)
            current = None  # the following texts are searched whole
    return None


def read_opened(reader: RunReader, n: int) -> OpenedRollout:
    """Read a rollout by number. Errors go to its `problem`."""
    try:
        reader.bodies.number(n)
    except LookupError as error:
        return OpenedRollout(0, problem=_sentence(error, reader.problems))
    rows = reader.rollouts.rows([n])
    # look up the group by its recorded name: model text may contain characters that no database accepts
    group = reader.rollouts.group(rows[0].group) if rows else []
    try:
        whole = read_whole(reader, n, lambda _: group)
    except (RecordError, LookupError) as error:
        return OpenedRollout(n, None, group, _sentence(error, reader.problems))
    if any("update" in use.facts for use in whole.uses):
        evaluations = reader.events(("eval",), limit=500)
        whole = replace(whole, validations=[e for e in evaluations if e.data.get("split") == "validation"])
    return OpenedRollout(n, whole, group, "; ".join(reader.problems))


def _size(opened: OpenedRollout) -> int:
    steps = opened.record.trajectory.steps if opened.record is not None else ()
    return sum(len(s.text) + len(s.thought) + len(s.observation) for s in steps)


def _sentence(error: Exception, problems: Sequence[str]) -> str:
    text = str(error).strip("'\"")
    return " ".join([text + ("" if text.endswith(".") else "."), *(p for p in problems if p not in text)])
