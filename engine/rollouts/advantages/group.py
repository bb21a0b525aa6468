"""`group`: every agent token of rollout i gets R[i] − mean_G R, R the sum of its rewards (GRPO, arXiv 2402.03300)."""

from __future__ import annotations

import torch
from torch import Tensor

from .base import AdvantageMethod, TurnRewards


class GroupAdvantage(AdvantageMethod):
    """GRPO's: one number for a rollout, against the other rollouts of its prompt."""

    name = "group"

    def returns(self, batch: TurnRewards) -> tuple[Tensor, Tensor]:
        """The sum over turns, [G, N, 1], of every rollout."""
        total = batch.rewards.sum(2, keepdim=True)
        return total, torch.ones_like(total, dtype=torch.bool)
