"""The steps of a rollout, one line each, for the list next to the text, its cursor and its filter."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...engine.runs.types import Step, StepReward, TrajectoryRecord
from .calls import Shown, calls_of, ended, failed, root_of, said, shown, summary

_THOUGHT = re.compile(r"thought\s*>\s*(\d{1,7})")
FILTER_HINT = "words of a call, such as util.py · failed · penalised · thought>500 · empty: all steps"


@dataclass(frozen=True)
class Entry:
    """A step in the list, with its own reward and advantage if it has them."""

    step: Step
    root: str
    reward: StepReward | None = None
    advantage: float | None = None

    @cached_property
    def branches(self) -> Sequence[tuple[bool | None, Shown]]:
        calls = calls_of(self.step)
        if not calls:
            return ((False if self.step.label == "?" else None, Shown(summary(self.step))),)
        return [(ended(call)[0], shown(call, self.root)) for call in calls]

    @property
    def size(self) -> int:
        return len(self.step.text) + len(self.step.thought) + len(self.step.observation)

    @cached_property
    def thought(self) -> int:
        return len(said(self.step)[0]) // 4

    @property
    def rows(self) -> int:
        return max(1, len(calls_of(self.step)))

    @cached_property
    def failed(self) -> bool:
        return failed(self.step)

    @property
    def penalised(self) -> bool:
        return self.reward is not None and bool(self.reward.penalties)


@dataclass
class OutlineOf:
    """The entries of one rollout, and the filter on them. Without a record there are none."""

    record: TrajectoryRecord | None = None
    filter: str = ""
    entries: Sequence[Entry] = field(init=False, default=())

    def __post_init__(self) -> None:
        if self.record is None:
            return
        record, root = self.record, root_of(self.record.trajectory)
        rewards = {s.step: s for s in record.breakdown.steps} if has_step_rewards(record) and record.breakdown else {}
        advantages = record.step_advantages
        self.entries = [
            Entry(step, root, rewards.get(step.index), advantages[index] if index < len(advantages) else None)
            for index, step in enumerate(record.trajectory.steps)
        ]

    @property
    def listed(self) -> Sequence[int]:
        if not self.filter:
            return range(len(self.entries))
        holds = matcher(self.filter)
        return [index for index, entry in enumerate(self.entries) if holds(entry)]

    def beside(self, step: int, by: int, holds: Callable[[Entry], bool]) -> int | None:
        """Return the next or previous matching step, wrapping around the ends."""
        if not self.entries:
            return None
        order = [*range(step + 1, len(self.entries)), *range(step + 1)]
        order = order if by > 0 else [*reversed(order[:-1]), step]
        return next((index for index in order if holds(self.entries[index])), None)

    def same_tool(self, step: int) -> Callable[[Entry], bool]:
        tools = {call.name for call in calls_of(self.entries[step].step)}
        return lambda entry: bool(tools & {call.name for call in calls_of(entry.step)})


def has_step_rewards(record: TrajectoryRecord) -> bool:
    """Return whether steps have rewards. A reward only at the last step belongs to the rollout."""
    return record.breakdown is not None and len(record.breakdown.steps) > 1


def matcher(text: str) -> Callable[[Entry], bool]:
    """Return a predicate for entries that contain all words of a filter."""
    words = _THOUGHT.sub("", text).casefold().split()
    minimum = max((int(n) for n in _THOUGHT.findall(text)), default=-1)
    special = {"failed": lambda e: e.failed, "penalised": lambda e: e.penalised}
    plain = [word for word in words if word not in special]

    def holds(entry: Entry) -> bool:
        if not all(special[word](entry) for word in words if word in special) or entry.thought <= minimum:
            return False
        if not plain:
            return True
        names = " ".join(call.name for call in calls_of(entry.step))
        line = " ".join([names, *(call.line for _, call in entry.branches)]).casefold()
        return all(word in line for word in plain)

    return holds
