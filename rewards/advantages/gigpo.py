"""`gigpo`: compare each rollout with its group, and each turn with the turns in the same state (arXiv 2505.10978).

The anchor state of a turn is the observation before it, or the prompt before the first turn. Turns of a group with
equal anchor states form a subgroup S, which may contain several turns of one rollout. For rollout i with rewards r and
turn t in S:

    D[i, t] = Σ_{k ≥ t} γ^(k − t) · r[i, k]
    A[i, t] = (R[i] − mean_G R) / (std_G R + ε) + ω · (D[i, t] − mean_S D) / (std_S D + ε)

A turn whose state no other turn shares has only the first term. States are compared as text, without pictures.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import accumulate

from ..breakdown import AdvantageFormula, AdvantageTerm
from .base import AdvantageMethod, Columns, Group, Returns, Scale, Terms, compared, spread, total

GAMMA = 0.95
"""The discount per turn, as in the paper."""
OMEGA = 1.0
"""The weight of the comparison within a state, as in the paper."""
ROLLOUT, STATE = "rollout", "same state"
"""Names of the two terms."""


class GigpoAdvantage(AdvantageMethod):
    """Group-in-group policy optimisation."""

    name = "gigpo"

    def returns(self, rollout: Returns) -> Sequence[float]:
        return [total(rollout.turns)]

    def sentence(self, formula: AdvantageFormula) -> str:
        mean = "mean and std (n − 1)" if formula.scale == "group" else "the mean"
        return (
            f"the return against {mean} of its group; the return from this step on (γ = {GAMMA}) against that of the "
            "group's turns in the same state" + "; each ÷ its std in the batch" * (formula.scale == "batch")
        )

    def terms(self, groups: Sequence[Group], scale: Scale) -> list[list[list[Terms]]]:
        states = [SameState(group) for group in groups]
        batch = spread([v for own in states for values in own.discounted for v in values]).std
        found = super().terms(groups, scale)
        for own, of_group in zip(states, found, strict=True):
            for i, steps in enumerate(of_group):
                if steps:
                    rollout = replace(steps[0][0], name=ROLLOUT)
                    of_group[i] = [(rollout, turn) for turn in own.terms(i, scale, batch)]
        return found

    def signal(self, groups: Sequence[Group], least: float = 0.0) -> list[bool]:
        """Return which groups have returns that differ, or discounted returns that differ within a state."""
        pairs = zip(super().signal(groups, least), groups, strict=True)
        return [found or SameState(group).columns.differ(least) for found, group in pairs]


class SameState:
    """The turns of one group by state. discounted: D of each turn of each rollout, empty for failed rollouts."""

    def __init__(self, group: Group) -> None:
        self.discounted = [discounted(rollout.turns) if rollout.scored else [] for rollout in group]
        unknown = [[(i, t) for t in range(len(rollout.turns))] for i, rollout in enumerate(group)]
        self._states = [rollout.states or alone for rollout, alone in zip(group, unknown, strict=True)]
        found: dict[Hashable, list[float]] = {}
        for states, values in zip(self._states, self.discounted, strict=True):
            for state, value in zip(states, values, strict=False):  # a failed rollout has states but no values
                found.setdefault(state, []).append(value)
        self.columns = Columns(list(found.values()))
        self._spreads = dict(zip(found, self.columns.spreads, strict=True))

    def terms(self, rollout: int, scale: Scale, batch: float) -> list[AdvantageTerm]:
        """Return the term of each turn of a rollout. batch: the standard deviation of the batch."""
        found: list[AdvantageTerm] = []
        for state, value in zip(self._states[rollout], self.discounted[rollout], strict=True):
            peers = self._spreads[state]
            std = {"group": peers.std, "batch": batch, "none": None}[scale]
            found.append(compared(value, peers, std, OMEGA, STATE))
        return found


def discounted(rewards: Sequence[float]) -> list[float]:
    """Return D of each turn."""
    return list(accumulate(reversed(rewards), lambda later, reward: reward + GAMMA * later))[::-1]
