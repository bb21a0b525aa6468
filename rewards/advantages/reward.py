"""`reward`: the reward of a turn as its advantage, on the last token of that turn, and 0 on every other token.

The per-token rewards of the environment are the advantages, without baseline or scaling.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..breakdown import AdvantageFormula, AdvantageTerm
from .base import AdvantageMethod, Group, Returns, Scale, Spread


class RewardAdvantage(AdvantageMethod):
    """Rewards used as advantages."""

    name = "reward"
    on_last_token = True

    def returns(self, rollout: Returns) -> Sequence[float]:
        return rollout.turns

    def sentence(self, formula: AdvantageFormula) -> str:
        return "The reward itself, on the last token of its turn, without a baseline."

    def compare(self, groups: Sequence[Group], scale: Scale) -> list[list[AdvantageFormula | None]]:
        return super().compare(groups, "none")

    def term(self, value: float, peers: Spread, std: float | None) -> AdvantageTerm:
        return AdvantageTerm(value, 0.0, None, 1)

    def signal(self, groups: Sequence[Group], least: float = 0.0) -> list[bool]:
        """Return which groups have a non-zero reward."""
        return [any(v != 0 for rollout in group if rollout.scored for v in rollout.turns) for group in groups]
