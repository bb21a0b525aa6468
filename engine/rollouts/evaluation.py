"""Success on held-out tasks, greedy and at the sampling temperature."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .rollout import Rollout
from .runner import RolloutRunner, Row


@dataclass(frozen=True)
class EvaluationOutcome:
    """Success of one way of choosing tokens: which tasks were answered correctly (None: a graded reward, which has no
    success), the reward of each, and the rollouts of this process."""

    outcomes: list[bool | None]
    rewards: list[float]
    rollouts: list[Rollout]

    @property
    def n(self) -> int:
        return len(self.outcomes)

    @property
    def graded(self) -> bool:
        """Whether there is a reward and no success."""
        return None in self.outcomes

    @property
    def success(self) -> float:
        """The share of correct answers, in [0, 1]."""
        return sum(map(bool, self.outcomes)) / max(self.n, 1)

    @property
    def reward(self) -> float:
        """The mean reward, without shaping."""
        return sum(self.rewards) / max(len(self.rewards), 1)


def evaluate(
    runner: RolloutRunner,
    rows: Sequence[Row],
    *,
    temperature: float,
    seed: int = 0,
    step: int = 0,
    first: int = 0,
    process_index: int = 0,
    num_processes: int = 1,
    gather: Callable[[list[Any]], list[Any]] | None = None,
) -> EvaluationOutcome:
    """Make one rollout of each task at `temperature` (0: greedy), spread over processes.

    Without known correctness, a positive reward of the environment counts as right. `gather(list)` collects over
    processes. `first`: the number of `rows[0]` among all tasks, if they are evaluated in portions. The model must be in
    eval mode.
    """
    local_rows = rows[process_index::num_processes]
    agent = runner.agent
    settings = getattr(agent, "settings", None)
    with settings(temperature=temperature) if settings is not None else contextlib.nullcontext():
        rollouts = (
            runner.run(
                local_rows,
                first=first + process_index,
                every=num_processes,
                seed=seed,
                step=step,
                split="eval",
                num_rollouts=1,
                policy_version=step,
            )
            if local_rows
            else []
        )
    outcomes, rewards = [_right(r) for r in rollouts], [_reward(r) for r in rollouts]
    if gather is not None:
        outcomes, rewards = gather(outcomes), gather(rewards)
    return EvaluationOutcome(outcomes, rewards, rollouts)


def _right(rollout: Rollout) -> bool | None:
    trajectory = rollout.trajectory
    if trajectory is None:
        return rollout.final_reward > 0
    if trajectory.correct is None and trajectory.judged_by:
        return None
    return rollout.final_reward > 0 if trajectory.correct is None else trajectory.correct


def _reward(rollout: Rollout) -> float:
    reward = rollout.trajectory.own_reward if rollout.trajectory is not None else None
    return rollout.final_reward if reward is None else reward
