"""Sequential tests for noisy series, with a stated false-alarm rate. No torch, no numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median

ALARM = -math.log(1e-4)
FALSE_ALARMS = 5e-4
"""Maximum false alarms per step, for normal noise up to a quarter of the level. `tests/rewards/test_sequential.py`
measures the rate. It exceeds the 1e-4 of `ALARM` because the noise is estimated from few steps."""
LEAST_NOISE = 0.01
"""Minimum standard deviation of the noise, as a share of the level."""
LEVEL = 3
"""Number of steps to average for the highest level."""
ERRORS = 2.0
"""Standard errors of a significant fall."""


def fallen_since(series: Sequence[float], fraction: float) -> int | None:
    """Return the index since which a positive series is below a fraction of its highest level, or None if it is not.

    Page's CUSUM: with x the excess of the fall over the limit, in logarithms, and s the standard deviation of the
    noise, the statistic adds x / s - 1 / 2 at each step after the highest level, and never falls below 0. With known
    noise, the mean time between false alarms is at least exp(ALARM) steps (Lorden 1971).
    """
    logs = [math.log(max(x, 1e-12)) for x in series]
    levels = [fmean(logs[max(0, i - LEVEL + 1) : i + 1]) for i in range(len(logs))]
    level, noise = max(levels), max(_noise(logs), LEAST_NOISE)
    statistic, since = 0.0, 0
    for i in range(levels.index(level), len(logs)):
        if statistic == 0.0:
            since = i
        statistic = max(0.0, statistic + (level + math.log(fraction) - logs[i]) / noise - 0.5)
    return since if statistic > ALARM and series[-1] < fraction * max(series) else None


def _noise(values: Sequence[float]) -> float:
    """Estimate the standard deviation of white noise from rising neighbours only, so that a fall is not noise.

    The squared difference has the median 0.455 * 2 * variance.
    """
    squares = [(b - a) ** 2 for a, b in pairwise(values) if b >= a]
    return math.sqrt(median(squares) / (2 * 0.455)) if squares else 0.0


def fell(before: tuple[int, int], after: tuple[int, int]) -> bool:
    """Return whether a rate fell by `ERRORS` standard errors. before, after: successes and trials."""
    (a, n), (b, m) = before, after
    pooled = (a + b) / (n + m)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return a / n - b / m > ERRORS * error > 0
