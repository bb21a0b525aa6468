"""Components of the reward, each compared on its own: what `gdpo` and `group` share.

`among="equals"`: the shaping components (`SHAPED`) are compared only among those rollouts of the group that succeeded
alike: they decide between equals, and can never outweigh success. Where no answer is known all are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ....configs.sections.rewards import SHAPED
from ....rewards.breakdown import AdvantageFormula, AdvantageTerm
from .base import EPSILON, ROUNDING, Scale, TurnRewards, moments

Among = Literal["group", "equals"]


@dataclass(frozen=True)
class Part:
    """One component of G groups of N rollouts, all [G, N, 1] float64: its sums over turns, and the mean, the standard
    deviation (None: not divided by) and the number (int64) of those that each was compared with. there: bool, False for
    rollouts to which it does not apply: these take part in no mean, and it adds nothing to them."""

    name: str
    weight: float
    value: Tensor
    there: Tensor
    mean: Tensor
    std: Tensor | None
    size: Tensor

    @property
    def advantages(self) -> Tensor:
        """What the component adds, [G, N, 1]."""
        centred = self.value - self.mean
        if self.std is not None:
            centred = centred / (self.std + EPSILON)
        return self.weight * centred * self.there

    def differs(self, valid: Tensor, min_std: float) -> Tensor:
        """Groups in which it differs, with a weighted standard deviation of `min_std` at least, bool [G]."""
        differ = ((self.value - self.mean).abs() > ROUNDING) & self.there & valid
        if self.std is not None:
            differ &= self.weight * self.std >= min_std
        return differ.flatten(1).any(1)

    def term(self, group: int, index: int, scaled: float = 1.0) -> AdvantageTerm:
        """What it adds to one rollout, times `scaled`."""
        value, mean = (float(t[group, index]) for t in (self.value, self.mean))
        std = None if self.std is None else float(self.std[group, index])
        return AdvantageTerm(value, mean, std, int(self.size[group, index]), self.weight * scaled, self.name)


@dataclass(frozen=True)
class ComparedParts:
    """The components of a batch, each compared; see `Comparison`, whose place this takes. valid: bool [G, N, 1].
    over_batch: whether the sums are compared again, with those of the batch."""

    parts: Sequence[Part]
    valid: Tensor
    turns: Tensor
    over_batch: bool

    @property
    def summed(self) -> Tensor:
        """The weighted sum of what the components add, [G, N, 1]."""
        return sum((p.advantages for p in self.parts), torch.zeros(self.valid.shape, dtype=torch.float64))

    @property
    def batch(self) -> tuple[float, float]:
        """Mean of the sums over the batch, and the factor by which what is left is multiplied."""
        if not self.over_batch:
            return 0.0, 1.0
        mean, std = moments(self.summed.flatten(), self.valid.flatten(), dim=0)
        return float(mean), 1.0 / (float(std) + EPSILON)

    def advantages(self) -> Tensor:
        """Advantages per turn, float64 [G, N, S]; 0 where no turn happened."""
        mean, scaled = self.batch
        return (self.summed - mean) * scaled * self.turns

    def formula(self, group: int, index: int, method: str, scale: Scale) -> AdvantageFormula | None:
        """The terms of one rollout: one for each component, and one for the mean of the batch."""
        if not bool(self.valid[group, index]):
            return None
        mean, scaled = self.batch
        terms = [p.term(group, index, scaled) for p in self.parts if bool(p.there[group, index])]
        if self.over_batch:
            terms.append(AdvantageTerm(0.0, mean, None, int(self.valid.sum()), scaled, "batch"))
        return AdvantageFormula(method, scale, EPSILON, (tuple(terms),))


def components(batch: TurnRewards, among: Among) -> list[Part]:
    """Each component that carries weight beside what it is compared with; none where a rollout has no breakdown."""
    rewards = [r.breakdown for r in batch.rollouts]
    if not rewards or any(b is None for b in rewards):
        return []
    sums: dict[str, list[float | None]] = {}
    weights: dict[str, float] = {}
    for row, breakdown in enumerate(rewards):
        for step in breakdown.steps:  # type: ignore[union-attr]
            for name, found in step.components.items():
                if found.weight and found.normalized is not None:
                    weights[name] = found.weight
                    values = sums.setdefault(name, [None] * len(rewards))
                    values[row] = (values[row] or 0.0) + found.normalized
    shape = (*batch.valid.shape, 1)
    parts = []
    for name, values in sums.items():
        value = torch.tensor([v or 0.0 for v in values], dtype=torch.float64).view(shape)
        there = torch.tensor([v is not None for v in values]).view(shape)
        equals = _success(batch) if among == "equals" and name in SHAPED else None
        compared = _among(value, there & batch.valid[:, :, None], equals)
        parts.append(Part(name, weights[name], value, there, *compared))
    return parts


def _among(value: Tensor, valid: Tensor, equals: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, standard deviation and number of the values that each is compared with, [G, N, 1].

    value, valid: [G, N, 1]. equals: float64 [G, N]; only rollouts of the same number are compared (None: all)."""
    if equals is None:
        mean, std = moments(value, valid, dim=1)
        size = valid.sum(1, keepdim=True)
        mean, std, size = (t.expand_as(value) for t in (mean, std, size))
    else:
        alike = (equals[:, :, None] == equals[:, None, :]) & valid[:, None, :, 0]
        rows = value[:, None, :, 0].expand_as(alike)
        mean, std = moments(rows, alike, dim=2)
        size = alike.sum(2, keepdim=True)
    return torch.where(size > 1, mean, value), std, size


def _success(batch: TurnRewards) -> Tensor:
    """Which rollouts are known to be right, 1 or 0, float64 [G, N]."""
    right = [r.trajectory is not None and r.trajectory.correct is True for r in batch.rollouts]
    return torch.tensor(right, dtype=torch.float64).view(batch.valid.shape)
