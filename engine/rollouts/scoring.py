"""From rollouts to groups that can be learned from: shaped rewards, then advantages.

Runs on the main process over the whole batch, since groups, running statistics and the replay buffer belong to all
processes together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch

from ...configs.sections.rewards import SHAPED
from ...rewards.orchestrator import RewardOrchestrator
from .advantages.base import AdvantageMethod, Scale, TurnRewards
from .advantages.group import GroupAdvantage
from .rollout import Group, Rollout

Signal = Literal["task", "reward"]
Metrics = dict[str, float | Mapping[str, float]]


@dataclass(frozen=True)
class Scorer:
    """Scores whole groups of rollouts.

    group_size: rollouts per prompt. orchestrator: shaped rewards; without one the environment's own count, as they
    are. min_group_std: a group whose returns have a smaller standard deviation carries no signal; signal: whether these
    are the whole returns, or those of task and environment.
    """

    group_size: int
    orchestrator: RewardOrchestrator | None = None
    method: AdvantageMethod = field(default_factory=GroupAdvantage)
    scale: Scale = "group"
    min_group_std: float = 0.0
    signal: Signal = "reward"

    @property
    def needs_embeddings(self) -> bool:
        """Whether the rewards read the reference's hidden states."""
        shaped = self.orchestrator
        return shaped is not None and shaped.config.needs_embeddings and shaped.embedder is None

    def score(self, rollouts: Sequence[Rollout], step: int = 0) -> tuple[list[Group], Metrics]:
        """Groups with `turn_rewards`, `breakdown` and `advantages`, and the rewards' metrics.

        rollouts: whole groups, one after another. step: optimiser steps made so far.
        """
        rewarded, metrics = self.rewards(rollouts, step)
        return self.advantages(rewarded), metrics

    def rewards(self, rollouts: Sequence[Rollout], step: int = 0) -> tuple[list[Rollout], Metrics]:
        """The same with `turn_rewards` and, where there is an orchestrator, `breakdown`."""
        trajectories = [r.trajectory for r in rollouts if r.trajectory is not None]
        if self.orchestrator is None or len(trajectories) < len(rollouts):
            return [replace(r, turn_rewards=r.reward_by_turn()) for r in rollouts], {}
        embeddings = [torch.from_numpy(e) for e in map(_per_step, rollouts) if e is not None]
        result = self.orchestrator.calculate_total_reward(
            trajectories,
            [t.correct for t in trajectories],
            embeddings=embeddings if len(embeddings) == len(rollouts) else None,
            groups=[r.group for r in rollouts],
            step=step,
        )
        totals = result.total.float().numpy()
        rewarded = [
            replace(r, turn_rewards=_by_turn(totals[row, : len(t.steps)], r.turns), breakdown=result.breakdowns[row])
            for row, (r, t) in enumerate(zip(rollouts, trajectories, strict=True))
        ]
        return rewarded, dict(result.metrics)

    def advantages(self, rollouts: Sequence[Rollout]) -> list[Group]:
        """Groups of the same rollouts with `advantages` and `formula`."""
        batch = TurnRewards.of(rollouts, self.group_size)
        compared = self.method.compare(batch, self.scale)
        values = compared.advantages().numpy()
        groups = []
        judged = batch if self.signal == "reward" else TurnRewards.of([_unshaped(r) for r in rollouts], self.group_size)
        for g, signal in enumerate(self.method.signal(judged, self.min_group_std).tolist()):
            members = rollouts[g * self.group_size : (g + 1) * self.group_size]
            done = [
                replace(
                    rollout,
                    advantages=self.method.per_token(values[g, i], rollout),
                    formula=compared.formula(g, i, self.method.name, self.scale),
                )
                for i, rollout in enumerate(members)
            ]
            groups.append(Group(tuple(done), bool(signal)))
        return groups


def _unshaped(rollout: Rollout) -> Rollout:
    """The same, with the rewards of task and environment alone."""
    if rollout.breakdown is None:
        return rollout
    steps = [
        sum(value.contribution or 0.0 for name, value in step.components.items() if name not in SHAPED)
        for step in rollout.breakdown.steps
    ]
    rewards = _by_turn(np.array(steps, np.float32), rollout.turns)
    return replace(rollout, turn_rewards=rewards, breakdown=None)


def _per_step(rollout: Rollout) -> np.ndarray | None:
    """Embeddings [S, D], one for each step of the trajectory; a step without tokens gets the one before it."""
    found, trajectory = rollout.embeddings, rollout.trajectory
    if found is None or trajectory is None or len(found) == len(trajectory.steps):
        return found
    steps = len(trajectory.steps)
    out = np.zeros((steps, found.shape[1]), np.float32)
    for i in range(steps):
        out[i] = found[i] if i < len(found) else out[i - 1] if i else 0.0
    return out


def _by_turn(rewards: np.ndarray, turns: int) -> np.ndarray:
    """Rewards per step of the trajectory as rewards per turn of tokens, float32 [turns]: a last step without tokens
    adds to the one before it, so that nothing is lost."""
    out = np.zeros(turns, np.float32)
    n = min(turns, len(rewards))
    out[:n] = rewards[:n]
    if turns:
        out[-1] += rewards[n:].sum()
    return out
