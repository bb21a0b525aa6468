"""`reward`: the reward of a turn as it is, on the last token of that turn, and 0 on every other token.

The per-token rewards of the environment stand for advantages; there is no baseline and no scaling.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ....rewards.breakdown import AdvantageFormula
from ..rollout import Rollout
from .base import AdvantageMethod, Comparison, Scale, TurnRewards, last_of_turn, spread


class RewardAdvantage(AdvantageMethod):
    """Rewards in the place of advantages."""

    name = "reward"

    def returns(self, batch: TurnRewards) -> tuple[Tensor, Tensor]:
        """The rewards themselves, [G, N, S]."""
        return batch.rewards, batch.happened

    def sentence(self, formula: AdvantageFormula) -> str:
        """Nothing is compared."""
        return "The reward itself, on the last token of its turn: compared with nothing."

    def compare(self, batch: TurnRewards, scale: Scale) -> Comparison:
        """Compared with nothing, divided by nothing."""
        value, counts = self._counted(batch)
        alone = torch.ones_like(counts, dtype=torch.long)
        return Comparison(value, counts, torch.zeros_like(value), None, alone, batch.counted)

    def signal(self, batch: TurnRewards, min_std: float = 0.0) -> Tensor:
        """Groups in which some reward is not 0, bool [G]."""
        value, counts = self._counted(batch)
        return ((value != 0) & counts).flatten(1).any(1)

    def per_token(self, values: np.ndarray, rollout: Rollout) -> np.ndarray:
        """On the last agent token of each turn, float32 [T]; rewards that were not shaped stay where the environment
        placed them."""
        if rollout.breakdown is None:
            return rollout.rewards.copy()
        return spread(values, rollout, last_of_turn(rollout))
