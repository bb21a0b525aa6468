"""The rollouts of one step in the form that the checks use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from ...configs.sections.rewards import SHAPED
from ..runs.read.reader import RunReader
from ..runs.search.query import Query
from ..runs.types import ComponentValue, StepReward, TokenArrays, TrajectoryRecord, TrajectoryRow, Use


@dataclass(frozen=True)
class RecordedRollout:
    """One rollout: its row in the list, its record, the updates that used it, and its tokens (None: not kept)."""

    row: TrajectoryRow
    record: TrajectoryRecord
    uses: Sequence[Use]
    tokens: TokenArrays[memoryview] | None

    @property
    def place(self) -> str:
        return f"step {self.row.step}, rollout {self.row.id}"

    @property
    def rewards(self) -> Sequence[StepReward]:
        """The rewards of its steps; empty if they were not recorded."""
        return () if self.record.breakdown is None else self.record.breakdown.steps

    @property
    def components(self) -> list[tuple[str, ComponentValue]]:
        return [pair for step in self.rewards for pair in step.components.items()]

    @property
    def scorable(self) -> bool:
        """Whether the rollout ended without a failure of its environment."""
        return not self.record.trajectory.failed

    @cached_property
    def tokens_by_turn(self) -> list[int]:
        """The number of agent tokens in each turn."""
        if self.tokens is not None:
            agent = [turn for turn, mask in zip(self.tokens.turn, self.tokens.agent_mask, strict=True) if mask]
            return [agent.count(t) for t in range(max(agent, default=-1) + 1)]
        spans = [s.token_span for s in self.record.trajectory.steps]
        repeated = (self.record.trajectory.branch or (0, 0))[1]
        return [(end - start) * (t >= repeated) for t, (start, end) in enumerate(spans) if end > start]

    @property
    def agent_tokens(self) -> int:
        return sum(self.tokens_by_turn)

    @cached_property
    def teacher_lead(self) -> list[float] | None:
        """Return log π_teacher − log π of the agent's tokens [T], 0 elsewhere; None without a teacher or tokens."""
        tokens = self.tokens
        if tokens is None or "teacher" not in tokens.overlays:
            return None
        columns = zip(tokens.overlays["teacher"], tokens.logprobs, tokens.agent_mask, strict=True)
        return [t - p if mask and i else 0.0 for i, (t, p, mask) in enumerate(columns)]

    @cached_property
    def turn_rewards(self) -> list[float]:
        if self.record.breakdown is None:
            return self._by_turn([s.reward or 0.0 for s in self.record.trajectory.steps])
        return self._by_turn([s.total or 0.0 for s in self.rewards])

    @cached_property
    def unshaped_rewards(self) -> list[float]:
        """The reward of each turn from the task and the environment only."""
        if self.record.breakdown is None:
            return self.turn_rewards
        parts = [[v for n, v in s.components.items() if n not in SHAPED] for s in self.rewards]
        return self._by_turn([sum(v.contribution or 0.0 for v in values) for values in parts])

    def _by_turn(self, totals: list[float]) -> list[float]:
        """Return step rewards by turn. Rewards after the last turn with tokens are added to that turn."""
        turns = len(self.tokens_by_turn)
        if not turns:
            return []
        rewards = (totals + [0.0] * turns)[:turns]
        rewards[-1] += sum(totals[turns:])
        return rewards


def steps_of(reader: RunReader) -> Iterator[tuple[int, list[RecordedRollout]]]:
    """Yield the training rollouts of each step in recording order. If the record has no training split, yield all
    rollouts."""
    query = Query(filter="split:train" if reader.rollouts.first("train") is not None else "", sort="step")
    bodies = reader.bodies
    for step, rows in groupby(reader.rollouts.each(query), key=lambda row: row.step):
        items = [
            RecordedRollout(row, bodies.trajectory(row.n), bodies.uses(row.n), bodies.tokens(row.n)) for row in rows
        ]
        yield step or 0, sorted(items, key=lambda item: item.row.n)


def groups_of(items: Sequence[RecordedRollout]) -> list[list[RecordedRollout]]:
    """Group items, in order of first appearance."""
    groups: dict[str, list[RecordedRollout]] = {}
    for item in items:
        groups.setdefault(item.record.trajectory.group, []).append(item)
    return list(groups.values())
