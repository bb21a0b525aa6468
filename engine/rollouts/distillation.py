"""On-policy distillation: turn a teacher's log-probs into per-token advantages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...rewards.advantages.teacher import with_teacher
from .rollout import Rollout

Teacher = Callable[[Sequence[Rollout]], list[Rollout]]
"""Returns rollouts with `teacher_logprobs`."""


@dataclass(frozen=True)
class Distillation:
    """Adds `weight` · (log π_teacher − log π − its mean over the batch) to the advantages of tokens.

    Without `with_reward`, this replaces the advantages of the reward.
    """

    weight: float = 1.0
    with_reward: bool = True

    def added(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Return the rollouts with the teacher's part in `advantages` and `formula`.

        Rollouts that failed in the environment keep advantages of 0 and do not count in the mean.
        """
        counted = [r for r in rollouts if r.scorable and r.formula is not None]
        tokens = sum(int(r.scored.sum()) for r in counted)
        mean = sum(float(teacher_lead(r).sum(dtype=np.float64)) for r in counted) / max(tokens, 1)
        done = {id(r): self._added(r, mean, len(counted)) for r in counted}
        return [done.get(id(r), r) for r in rollouts]

    def _added(self, rollout: Rollout, mean: float, size: int) -> Rollout:
        lead = teacher_lead(rollout)
        turns = rollout.mean_by_turn(lead).astype(np.float64).tolist()
        before = rollout.advantages if self.with_reward and rollout.advantages is not None else np.float32(0)
        advantages = before + self.weight * np.where(rollout.scored, lead - mean, 0)
        formula = with_teacher(rollout.formula, turns, mean, size, self.weight, self.with_reward)
        return replace(rollout, advantages=advantages.astype(np.float32), formula=formula)


def teacher_lead(rollout: Rollout) -> np.ndarray:
    """Return log π_teacher − log π of the agent's tokens, float32 [T]; 0 elsewhere."""
    assert rollout.teacher_logprobs is not None and rollout.logprobs is not None
    return np.where(rollout.scored, rollout.teacher_logprobs - rollout.logprobs, 0).astype(np.float32)


def reverse_kl(rollouts: Sequence[Rollout]) -> float:
    """Return the mean of log π − log π_teacher over the agent's tokens: KL(π ‖ π_teacher), nats per token (k1)."""
    count = sum(r.agent_tokens for r in rollouts)
    return -sum(float(teacher_lead(r).sum(dtype=np.float64)) for r in rollouts) / max(count, 1)
