"""Turns rollouts into groups to learn from: shaped rewards, then advantages.

Runs on the main process over the whole batch, since groups, running statistics and the replay buffer span all
processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch

from ...rewards.advantages import AdvantageMethod
from ...rewards.advantages.base import Scale, learnable
from ...rewards.advantages.group import GroupAdvantage
from ...rewards.metrics import batch_metrics
from ...rewards.orchestrator import RewardOrchestrator
from .advantages import by_turn, in_groups, with_advantages
from .distillation import Distillation
from .rollout import Group, Rollout

Signal = Literal["task", "reward"]
Metrics = dict[str, float | Mapping[str, float]]


@dataclass(frozen=True)
class Scorer:
    """Scores whole groups of rollouts.

    group_size: rollouts per prompt. orchestrator: shaped rewards; without one, the environment's rewards count
    unchanged. min_group_std: a group whose returns have a smaller standard deviation carries no signal. signal: whether
    these are the whole returns, or those of task and environment. solved: if all rollouts of a group are right, shaping
    that decides between peers is signal enough. distillation: adds the advantages of a teacher, from which every group
    can learn.
    """

    group_size: int
    orchestrator: RewardOrchestrator | None = None
    method: AdvantageMethod = field(default_factory=GroupAdvantage)
    scale: Scale = "group"
    min_group_std: float = 0.0
    signal: Signal = "reward"
    solved: bool = False
    distillation: Distillation | None = None

    @property
    def needs_embeddings(self) -> bool:
        """Whether the rewards read the reference's hidden states."""
        return self.orchestrator is not None and self.orchestrator.config.needs_embeddings

    def score(self, rollouts: Sequence[Rollout], step: int = 0) -> tuple[list[Group], Metrics]:
        """Return groups with `turn_rewards`, `breakdown` and `advantages`, and the rewards' metrics.

        rollouts: whole groups, one after another. step: optimiser steps made so far.
        """
        rewarded, metrics = self.rewards(rollouts, step)
        return self.advantages(rewarded), metrics

    def rewards(
        self, rollouts: Sequence[Rollout], step: int = 0, *, update: bool = True
    ) -> tuple[list[Rollout], Metrics]:
        """Return the rollouts with `turn_rewards` and, with an orchestrator, `breakdown`, and the rewards' metrics.

        update: include the rollouts in the running statistics.
        """
        trajectories = [r.trajectory for r in rollouts if r.trajectory is not None]
        if self.orchestrator is None or len(trajectories) < len(rollouts):
            return [replace(r, turn_rewards=r.reward_by_turn()) for r in rollouts], {}
        by_index = {(r.group, r.index): r for r in rollouts}
        found = (_per_step(r, by_index) for r in rollouts)
        embeddings = [torch.from_numpy(e) for e in found if e is not None]
        result = self.orchestrator.calculate_total_reward(
            trajectories,
            [t.correct for t in trajectories],
            embeddings=embeddings if len(embeddings) == len(rollouts) else None,
            groups=[r.group for r in rollouts],
            step=step,
            update=update,
        )
        totals = result.total.float().numpy()
        rewarded = [
            replace(r, turn_rewards=by_turn(totals[row, : len(t.steps)], r.turns), breakdown=result.breakdowns[row])
            for row, (r, t) in enumerate(zip(rollouts, trajectories, strict=True))
        ]
        return rewarded, dict(result.metrics)

    def metrics(self, rollouts: Sequence[Rollout]) -> Metrics:
        """Return the rewards' metrics of rollouts scored in several batches; empty if nothing shaped them."""
        scored = [(r.trajectory, r.breakdown) for r in rollouts if r.trajectory is not None and r.breakdown is not None]
        if self.orchestrator is None or not scored or len(scored) < len(rollouts):
            return {}
        trajectories, breakdowns = zip(*scored, strict=True)
        return batch_metrics(trajectories, breakdowns, [t.group for t in trajectories])

    def advantages(self, rollouts: Sequence[Rollout]) -> list[Group]:
        """Return groups of the same rollouts with `advantages` and `formula`."""
        groups = in_groups(rollouts, self.group_size)
        done = with_advantages(rollouts, groups, self.method, self.scale)
        signal = learnable(self.method, groups, self.min_group_std, goal_only=self.signal == "task", solved=self.solved)
        if self.distillation is not None:
            done, signal = self.distillation.added(done), [True] * len(groups)
        members = [tuple(done[i : i + self.group_size]) for i in range(0, len(done), self.group_size)]
        return [Group(rows, found) for rows, found in zip(members, signal, strict=True)]


def _per_step(rollout: Rollout, by_index: Mapping[tuple[int, int], Rollout]) -> np.ndarray | None:
    """Return embeddings [S, D], one for each step of the trajectory.

    A step without tokens gets the one before it. A repeated step gets that of the rollout it comes from.
    """
    found, trajectory = rollout.embeddings, rollout.trajectory
    if found is None or trajectory is None:
        return found
    steps = len(trajectory.steps)
    out = np.zeros((steps, found.shape[1]), np.float32)
    for i in range(steps):
        out[i] = found[i] if i < len(found) else out[i - 1] if i else 0.0
    if (
        trajectory.branch is not None
        and (parent := by_index[rollout.group, trajectory.branch[0]]).embeddings is not None
    ):
        repeated = min(trajectory.branch[1], steps)
        out[:repeated] = parent.embeddings[:repeated]
    return out
