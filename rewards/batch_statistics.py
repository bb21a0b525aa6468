"""Statistics of the batches of a run: rewards, success and spread of some steps, and sequential tests for noisy series,
with a stated false-alarm rate. No torch, no numpy."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

from .batches import Batch, HeldOut, RolloutSummary

SAME = 1e-9
"""Rewards that differ by less count as equal."""
ALARM = -math.log(1e-4)
"""With normal noise up to a quarter of the level, at most 5e-4 of the steps raise a false alarm
(`tests/rewards/test_sequential.py`): more than 1e-4, because the noise is estimated from few steps."""
LEVEL = 3
"""Number of steps to average for the highest level."""
ERRORS = 2.0
"""Standard errors of a significant fall."""
_VARIANCE = ""
"""The key for the sum of A_i^2. No component has this name."""

HELD_OUT_ERRORS = 4.0
"""Standard errors of a difference to or between evaluations. The false-alarm rate is 6 in 100,000 evaluations."""
GAP = 0.2
"""Minimum relevant difference in success."""


def halves(batches: Sequence[Batch]) -> tuple[Sequence[Batch], Sequence[Batch]]:
    """Return the earlier and the later half."""
    return batches[: len(batches) // 2], batches[len(batches) // 2 :]


def rollouts_of(batches: Iterable[Batch]) -> list[RolloutSummary]:
    """Return the rollouts of all batches."""
    return [r for b in batches for r in b.rollouts]


def length_of(rollouts: Iterable[RolloutSummary]) -> tuple[str, Callable[[RolloutSummary], float]]:
    """Return the finest unit in which the length of all rollouts is known, and the function that returns it."""
    found = list(rollouts)
    texts = any(r.characters for r in found)
    unit = "tokens" if all(r.tokens for r in found) else "characters" if texts else "turns"
    return unit, lambda r: getattr(r, unit) or 0


def total_of(rollout: RolloutSummary) -> float:
    """Return the reward, or NaN if it was not recorded."""
    return math.nan if rollout.total is None else rollout.total


def groups_of(rollouts: Iterable[RolloutSummary]) -> list[list[RolloutSummary]]:
    """Return the groups that have several rollouts."""
    groups: dict[str, list[RolloutSummary]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.group].append(rollout)
    return [g for g in groups.values() if len(g) > 1]


def advantage_shares(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return each component's share of the variance of the advantage. The shares sum to 1, or there are none. parts:
    the `covariances` of each step.

    c_i is a component's sum over rollout i minus its group's mean, and A_i the sum of c_i over components (GRPO's
    advantage before scaling): share = sum_i c_i A_i / sum_i A_i^2. It is negative if a component opposes the rest.
    """
    sums: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, value in part.items():
            sums[name] += value
    variance = sums.pop(_VARIANCE, 0.0)
    return {name: value / variance for name, value in sums.items()} if variance > SAME else {}


def covariances(rollouts: Iterable[RolloutSummary]) -> dict[str, float]:
    """Sum c_i A_i over rollouts for each component, and A_i^2."""
    sums: dict[str, float] = defaultdict(float)
    for group in groups_of(rollouts):
        size = len(group)
        mean = math.fsum(total_of(r) for r in group) / size
        means = {n: math.fsum(r.contributions.get(n, 0.0) for r in group) / size for n in group[0].contributions}
        for rollout in group:
            advantage = total_of(rollout) - mean
            sums[_VARIANCE] += advantage * advantage
            for name, value in means.items():
                sums[name] += (rollout.contributions.get(name, 0.0) - value) * advantage
    return sums


def flat_at(size: int, groups: Sequence[Sequence[RolloutSummary]]) -> float:
    """Estimate the share of groups of `size` rollouts that would be all right or all wrong; 1 if unknown.

    Models the success rates of tasks as beta distributed, with the mean and the pairwise agreement of `groups`.
    """
    verdicts = [[r.correct for r in g if r.correct is not None] for g in groups]
    pairs = [(sum(v), len(v)) for v in verdicts if len(v) > 1]
    p = sum(k for k, _ in pairs) / max(sum(n for _, n in pairs), 1)
    if not 0 < p < 1:
        return 1.0
    agree = fmean((k * (k - 1) + (n - k) * (n - k - 1)) / (n * (n - 1)) for k, n in pairs)
    correlation = min(max(1 - (1 - agree) / (2 * p * (1 - p)), 1e-3), 1 - 1e-3)
    both = 1 / correlation - 1
    return sum(math.prod((side * both + i) / (both + i) for i in range(size)) for side in (p, 1 - p))


def spread_of(batches: Sequence[Batch]) -> float:
    """Return the standard deviation of the reward within a step, averaged over steps."""
    return max(fmean(b.fact("spread", lambda b: deviation(map(total_of, b.rollouts))) for b in batches), SAME)


def deviation(values: Iterable[float]) -> float:
    """Return the population standard deviation."""
    found = list(values)
    mean = math.fsum(found) / len(found)
    return math.sqrt(math.fsum((x - mean) ** 2 for x in found) / len(found))


def mean_total(batches: Sequence[Batch]) -> float:
    """Return the mean reward of the batches."""
    return fmean(b.fact("total", lambda b: fmean(map(total_of, b.rollouts))) for b in batches)


def success_of(batches: Sequence[Batch]) -> float:
    """Return the share of correct rollouts."""
    return fmean(
        b.fact("success", lambda b: fmean(r.correct for r in b.rollouts if r.correct is not None)) for b in batches
    )


def fallen_since(series: Sequence[float], fraction: float) -> int | None:
    """Return the index since which a positive series is below a fraction of its highest level, or None if it is not.

    Page's CUSUM: with x the excess of the fall over the limit, in logarithms, and s the standard deviation of the
    noise (at least 0.01), the statistic adds x / s - 1 / 2 at each step after the highest level, and never falls below
    0. With known noise, the mean time between false alarms is at least exp(ALARM) steps (Lorden 1971).
    """
    logs = [math.log(max(x, 1e-12)) for x in series]
    levels = [fmean(logs[max(0, i - LEVEL + 1) : i + 1]) for i in range(len(logs))]
    level, noise = max(levels), max(_noise(logs), 0.01)
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


def fell(before: tuple[int, int], after: tuple[int, int], errors: float = ERRORS) -> bool:
    """Return whether a rate fell by this many standard errors. before, after: successes and trials."""
    (a, n), (b, m) = before, after
    pooled = (a + b) / (n + m)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    return a / n - b / m > errors * error > 0


def held_out_fell(batches: Sequence[Batch]) -> tuple[float, float] | None:
    """Return the best and the latest success on held-out tasks if it fell significantly, else None."""
    known = [b.held_out for b in batches if b.held_out is not None and b.held_out.success is not None]
    if not known or known[-1] is not batches[-1].held_out:
        return None
    best, latest = max(known, key=lambda e: e.success or 0.0), known[-1]
    start, end = best.success or 0.0, latest.success or 0.0
    error = math.sqrt(variance_of(best) + variance_of(latest))
    return (start, end) if start - end > max(GAP, HELD_OUT_ERRORS * error) else None


def variance_of(evaluation: HeldOut) -> float:
    """Return the variance of a success rate, with one success and one failure added (Agresti and Coull)."""
    n = len(evaluation.rollouts) + 2
    p = ((evaluation.success or 0.0) * (n - 2) + 1) / n
    return p * (1 - p) / n
