"""The formulas of TRL from rewards to advantages. A reward that does not apply is NaN, as there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .settings import Settings

FLOOR = 1e-4
"""Added to a standard deviation before it divides."""
ROUNDING = 4e-7
"""About what a float32 reward loses in a difference, relative to its size."""


@dataclass(frozen=True)
class Scored:
    """The rollouts that were scored together. rewards: their weighted sums. advantages: theirs. slack: what float32
    may add to each advantage. zero: how many have a group without spread, at least and at most."""

    rewards: list[float]
    advantages: list[float]
    slack: list[float]
    zero: tuple[int, int]


def nan_mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are known; NaN if none is."""
    known = [v for v in values if not math.isnan(v)]
    return math.fsum(known) / len(known) if known else math.nan


def nan_std(values: Sequence[float]) -> float:
    """Return the standard deviation with n − 1; NaN for fewer than two values."""
    known = [v for v in values if not math.isnan(v)]
    if len(known) < 2:
        return math.nan
    mean = math.fsum(known) / len(known)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in known) / (len(known) - 1))


def weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted sum of the values that apply; NaN if none does."""
    known = [v * w for v, w in zip(values, weights, strict=True) if not math.isnan(v)]
    return math.fsum(known) if known else math.nan


def score(values: Sequence[Sequence[float]], weights: Sequence[float], settings: Settings) -> Scored:
    """Return rewards and advantages of rollouts. values: [N, K], those of K functions, group after group."""
    rewards = [weighted(row, weights) for row in values]
    if settings.multi_objective_aggregation == "normalize_then_sum":
        normal = _normalized(values, settings.num_generations)
        compared = [weighted(row, weights) for row in normal]
        means = [nan_mean(compared)] * len(compared)
        stds = [nan_std(compared)] * len(compared)
        size = [1.0 + max((abs(v) for v in row if not math.isnan(v)), default=0.0) for row in normal]
        inner = max((abs(v) for row in values for v in row if not math.isnan(v)), default=0.0)
        spread = min((s for s in _spreads(values, settings.num_generations) if s > FLOOR), default=FLOOR)
        size = [s * (1.0 + inner / spread) for s in size]
    else:
        compared, n = rewards, settings.num_generations
        groups = [compared[at : at + n] for at in range(0, len(compared), n)]
        means = [nan_mean(group) for group in groups for _ in group]
        stds = [nan_std(group) for group in groups for _ in group]
        if settings.scale_rewards == "batch":
            stds = [nan_std(compared)] * len(compared)
        size = [max((abs(v) for v in group if not math.isnan(v)), default=0.0) for group in groups for _ in group]
    scaled = settings.scale_rewards != "none" or settings.multi_objective_aggregation == "normalize_then_sum"
    divisors = [std + FLOOR if scaled else 1.0 for std in stds]
    raw = [(c - m) / d for c, m, d in zip(compared, means, divisors, strict=True)]
    advantages = [0.0 if math.isnan(a) else a for a in raw]
    slack = [
        ROUNDING * s / (d if not math.isnan(d) else 1.0) + 1e-5 * (1 + abs(a))
        for s, d, a in zip(size, divisors, advantages, strict=True)
    ]
    close = sum(std <= 1e-8 + ROUNDING * (1 + z) for std, z in zip(stds, size, strict=True))
    exact = settings.num_generations & (settings.num_generations - 1) == 0  # then the mean of equal values is exact
    return Scored(rewards, advantages, slack, (sum(std == 0 for std in stds) if exact else 0, close))


def _spreads(values: Sequence[Sequence[float]], n: int) -> list[float]:
    columns = list(zip(*values, strict=True))
    return [nan_std(column[at : at + n]) for column in columns for at in range(0, len(column), n)]


def _normalized(values: Sequence[Sequence[float]], n: int) -> list[list[float]]:
    """Normalise each function's values in each group."""
    columns: list[list[float]] = []
    for column in zip(*values, strict=True):
        normal: list[float] = []
        for at in range(0, len(column), n):
            group = column[at : at + n]
            mean, std = nan_mean(group), nan_std(group)
            normal += [(v - mean) / (std + FLOOR) for v in group]
        columns.append(normal)
    return [list(row) for row in zip(*columns, strict=True)]
