"""`group`: every agent token of rollout i gets R[i] − mean_G R, R the sum of its rewards (GRPO, arXiv 2402.03300).

R may exclude shaping. With `among="peers"`, it does, and each shaping component c with weight w_c decides between
peers, with R_c[i] the sum of its normalised values over the turns:

    A[i] = (R[i] − mean R) / (std R + ε) + Σ_c w_c · (R_c[i] − mean R_c) / (std R_c + ε)

with mean and std of R_c over the rollouts of the group with the same success. Shaping then changes an advantage by at
most a few w_c. Added to R, it could become the goal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..breakdown import GOAL, AdvantageFormula
from .base import AdvantageMethod, Among, Group, GroupParts, Returns, Scale, Terms, component_names, total


class GroupAdvantage(AdvantageMethod):
    """GRPO's advantage: one number per rollout, relative to the other rollouts of its prompt."""

    name = "group"
    compares = "the return"

    def __init__(self, among: Among = "peers") -> None:
        self.among: Among = among
        self.shaping_apart = among == "peers"

    def returns(self, rollout: Returns) -> Sequence[float]:
        return [total(rollout.turns)]

    def sentence(self, formula: AdvantageFormula) -> str:
        if len(formula.terms(0)) < 2:
            return super().sentence(formula)
        mean = "mean and std (n − 1)" if formula.scale == "group" else "the mean"
        goal = f"the goal against {mean} of its group" + ", ÷ the std of the batch" * (formula.scale == "batch")
        return f"{goal}; by weight, shaping against that of the rollouts with the same success"

    def terms(self, groups: Sequence[Group], scale: Scale) -> list[list[list[Terms]]]:
        shaping = self._shaping(groups)
        if not shaping:
            return super().terms(groups, scale)
        found = super().terms([[rollout.goal for rollout in group] for group in groups], scale)
        for group, of_group in zip(groups, found, strict=True):
            parts = GroupParts(group, self.among)
            for i, rollout in enumerate(group):
                if of_group[i]:
                    goal = replace(of_group[i][0][0], name=GOAL)
                    shaped = [term for name in shaping if (term := parts.term(rollout, name)) is not None]
                    of_group[i] = [(goal, *shaped)]
        return found

    def signal(self, groups: Sequence[Group], least: float = 0.0) -> list[bool]:
        """Return which groups differ in the return, or in the goal or a shaping component."""
        shaping = self._shaping(groups)
        if not shaping:
            return super().signal(groups, least)
        goals = super().signal([[rollout.goal for rollout in group] for group in groups], least)
        pairs = zip(goals, groups, strict=True)
        return [found or GroupParts(group, self.among).differ(shaping, least) for found, group in pairs]

    def _shaping(self, groups: Sequence[Group]) -> list[str]:
        names = [] if self.among == "group" else component_names(groups)
        rollouts = [rollout for group in groups for rollout in group]
        return [n for n in names if any(n in (r.parts or {}) and (r.parts or {})[n].shaping for r in rollouts)]
