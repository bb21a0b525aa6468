"""`gdpo`: each component of the reward against its own group, then the weighted sum over the batch (arXiv 2601.05242).

For rollout i, component c with weight w_c, R_c[i] its normalised values summed over the turns:

    a[i] = Σ_c w_c · (R_c[i] − mean R_c) / (std R_c + ε)          over the rollouts of the group
    A[i] = (a[i] − mean a) / (std a + ε)                          over the batch

so a component's say is its weight, whatever its scale (TRL's `multi_objective_aggregation="normalize_then_sum"`). With
`among="equals"` the shaping components (`LOWER`) are compared only among those rollouts of the group that
succeeded alike: they decide between equals, and can never outweigh success.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ....configs.sections.rewards import COMPONENTS
from ....rewards.breakdown import AdvantageFormula, AdvantageTerm
from ..rollout import Rollout
from .base import EPSILON, ROUNDING, AdvantageMethod, Scale, TurnRewards, moments

Among = Literal["group", "equals"]
LOWER = frozenset(COMPONENTS) - {"task", "environment"}
"""Components that `equals` compares among rollouts that succeeded alike; the task, the environment's own reward and the
user's reward functions are always compared with the whole group."""


@dataclass(frozen=True)
class Part:
    """One component of G groups of N rollouts, all [G, N, 1] float64: its sums over turns, and the mean, the standard
    deviation and the number (int64) of those that each was compared with. there: bool, False for rollouts to which it
    does not apply: these take part in no mean, and it adds nothing to them."""

    name: str
    weight: float
    value: Tensor
    there: Tensor
    mean: Tensor
    std: Tensor
    size: Tensor

    @property
    def advantages(self) -> Tensor:
        """What the component adds, [G, N, 1]."""
        return self.weight * (self.value - self.mean) / (self.std + EPSILON) * self.there


@dataclass(frozen=True)
class ComparedParts:
    """The components of a batch, each compared; see `Comparison`, whose place this takes. valid: bool [G, N, 1]."""

    parts: Sequence[Part]
    valid: Tensor
    turns: Tensor

    @property
    def summed(self) -> Tensor:
        """The weighted sum of what the components add, [G, N, 1]."""
        return sum((p.advantages for p in self.parts), torch.zeros(self.valid.shape, dtype=torch.float64))

    @property
    def batch(self) -> tuple[float, float]:
        """Mean and standard deviation of the sums over the batch."""
        mean, std = moments(self.summed.flatten(), self.valid.flatten(), dim=0)
        return float(mean), float(std)

    def advantages(self) -> Tensor:
        """Advantages per turn, float64 [G, N, S]; 0 where no turn happened."""
        mean, std = self.batch
        return (self.summed - mean) / (std + EPSILON) * self.turns

    def formula(self, group: int, index: int, method: str, scale: Scale) -> AdvantageFormula | None:
        """The terms of one rollout: one for each component, and one for the mean of the batch."""
        if not bool(self.valid[group, index]):
            return None
        mean, std = self.batch
        scaled = 1.0 / (std + EPSILON)
        terms = [
            AdvantageTerm(
                *(float(t[group, index]) for t in (p.value, p.mean, p.std)),
                size=int(p.size[group, index]),
                weight=p.weight * scaled,
                name=p.name,
            )
            for p in self.parts
            if bool(p.there[group, index])
        ]
        terms.append(AdvantageTerm(0.0, mean, None, int(self.valid.sum()), scaled, "batch"))
        return AdvantageFormula(method, "group", EPSILON, (tuple(terms),))


class GdpoAdvantage(AdvantageMethod):
    """Group reward-decoupled normalisation; `scale` has no say in it."""

    name = "gdpo"

    def __init__(self, among: Among = "group") -> None:
        self.among = among

    def returns(self, batch: TurnRewards) -> tuple[Tensor, Tensor]:
        """The sum over turns, [G, N, 1], where the reward has no components."""
        total = batch.rewards.sum(2, keepdim=True)
        return total, torch.ones_like(total, dtype=torch.bool)

    def compare(self, batch: TurnRewards, scale: Scale) -> ComparedParts:
        """Each component beside what it is compared with."""
        parts = []
        for name, (weight, value, there) in self._components(batch).items():
            equals = None if name not in LOWER or self.among == "group" else _success(batch)
            counted = there & batch.valid[:, :, None]
            parts.append(Part(name, weight, value, there, *_among(value, counted, equals)))
        return ComparedParts(parts, batch.valid[:, :, None], batch.counted)

    def signal(self, batch: TurnRewards, min_std: float = 0.0) -> Tensor:
        """Groups in which some component differs, bool [G]."""
        found = torch.zeros(batch.valid.shape[0], dtype=torch.bool)
        for part in self.compare(batch, "group").parts:
            counted = part.there & batch.valid[:, :, None]
            differ = ((part.value - part.mean).abs() > ROUNDING) & counted & (part.std >= min_std)
            found |= differ.flatten(1).any(1)
        return found

    def _components(self, batch: TurnRewards) -> dict[str, tuple[float, Tensor, Tensor]]:
        """Of each component that carries weight: its weight, its sums over turns, float64 [G, N, 1], and which rollouts
        have it, bool [G, N, 1]."""
        rewards = [r.breakdown for r in batch.rollouts]
        if not rewards or any(b is None for b in rewards):
            return {"reward": (1.0, *self.returns(batch))}
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
        return {
            name: (
                weights[name],
                torch.tensor([v or 0.0 for v in values], dtype=torch.float64).view(shape),
                torch.tensor([v is not None for v in values]).view(shape),
            )
            for name, values in sums.items()
        }


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
    """What each rollout achieved, float64 [G, N]: its correctness, or the environment's sum where there is none."""
    return torch.tensor([_achieved(r) for r in batch.rollouts], dtype=torch.float64).view(batch.valid.shape)


def _achieved(rollout: Rollout) -> float:
    known = None if rollout.trajectory is None else rollout.trajectory.correct
    return rollout.final_reward if known is None else float(known)
