"""Which rollout is open, and at which of its steps: moving about without knowing how anything is painted."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ...engine.runs.errors import RecordError
from ...engine.runs.types import Event, Step, TrajectoryRecord, TrajectoryRow, Use
from .data import Reads

_KEPT = 12
"""Opened rollouts that are kept, so that going back and forth reads nothing."""


@dataclass(frozen=True)
class Opened:
    """One rollout as it was read: `record` is None where its text cannot be read (`problem` says why).

    group: the rows of its group in order of rollout, itself among them. uses: what updates did with it, in order.
    validations: the last evaluations of the online learner on held-out tasks, oldest first.
    """

    n: int
    record: TrajectoryRecord | None = None
    group: Sequence[TrajectoryRow] = ()
    uses: Sequence[Use] = ()
    validations: Sequence[Event] = ()
    problem: str = ""

    @property
    def row(self) -> TrajectoryRow | None:
        """Its own row."""
        return next((r for r in self.group if r.n == self.n), None)


class RolloutCursor:
    """A rollout and a step of it. Moves return whether they led anywhere."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads
        self.opened = Opened(0)
        self.step = 0
        self._kept: OrderedDict[int, Opened] = OrderedDict()

    @property
    def n(self) -> int:
        """The number of the open rollout; 0 before one was opened."""
        return self.opened.n

    @property
    def record(self) -> TrajectoryRecord | None:
        """The open rollout, where it can be read."""
        return self.opened.record

    @property
    def steps(self) -> Sequence[Step]:
        """Its steps."""
        return self.record.trajectory.steps if self.record is not None else ()

    def open(self, ref: str | int, step: int = 0) -> None:
        """Open a rollout by id or number. What cannot be read is said in `opened.problem`."""
        try:
            n = self.reads.now.bodies.number(ref)
        except (RecordError, LookupError) as error:
            self.opened = Opened(0, problem=_sentence(error, self.reads.now.problems))
            return
        if n in self._kept:
            self._kept.move_to_end(n)
        else:
            self._kept[n] = self._read(n)
            if len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self.opened = self._kept[n]
        self.step = max(0, min(step, len(self.steps) - 1))

    def move(self, by: int) -> bool:
        """`by` steps on or back; the ends hold."""
        return self.go_to(self.step + by)

    def go_to(self, step: int) -> bool:
        """Another step; the ends hold."""
        step = max(0, min(step, len(self.steps) - 1))
        moved, self.step = step != self.step, step
        return moved

    def sibling(self, by: int) -> bool:
        """Another rollout of the group, around its ends, at the same step."""
        numbers = [r.n for r in self.opened.group]
        if self.n not in numbers or len(numbers) < 2:
            return False
        self.open(numbers[(numbers.index(self.n) + by) % len(numbers)], self.step)
        return True

    def next_penalised(self) -> bool:
        """The next penalised step; after the last, the first."""
        breakdown = self.record.breakdown if self.record is not None else None
        hit = {s.step for s in breakdown.steps if s.penalties} if breakdown is not None else set()
        return self._next(lambda step: step.index in hit)

    def find(self, text: str, again: bool = False) -> bool:
        """The first step from here that holds a text, in any case; with `again`, after this one."""
        wanted = text.casefold()
        found = self._next(lambda s: wanted in s.text.casefold() or wanted in s.observation.casefold(), here=not again)
        return bool(wanted) and found

    def _next(self, holds: Callable[[Step], bool], here: bool = False) -> bool:
        """Go to the next step for which something holds, around the end."""
        order = [*range(self.step + (not here), len(self.steps)), *range(self.step + (not here))]
        found = next((i for i in order if i < len(self.steps) and holds(self.steps[i])), None)
        if found is not None:
            self.step = found
        return found is not None

    def _read(self, n: int) -> Opened:
        reader = self.reads.now
        rows = reader.rollouts.rows([n])
        # by the name as the record keeps it: what a model wrote may hold what no database takes
        group = reader.rollouts.group(rows[0].group) if rows else []
        try:
            record = reader.bodies.trajectory(n)
            uses = reader.bodies.uses(n)
        except (RecordError, LookupError) as error:
            return Opened(n, None, group, problem=_sentence(error, reader.problems))
        online = any("update" in use.facts for use in uses)
        evaluations = reader.events(("eval",), limit=500) if online else []
        validations = [e for e in evaluations if e.data.get("split") == "validation"]
        return Opened(n, record, group, uses, validations, "; ".join(reader.problems))


def _sentence(error: Exception, problems: Sequence[str]) -> str:
    text = str(error).strip("'\"")
    return " ".join([text + ("" if text.endswith(".") else "."), *(p for p in problems if p not in text)])
