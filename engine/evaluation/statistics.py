"""Intervals and tests over tasks. The unit is the task: samples of one task are not independent evidence."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import mul
from statistics import NormalDist, fmean, pvariance, stdev

LEVEL = 0.95
"""Confidence level of every interval."""
POWER = 0.8
"""The probability that `tasks_needed` tasks show the effect."""
DRAWS = 10_000
"""Random sign vectors in a permutation test whose exact distribution is too expensive."""
NORMAL = NormalDist()
ROUNDING = 1e-20
"""A variance of rates, or a squared difference, below this is the rounding error of equal values."""
_LARGEST_EXACT = 20_000
"""The exact distribution is computed up to this sum of absolute differences, in units."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its `LEVEL` confidence interval. n: tasks. For one task, the bounds of a mean are NaN."""

    estimate: float
    low: float
    high: float
    n: int


@lru_cache(maxsize=1024)
def t_quantile(p: float, df: int) -> float:
    """Return the quantile of Student's t distribution with `df` >= 1 degrees of freedom, for p in [0.5, 1)."""
    low, high = 0.0, 1.0
    while _t_cdf(high, df) < p:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, df) < p else (low, middle)
    return high


def _t_cdf(t: float, df: int) -> float:
    """Abramowitz and Stegun 26.7.3 and 26.7.4: a finite series for integer degrees of freedom, t >= 0."""
    angle = math.atan(t / math.sqrt(df))
    sine, cosine = math.sin(angle), math.cos(angle)
    term = cosine if df % 2 else 1.0
    total = 0.0 if df == 1 else term
    for k in range(3 if df % 2 else 2, df - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    central = 2 / math.pi * (angle + sine * total) if df % 2 else sine * total
    return 0.5 + central / 2


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean over tasks with Student's t interval. values: one mean per task."""
    n = len(values)
    mean = fmean(values) if n else math.nan
    if n < 2:
        return Interval(mean, math.nan, math.nan, n)
    half = t_quantile(0.5 + LEVEL / 2, n - 1) * stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def rate_interval(rates: Sequence[float]) -> Interval:
    """Return the success rate over tasks with Wilson's interval for the effective number of samples.

    rates: the success rate of each task, in [0, 1]. The samples of a task are correlated, so all samples count as
    `p (1 - p) / Var(mean)` independent ones (Dean and Pagano, "Evaluating confidence interval methods for binomial
    proportions in clustered surveys", 2015).
    """
    n = len(rates)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, 0)
    p = fmean(rates)
    spread = pvariance(rates, p)
    size = n * p * (1 - p) / spread if spread > ROUNDING else float(n)
    estimated = any(0 < rate < 1 for rate in rates)  # with one sample per task, p determines the variance
    z = t_quantile(0.5 + LEVEL / 2, n - 1) if estimated and n > 1 else NORMAL.inv_cdf(0.5 + LEVEL / 2)
    centre = (p + z * z / (2 * size)) / (1 + z * z / size)
    half = z / (1 + z * z / size) * math.sqrt(p * (1 - p) / size + z * z / (4 * size * size))
    return Interval(p, max(0.0, centre - half), min(1.0, centre + half), n)


def bounded_interval(values: Sequence[float], low: float, high: float) -> Interval:
    """Return the mean of independent values in [low, high], of any distribution, with a credible interval.

    Uses the Bayesian bootstrap (Rubin, 1981) with a third of an observation at each bound, the neutral prior of a rate
    (Kerman, 2011). The interval stays wide if a few samples all have the same value, where Student's has no width. The
    order of the values does not matter.
    """
    if not values:
        return Interval(math.nan, math.nan, math.nan, 0)
    return _bootstrap(tuple(sorted(values)), min([low, *values]), max([high, *values]))


@lru_cache(maxsize=1024)
def _bootstrap(values: tuple[float, ...], low: float, high: float) -> Interval:
    mean, n = fmean(values), len(values)
    means = sorted(sum(map(mul, weights, (*values, low, high))) for weights in _bootstrap_weights(n))
    tail = round(len(means) * (1 - LEVEL) / 2)
    return Interval(mean, min(mean, means[tail]), max(mean, means[-1 - tail]), n)


@lru_cache(maxsize=4)
def _bootstrap_weights(n: int) -> list[tuple[float, ...]]:
    """Draw weights for n values and two bounds, always the same draws for one n."""
    source = random.Random(n)
    drawn = []
    for _ in range(2000):
        weights = [*(source.expovariate(1.0) for _ in range(n)), *(source.gammavariate(1 / 3, 1.0) for _ in "ab")]
        total = math.fsum(weights)
        drawn.append(tuple(w / total for w in weights))
    return drawn


def difference_interval(first: Interval, second: Interval) -> Interval:
    """Return second minus first for independent samples, from their intervals (Newcombe, 1998, method 10)."""
    estimate = second.estimate - first.estimate
    down = math.hypot(second.estimate - second.low, first.high - first.estimate)
    up = math.hypot(second.high - second.estimate, first.estimate - first.low)
    return Interval(estimate, estimate - down, estimate + up, min(first.n, second.n))


def sign_flip_p(differences: Sequence[float], unit: float | None = None) -> float:
    """Return the two-sided p-value of paired differences by the sign-flip permutation test (Fisher, 1935).

    The test is exact if all differences are multiples of `unit`, such as 1 / samples for success rates, and their sum
    is not too large. Otherwise it uses `DRAWS` random sign vectors, always the same ones.
    """
    kept = [d for d in differences if d * d > ROUNDING]
    if not kept:
        return 1.0
    if unit is not None:
        steps = [round(d / unit) for d in kept]
        exact = all(math.isclose(s * unit, d, abs_tol=1e-9) for s, d in zip(steps, kept, strict=True))
        if exact and sum(map(abs, steps)) <= _LARGEST_EXACT:
            return _exact_p(steps)
    observed = abs(math.fsum(kept)) * (1 - 1e-12)
    source = random.Random(0)
    extreme = 0
    for _ in range(DRAWS):
        bits = source.getrandbits(len(kept))
        total = math.fsum(d if bits >> i & 1 else -d for i, d in enumerate(kept))
        extreme += abs(total) >= observed
    return (extreme + 1) / (DRAWS + 1)


def _exact_p(steps: Sequence[int]) -> float:
    """Return the share of sign vectors whose sum is at least as far from 0 (counts are digits of one large integer)."""
    sizes = [abs(s) for s in steps]
    total, width = sum(sizes), len(sizes) // 8 + 1
    counts = 1
    for size in sizes:
        counts += counts << (8 * width * size)
    digits = counts.to_bytes(width * (total + 1), "little")
    observed = abs(sum(steps))
    extreme = sum(
        int.from_bytes(digits[width * up : width * (up + 1)], "little")
        for up in range(total + 1)
        if abs(2 * up - total) >= observed
    )
    return extreme / 2 ** len(sizes)


def tasks_needed(spread: float, effect: float) -> int:
    """Return how many tasks a paired comparison needs to show a difference of `effect` with probability `POWER`.

    spread: standard deviation of the differences over tasks.
    """
    reach = NORMAL.inv_cdf(0.5 + LEVEL / 2) + NORMAL.inv_cdf(POWER)
    return max(2, math.ceil((reach * spread / effect) ** 2))


def pass_at_k(n: int, c: int, k: int) -> float:
    """Estimate, unbiased, that at least one of k samples is right, given c right of n (arXiv 2107.03374)."""
    return 1 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Estimate, unbiased, that all of k samples are right, given c right of n (tau-bench, arXiv 2406.12045)."""
    return math.comb(c, k) / math.comb(n, k)
