"""`turn`: every agent token of turn t gets Q[i, t] − mean_G Q[·, t], Q[i, t] = Σ_{k ≥ t} r[i, k].

The mean is over the rollouts of the group that got as far as turn t; one that got there alone has nothing to be
compared with: 0. Turn-level credit as in MT-GRPO (arXiv 2505.11821) and GiGPO (arXiv 2505.10978), with the turn's
index as the state.
"""

from __future__ import annotations

from torch import Tensor

from .base import AdvantageMethod, TurnRewards


class TurnAdvantage(AdvantageMethod):
    """The return from a turn on, against the rollouts of the group that got as far as that turn."""

    name = "turn"
    compares = "the return from this step on"
    compared_with = "the {size} rollouts of the group that got this far"

    def returns(self, batch: TurnRewards) -> tuple[Tensor, Tensor]:
        """Rewards to go, [G, N, S], on the turns that happened."""
        return batch.rewards.flip(2).cumsum(2).flip(2), batch.happened
