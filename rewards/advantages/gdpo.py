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
from .base import EPSILON, ComponentPart, Group, GroupParts, Scale, Terms, component_names, spread
from .group import GroupAdvantage


class GdpoAdvantage(GroupAdvantage):
    """Group reward-decoupled normalisation. `scale` has no effect. A reward without components counts as one."""

    name = "gdpo"

    def sentence(self, formula: AdvantageFormula) -> str:
        return "each component against mean and std (n − 1) of its group, by weight, over the std of the batch"

    def terms(self, groups: Sequence[Group], scale: Scale) -> list[list[list[Terms]]]:
        names, groups = self._components(groups)
        found: list[list[list[Terms]]] = []
        for group in groups:
            parts = GroupParts(group, self.among)
            rows = [tuple(t for name in names if (t := parts.term(r, name))) for r in group]
            found.append([[row] if r.scored else [] for r, row in zip(group, rows, strict=True)])
        mean, std, size = spread(
            [sum(t.result(EPSILON) for t in s[0]) if s else None for group in found for s in group]
        )
        scaled = 1.0 / (std + EPSILON)
        batch = AdvantageTerm(0.0, mean, None, size, scaled, "batch")
        for steps in (steps for group in found for steps in group):
            steps[:] = [(*(replace(t, weight=t.weight * scaled) for t in terms), batch) for terms in steps]
        return found

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
