"""Reward components, each compared on its own: what `gdpo` and `group` share.

With `among="equals"` shaping components are compared only among those rollouts of the group that succeeded alike: they
decide between equals and can never outweigh success. Without a known answer, all rollouts of a group count as equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..breakdown import AdvantageTerm
from .base import ROUNDING, Among, Group, Returns, Spread, compared, spread


def component_names(groups: Sequence[Group]) -> list[str]:
    """Return the components of a batch in order of first appearance; none if some rollout has no components."""
    rollouts = [rollout for group in groups for rollout in group]
    if any(rollout.parts is None for rollout in rollouts):
        return []
    return list(dict.fromkeys(name for rollout in rollouts for name in rollout.parts or ()))


class GroupParts:
    """The components of one group, each with the mean and deviation of its peers."""

    def __init__(self, group: Group, among: Among) -> None:
        self.group = group
        self.among = among
        self._spreads: dict[tuple[str, bool | None], Spread] = {}

    def term(self, rollout: Returns, name: str) -> AdvantageTerm | None:
        """Return the comparison of a rollout's component with its peers; None if the rollout lacks it."""
        part = (rollout.parts or {}).get(name)
        if part is None:
            return None
        right = rollout.right if self.among == "equals" and part.shaping else None
        if (name, right) not in self._spreads:
            values = [self._value(other, name, right) for other in self.group]
            self._spreads[name, right] = spread(values)
        peers = self._spreads[name, right]
        return compared(part.value, peers, peers.std, part.weight, name)

    def differ(self, names: Sequence[str], least: float) -> bool:
        """Whether a component differs among its peers, with a weighted standard deviation of at least `least`."""
        terms = [self.term(rollout, name) for name in names for rollout in self.group if rollout.scored]
        return any(abs(t.value - t.mean) > ROUNDING and t.weight * (t.std or 0.0) >= least for t in terms if t)

    @staticmethod
    def _value(rollout: Returns, name: str, right: bool | None) -> float | None:
        part = (rollout.parts or {}).get(name)
        if part is None or not rollout.scored or (right is not None and rollout.right != right):
            return None
        return part.value
