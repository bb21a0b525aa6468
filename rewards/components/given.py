"""The components that need no computing: what the task, the environment and the rules say."""

from __future__ import annotations

import torch

from ...configs.sections.rewards import RewardsConfig
from .base import RewardComponent, RewardInputs, Values


class TaskReward(RewardComponent):
    """Correctness, on the last step. Without a known answer: the environment's own total, unless `environment` carries
    that already."""

    def __init__(self, config: RewardsConfig) -> None:
        self.own_total_counts = not config.w_environment

    def compute(self, batch: RewardInputs) -> Values | None:
        """A trajectory without steps has no place for a reward; where reward functions judge, their scores stand for
        themselves."""
        if batch.trajectories and all(t.judged_by for t in batch.trajectories):
            return None
        values = torch.zeros(len(batch.steps), dtype=torch.float64)
        outcomes: list[float] = []
        for trajectory, correct in zip(batch.trajectories, batch.correctness, strict=True):
            if trajectory.steps:
                own = float(trajectory.env_reward or 0.0) if self.own_total_counts else 0.0
                outcomes.append(own if correct is None else float(correct))
        values[batch.last] = torch.tensor(outcomes, dtype=torch.float64)
        judged = torch.tensor([bool(t.judged_by) for t in batch.trajectories for _ in t.steps], dtype=torch.bool)
        return values, batch.last & ~judged


class EnvironmentReward(RewardComponent):
    """The environment's own reward of each step."""

    def __init__(self, config: RewardsConfig) -> None:
        self.counts = config.w_environment > 0

    def compute(self, batch: RewardInputs) -> Values | None:
        """Nothing without a weight: what does not count is not shown as a component."""
        if not self.counts:
            return None
        return torch.tensor(list(batch.env_rewards), dtype=torch.float64), torch.ones_like(batch.last)


class PenaltyReward(RewardComponent):
    """The sum of the amounts of each step's penalties, at most 0."""

    def compute(self, batch: RewardInputs) -> Values:
        """Defined everywhere: a step without penalties has 0."""
        amounts = [sum(p.amount for p in at) for row in batch.penalties for at in row]
        return torch.tensor(amounts, dtype=torch.float64), torch.ones_like(batch.last)
