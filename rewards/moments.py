"""Count, mean and squared deviations of a stream, merged exactly over batches and processes. Plain floats, no torch.

Welford, "Note on a method for calculating corrected sums of squares and products" (1962). Chan, Golub and LeVeque,
"Updating formulae and a pairwise algorithm for computing sample variances" (1979).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Moments:
    """Number of values so far, their mean, and the sum of squared deviations from it."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @property
    def variance(self) -> float:
        """Population variance, 0 before the first value."""
        return self.m2 / self.count if self.count else 0.0

    @property
    def std(self) -> float:
        """Population standard deviation, 0 before the first value."""
        return math.sqrt(self.variance)

    def to_json(self) -> list[float]:
        """Return `[count, mean, m2]`. Floats survive JSON bit for bit."""
        return [self.count, self.mean, self.m2]

    @classmethod
    def from_json(cls, data: Iterable[float]) -> Moments:
        count, mean, m2 = data
        return cls(int(count), float(mean), float(m2))


def moments(values: Iterable[float]) -> Moments:
    """Compute the moments of values in two passes."""
    seen = list(values)
    mean = math.fsum(seen) / max(len(seen), 1)
    return Moments(len(seen), mean, math.fsum((v - mean) ** 2 for v in seen))


def merge(a: Moments, b: Moments) -> Moments:
    """Return the moments of both streams together."""
    if not a.count or not b.count:
        return a if a.count else b
    count = a.count + b.count
    delta = b.mean - a.mean
    return Moments(
        count,
        a.mean + delta * (b.count / count),
        a.m2 + b.m2 + delta * delta * (a.count * b.count / count),
    )
