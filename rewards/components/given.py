"""The components that learn nothing: correctness, environment rewards, penalties, length, scores of functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ...configs.sections.rewards import RewardsConfig
from ...envs.trajectory import Step
from .base import RewardComponent, RewardInputs, Values


class TaskReward(RewardComponent):
    """Correctness, on the last step. If it is unknown, the environment's total without the part that the component
    `environment` already counts."""

    def __init__(self, config: RewardsConfig) -> None:
        self.steps_count_elsewhere = config.w_environment > 0

    def compute(self, batch: RewardInputs) -> Values | None:
        """Return correctness. It is undefined for trajectories without steps, and where reward functions judge, whose
        scores are the reward."""
        if batch.trajectories and all(t.judged_by for t in batch.trajectories):
            return None
        values = torch.zeros(len(batch.steps), dtype=torch.float64)
        outcomes: list[float] = []
        for trajectory, correct in zip(batch.trajectories, batch.correctness, strict=True):
            from_steps = sum(step.reward or 0.0 for step in trajectory.steps)
            if trajectory.steps:
                own = float(trajectory.env_reward or 0.0) - (from_steps if self.steps_count_elsewhere else 0.0)
                outcomes.append(own if correct is None else float(correct))
        values[batch.last] = torch.tensor(outcomes, dtype=torch.float64)
        judged = torch.tensor([bool(t.judged_by) for t in batch.trajectories for _ in t.steps], dtype=torch.bool)
        return values, batch.last & ~judged


class EnvironmentReward(RewardComponent):
    """The environment's own reward of each step. It is undefined on a last step whose correctness is known or that
    reward functions judge, because most environments would count the same result twice."""

    def __init__(self, config: RewardsConfig) -> None:
        self.counts = config.w_environment > 0
        self.seen = False

    def compute(self, batch: RewardInputs) -> Values | None:
        """Return the rewards, or None if the weight is 0 or the environment has not given a reward yet."""
        judged = torch.tensor(
            [
                c is not None or bool(t.judged_by)
                for t, c in zip(batch.trajectories, batch.correctness, strict=True)
                for _ in t.steps
            ],
            dtype=torch.bool,
        )
        defined = ~(batch.last & judged)
        values = torch.tensor([step.reward or 0.0 for step in batch.steps], dtype=torch.float64)
        self.seen = self.seen or bool(values[defined].any())
        return (values, defined) if self.counts and self.seen else None

    def state_facts(self) -> dict[str, object]:
        return {"seen": self.seen}

    def load_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        self.seen = bool(facts["seen"])


class PenaltyReward(RewardComponent):
    """The sum of each step's penalties, at most 0."""

    def __init__(self, config: RewardsConfig) -> None:
        self.has_own_rules = bool(config.penalty_rules)

    def compute(self, batch: RewardInputs) -> Values | None:
        """Return the sums, 0 for steps without penalties. None without tools, the user's own rules, and penalties."""
        if (
            not self.has_own_rules
            and not any(t.tools for t in batch.trajectories)
            and not any(map(any, batch.penalties))
        ):
            return None
        amounts = [sum(p.amount for p in penalties) for row in batch.penalties for penalties in row]
        return torch.tensor(amounts, dtype=torch.float64), torch.ones_like(batch.last)


class OverlongReward(RewardComponent):
    """The soft punishment of long rollouts (DAPO, arXiv 2503.14476), on the last step.

    With n agent tokens: 0 up to limit − cache, then linear down to −1 at `limit`, and −1 beyond it.
    """

    def __init__(self, limit: int, cache: int) -> None:
        if not 0 < cache <= limit:
            raise ValueError(f"cache must be above 0 and at most the limit ({limit}), not {cache}")
        self.limit, self.cache = limit, cache

    def compute(self, batch: RewardInputs) -> Values | None:
        lengths = [sum(end - start for start, end in (s.token_span for s in t.steps)) for t in batch.trajectories]
        beyond = torch.tensor([n for n, t in zip(lengths, batch.trajectories, strict=True) if t.steps]).double()
        values = torch.zeros(len(batch.steps), dtype=torch.float64)
        values[batch.last] = ((self.limit - self.cache - beyond) / self.cache).clamp(-1.0, 0.0)
        return values, batch.last


def scored_components(steps: Sequence[Step]) -> dict[str, tuple[Values, float]]:
    """Return values and weight of each named score, in order of first appearance.

    The scores come from reward functions and from environments' rubrics. Omits names without any score in the batch.
    """
    found: dict[str, tuple[Values, float]] = {}
    for n, step in enumerate(steps):
        for score in step.scores:
            if score.name not in found:
                nothing = torch.zeros(len(steps), dtype=torch.float64), torch.zeros(len(steps), dtype=torch.bool)
                found[score.name] = (nothing, score.weight)
            if score.value is not None:
                (values, defined), _ = found[score.name]
                values[n], defined[n] = score.value, True
    return {name: component for name, component in found.items() if component[0][1].any()}
