"""`gdpo`: normalise each reward component within its group, then the weighted sum over the batch (arXiv 2601.05242).

For rollout i and component c with weight w_c, with R_c[i] the sum of its normalised values over the turns:

    a[i] = Σ_c w_c · (R_c[i] − mean R_c) / (std R_c + ε)          over the rollouts of the group
    A[i] = (a[i] − mean a) / (std a + ε)                          over the batch

A component's influence is its weight, regardless of its scale. In TRL this is
`multi_objective_aggregation="normalize_then_sum"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..breakdown import AdvantageFormula, AdvantageTerm
from .base import EPSILON, ComponentPart, Group, GroupParts, Scale, component_names, spread
from .group import GroupAdvantage


class GdpoAdvantage(GroupAdvantage):
    """Group reward-decoupled normalisation. `scale` has no effect. A reward without components counts as one."""

    name = "gdpo"

    def sentence(self, formula: AdvantageFormula) -> str:
        return "each component against mean and std (n − 1) of its group, by weight, over the std of the batch"

    def compare(self, groups: Sequence[Group], scale: Scale) -> list[list[AdvantageFormula | None]]:
        names, groups = self._components(groups)
        terms: list[list[list[AdvantageTerm] | None]] = []
        for group in groups:
            parts = GroupParts(group, self.among)
            row = [[t for name in names if (t := parts.term(r, name))] if r.scored else None for r in group]
            terms.append(row)
        sums = [None if t is None else sum(x.result(EPSILON) for x in t) for group in terms for t in group]
        mean, std, size = spread(sums)
        scaled = 1.0 / (std + EPSILON)
        batch = AdvantageTerm(0.0, mean, None, size, scaled, "batch")
        return [
            [
                None
                if t is None
                else self.formula(scale, [(*(replace(x, weight=x.weight * scaled) for x in t), batch)])
                for t in group
            ]
            for group in terms
        ]

    def signal(self, groups: Sequence[Group], least: float = 0.0) -> list[bool]:
        names, groups = self._components(groups)
        return [GroupParts(group, self.among).differ(names, least) for group in groups]

    def _components(self, groups: Sequence[Group]) -> tuple[list[str], Sequence[Group]]:
        if names := component_names(groups):
            return names, groups
        totals = [
            [replace(r, parts={"reward": ComponentPart(1.0, self.returns(r)[0])}) for r in group] for group in groups
        ]
        return ["reward"], totals
