"""On-policy distillation: the log-probs of a teacher become advantages of single tokens."""

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
    """Adds `weight` · (log π_teacher − log π) to the advantages of tokens; without `with_reward`, replaces them."""

    weight: float = 1.0
    with_reward: bool = True

    def added(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Return the rollouts with the teacher's part in `advantages` and `formula`.

        Rollouts that their environment failed keep advantages of 0.
        """
        return [self._added(r) if r.scorable and r.formula is not None else r for r in rollouts]

    def _added(self, rollout: Rollout) -> Rollout:
        ahead = teacher_ahead(rollout)
        means = rollout.mean_by_turn(ahead).astype(np.float64).tolist()
        before = rollout.advantages if self.with_reward and rollout.advantages is not None else np.float32(0)
        formula = with_teacher(rollout.formula, means, self.weight, self.with_reward)
        return replace(rollout, advantages=(before + self.weight * ahead).astype(np.float32), formula=formula)


def teacher_ahead(rollout: Rollout) -> np.ndarray:
    """Return log π_teacher − log π of the agent's tokens, float32 [T]; 0 elsewhere and on a first token."""
    assert rollout.teacher_logprobs is not None and rollout.logprobs is not None
    counted = rollout.agent_mask.copy()
    counted[:1] = False  # nothing comes before a first token
    return np.where(counted, rollout.teacher_logprobs - rollout.logprobs, 0).astype(np.float32)


def reverse_kl(rollouts: Sequence[Rollout]) -> float:
    """Return the mean of log π − log π_teacher over the agent's tokens: KL(π ‖ π_teacher), nats per token (k1)."""
    count = sum(r.agent_tokens for r in rollouts)
    return -sum(float(teacher_ahead(r).sum(dtype=np.float64)) for r in rollouts) / max(count, 1)
