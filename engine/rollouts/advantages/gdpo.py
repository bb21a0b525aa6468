"""`gdpo`: each component of the reward against its own group, then the weighted sum over the batch (arXiv 2601.05242).

For rollout i, component c with weight w_c, R_c[i] its normalised values summed over the turns:

    a[i] = Σ_c w_c · (R_c[i] − mean R_c) / (std R_c + ε)          over the rollouts of the group
    A[i] = (a[i] − mean a) / (std a + ε)                          over the batch

so a component's say is its weight, whatever its scale (TRL's `multi_objective_aggregation="normalize_then_sum"`).
`among`: see `parts`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....rewards.breakdown import AdvantageFormula
from .base import AdvantageMethod, Scale, TurnRewards, moments
from .parts import Among, ComparedParts, Part, components


class GdpoAdvantage(AdvantageMethod):
    """Group reward-decoupled normalisation; `scale` has no say in it."""

    name = "gdpo"

    def __init__(self, among: Among = "equals") -> None:
        self.among: Among = among
        self.shaping_apart = among == "equals"

    def returns(self, batch: TurnRewards) -> tuple[Tensor, Tensor]:
        """The sum over turns, [G, N, 1], where the reward has no components."""
        total = batch.rewards.sum(2, keepdim=True)
        return total, torch.ones_like(total, dtype=torch.bool)

    def sentence(self, formula: AdvantageFormula) -> str:
        """Of all components at once."""
        return "each component against mean and std (n − 1) of its group, by weight, over the std of the batch"

    def compare(self, batch: TurnRewards, scale: Scale) -> ComparedParts:
        """Each component beside what it is compared with."""
        return ComparedParts(self._parts(batch), batch.valid[:, :, None], batch.counted, over_batch=True)

    def signal(self, batch: TurnRewards, min_std: float = 0.0) -> Tensor:
        """Groups in which some component differs, bool [G]."""
        found = torch.zeros(batch.valid.shape[0], dtype=torch.bool)
        for part in self._parts(batch):
            found |= part.differs(batch.valid[:, :, None], min_std)
        return found

    def _parts(self, batch: TurnRewards) -> list[Part]:
        if parts := components(batch, self.among):
            return parts
        value, counts = self._counted(batch)
        mean, std = moments(value, counts, dim=1)
        size = counts.sum(1, keepdim=True)
        mean, std, size = (t.expand_as(value) for t in (mean, std, size))
        everywhere = torch.ones_like(counts)
        return [Part("reward", 1.0, value, everywhere, torch.where(size > 1, mean, value), std, size)]
