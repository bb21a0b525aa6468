"""What a method of computing advantages is, and what all of them share: group baseline, scaling, spreading over tokens.

With Q[i, t] what a method compares (`returns`), A[i, t] = (Q[i, t] − mean_G Q[·, t]) / scale, the mean over the
rollouts of the same group. `scale` divides by (σ + 1e-4): σ of the same group and turn, σ of the whole batch, or
nothing. σ has Bessel's correction, as in TRL.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ....rewards.breakdown import AdvantageFormula, AdvantageTerm, comparison
from ..padding import pad_rows
from ..rollout import Rollout
from ..turn_rewards import unshaped

EPSILON = 1e-4

ROUNDING = 1e-6
"""Centred returns below this are equal returns that were summed in another order."""

Scale = Literal["group", "batch", "none"]


@dataclass(frozen=True)
class TurnRewards:
    """Rewards of G groups of N rollouts with at most S turns.

    rewards: float64 [G, N, S], 0 where there is no turn. happened: bool [G, N, S], True on turns that happened.
    valid: bool [G, N], False for rollouts that were not scored (their environment failed): these take part in no mean
    and get an advantage of 0. rollouts: the G·N rollouts themselves, for methods that look at more than the sums.
    """

    rewards: Tensor
    happened: Tensor
    valid: Tensor
    rollouts: Sequence[Rollout] = ()

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], group_size: int) -> TurnRewards:
        """Of whole groups of `group_size` rollouts, one after another. Raises ValueError for a group that is not
        whole."""
        if not rollouts or len(rollouts) % group_size:
            raise ValueError(f"{len(rollouts)} rollouts are not whole groups of {group_size}")
        turns = max(1, *(r.turns for r in rollouts))
        shape = (-1, group_size, turns)
        count = torch.tensor([r.turns for r in rollouts])
        return cls(
            pad_rows([r.turn_rewards for r in rollouts], turns, 0.0, torch.float64).view(shape),
            (torch.arange(turns) < count[:, None]).view(shape),
            torch.tensor([r.scorable for r in rollouts]).view(-1, group_size),
            tuple(rollouts),
        )

    @cached_property
    def unshaped(self) -> TurnRewards:
        """The same without what shaping adds to the rewards."""
        return replace(TurnRewards.of([unshaped(r) for r in self.rollouts], self.valid.shape[1]), valid=self.valid)

    @property
    def counted(self) -> Tensor:
        """Turns that happened in rollouts that were scored, bool [G, N, S]."""
        return self.happened & self.valid[:, :, None]


class Compared(Protocol):
    """Returns of a batch beside what each was compared with."""

    def advantages(self) -> Tensor:
        """Advantages per turn, float64 [G, N, S]; 0 where no turn happened."""
        ...

    def formula(self, group: int, index: int, method: str, scale: Scale) -> AdvantageFormula | None:
        """How the advantages of one rollout came about; None for one that was not scored."""
        ...


@dataclass(frozen=True)
class Comparison:
    """Returns of G groups beside what each was compared with; float64, [G, N, S], or [G, N, 1] where a rollout has one
    return for all its turns.

    value: the returns. counts: bool, True where one takes part. mean, std: of the returns that it was compared with
    (std None: not divided by). size: int64, how many those are. turns: bool [G, N, S], turns that happened and count.
    """

    value: Tensor
    counts: Tensor
    mean: Tensor
    std: Tensor | None
    size: Tensor
    turns: Tensor

    def advantages(self) -> Tensor:
        """Advantages per turn, float64 [G, N, S]; 0 where no turn happened."""
        centred = self.value - self.mean
        if self.std is not None:
            centred = centred / (self.std + EPSILON)
        return centred * self.turns

    def formula(self, group: int, index: int, method: str, scale: Scale) -> AdvantageFormula | None:
        """How the advantages of one rollout came about; None for one that was not scored."""
        counts = self.counts[group, index]
        if not bool(counts.any()):
            return None
        columns = [t.expand(self.value.shape)[group, index].tolist() for t in (self.value, self.mean, self.size)]
        std = [None] * len(counts) if self.std is None else self.std.expand(self.value.shape)[group, index].tolist()
        terms = zip(*columns, std, counts.tolist(), strict=True)
        steps = tuple((AdvantageTerm(v, m, s, int(n)),) for v, m, n, s, there in terms if there)
        return AdvantageFormula(method, "none" if self.std is None else scale, EPSILON, steps)


class AdvantageMethod(ABC):
    """A way to turn rewards into advantages. Subclasses define `name` and `returns`; the rest fits most of them."""

    name: str = ""
    """How the record calls it."""
    compares: str = ""
    """What `returns` gives, and `compared_with`: the others of the comparison; for people who read the formula."""
    compared_with: str = "the {size} rollouts of its group"
    shaping_apart: bool = False
    """Whether shaping decides between equals, so that it may teach where the goal says nothing."""

    @abstractmethod
    def returns(self, batch: TurnRewards) -> tuple[Tensor, Tensor]:
        """What is compared within a group, float64 [G, N, S] or [G, N, 1] (one number for all turns), and where it
        counts, bool of the same shape. Rollouts that are not valid are left out afterwards."""

    def sentence(self, formula: AdvantageFormula) -> str:
        """What a formula compared, for people; it goes into the record with the formula."""
        return comparison(self.compares or f"what {self.name} compares", self.compared_with, formula.scale)

    def compare(self, batch: TurnRewards, scale: Scale) -> Compared:
        """Returns beside their group's mean and what they are divided by."""
        value, counts = self._counted(batch)
        mean, std = moments(value, counts, dim=1)
        if scale == "batch":
            std = moments(value.flatten(), counts.flatten(), dim=0)[1].expand_as(mean)
        elif scale not in ("group", "none"):
            raise ValueError(f'unknown scale "{scale}": group, batch or none')
        size = counts.sum(1, keepdim=True)
        # Whoever has nothing to be compared with is its own mean, whatever rounding made of it.
        mean = torch.where(size > 1, mean, value)
        return Comparison(value, counts, mean, None if scale == "none" else std, size, batch.counted)

    def signal(self, batch: TurnRewards, min_std: float = 0.0) -> Tensor:
        """Which groups can be learned from, bool [G]: the returns differ, with a standard deviation of `min_std` at
        least at some turn."""
        value, counts = self._counted(batch)
        mean, std = moments(value, counts, dim=1)
        differ = ((value - mean).abs() > ROUNDING) & counts
        return (std.flatten(1).amax(1) >= min_std) & differ.flatten(1).any(1)

    def per_token(self, values: np.ndarray, rollout: Rollout) -> np.ndarray:
        """Advantages per turn, float64 [S], as advantages per token, float32 [T]: on every agent token of the turn."""
        return spread(values, rollout, rollout.agent_mask)

    def _counted(self, batch: TurnRewards) -> tuple[Tensor, Tensor]:
        value, counts = self.returns(batch)
        return value, counts & batch.valid[:, :, None]


def spread(values: np.ndarray, rollout: Rollout, where: np.ndarray) -> np.ndarray:
    """Values per turn [S] on the tokens of that turn for which `where` (bool [T]) holds, float32 [T]; 0 elsewhere."""
    out = np.zeros(len(rollout), np.float32)
    chosen = where & (rollout.turn_ids >= 0)
    out[chosen] = values[rollout.turn_ids[chosen]]
    return out


def last_of_turn(rollout: Rollout) -> np.ndarray:
    """True at the last agent token of each turn, bool [T]."""
    out = np.zeros(len(rollout), bool)
    agent = np.flatnonzero(rollout.agent_mask & (rollout.turn_ids >= 0))
    turns = rollout.turn_ids[agent]
    out[agent[np.append(turns[1:] != turns[:-1], True)[: len(agent)]]] = True
    return out


def moments(values: Tensor, present: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Mean and unbiased standard deviation over `dim` of the values that are present; std 0 for fewer than two."""
    count = present.sum(dim, keepdim=True)
    mean = (values * present).sum(dim, keepdim=True) / count.clamp(min=1)
    squares = (((values - mean) * present) ** 2).sum(dim, keepdim=True)
    return mean, (squares / (count - 1).clamp(min=1)).sqrt()
