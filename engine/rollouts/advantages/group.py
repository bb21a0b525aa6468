"""`group`: every agent token of rollout i gets R[i] − mean_G R, R the sum of its rewards (GRPO, arXiv 2402.03300).

Shaping does not have to be part of R. With `among="equals"` R is the rest of the reward, and each shaping component c
with weight w_c, R_c[i] its normalised values summed over the turns, decides between equals:

    A[i] = (R[i] − mean R) / (std R + ε) + Σ_c w_c · (R_c[i] − mean R_c) / (std R_c + ε)

its mean and standard deviation over those rollouts of the group that succeeded alike. So it moves an advantage by a few
w_c at most, however long a rollout is and however much its steps are worth: added to R, it could become the goal.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ....configs.sections.rewards import SHAPED
from ....rewards.breakdown import GOAL, AdvantageFormula
from .base import AdvantageMethod, Compared, Comparison, Scale, TurnRewards
from .parts import Among, ComparedParts, Part, components


class GroupAdvantage(AdvantageMethod):
    """GRPO's: one number for a rollout, against the other rollouts of its prompt."""

    name = "group"
    compares = "the return"

    def __init__(self, among: Among = "equals") -> None:
        self.among: Among = among
        self.shaping_apart = among == "equals"

    def returns(self, batch: TurnRewards) -> tuple[Tensor, Tensor]:
        """The sum over turns, [G, N, 1], of every rollout."""
        total = batch.rewards.sum(2, keepdim=True)
        return total, torch.ones_like(total, dtype=torch.bool)

    def sentence(self, formula: AdvantageFormula) -> str:
        """As for one return; shaping that is compared apart is named."""
        if len(formula.terms(0)) < 2:
            return super().sentence(formula)
        mean = "mean and std (n − 1)" if formula.scale == "group" else "the mean"
        goal = f"the goal against {mean} of its group" + ", ÷ the std of the batch" * (formula.scale == "batch")
        return f"{goal}; by weight, shaping against that of the rollouts which succeeded alike"

    def compare(self, batch: TurnRewards, scale: Scale) -> Compared:
        """The return, or the goal and each shaping component, beside what it is compared with."""
        shaped = self._shaped(batch)
        if not shaped:
            return super().compare(batch, scale)
        goal = super().compare(batch.unshaped, scale)
        assert isinstance(goal, Comparison)
        everywhere = torch.ones_like(goal.counts)
        mean, std, size = (None if t is None else t.expand_as(goal.value) for t in (goal.mean, goal.std, goal.size))
        assert mean is not None and size is not None
        parts = [Part(GOAL, 1.0, goal.value, everywhere, mean, std, size), *shaped]
        return ComparedParts(parts, batch.valid[:, :, None], batch.counted, over_batch=False)

    def signal(self, batch: TurnRewards, min_std: float = 0.0) -> Tensor:
        """Groups in which the return, or the goal or some shaping component, differs, bool [G]."""
        shaped = self._shaped(batch)
        if not shaped:
            return super().signal(batch, min_std)
        found = super().signal(batch.unshaped, min_std)
        for part in shaped:
            found |= part.differs(batch.valid[:, :, None], min_std)
        return found

    def _shaped(self, batch: TurnRewards) -> list[Part]:
        return [] if self.among == "group" else [p for p in components(batch, self.among) if p.name in SHAPED]
