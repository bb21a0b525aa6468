"""Find the training step at which a behaviour became common."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .statistics import LEVEL

ODDS = 20.0
"""The record decides from these odds of a change against no change ("strong evidence": Kass and Raftery, 1995)."""


@dataclass(frozen=True)
class Change:
    """A change in the share of rollouts that show a behaviour.

    step: the first step with the new share; low, high: its 95 % credible interval. seen: the first step that shows the
    behaviour at all. before, after: the shares. odds: the odds of one change against no change.
    """

    step: int
    low: int
    high: int
    seen: int | None
    before: float
    after: float
    odds: float


def change_point(counts: Sequence[tuple[int, int, int]]) -> Change | None:
    """Return the most likely single change of the share, or None for fewer than two steps.

    counts: (step, rollouts, rollouts with the behaviour), by step. The model has one share before and one after an
    unknown step, each with a uniform prior, and all steps are equally likely (Carlin, Gelfand and Smith, "Hierarchical
    Bayesian analysis of changepoint problems", 1992). The posterior is exact for independent rollouts.
    """
    counts = [c for c in counts if c[1] > 0]
    if len(counts) < 2:
        return None
    rollouts, shown = sum(n for _, n, _ in counts), sum(k for *_, k in counts)
    n = k = 0
    splits: list[tuple[float, int, int]] = []  # log evidence, and the counts n and k before the split
    for _, more, more_shown in counts[:-1]:
        n, k = n + more, k + more_shown
        splits.append((_evidence(n, k) + _evidence(rollouts - n, shown - k), n, k))
    best = max(range(len(splits)), key=lambda i: splits[i][0])
    weights = [math.exp(e - splits[best][0]) for e, *_ in splits]
    total, reached = sum(weights), 0.0
    low = high = best
    order = sorted(range(len(weights)), key=weights.__getitem__, reverse=True)
    for i in order:
        low, high, reached = min(low, i), max(high, i), reached + weights[i] / total
        if reached >= LEVEL:
            break
    _, n, k = splits[best]
    odds = math.exp(min(700.0, splits[best][0] + math.log(total / len(splits)) - _evidence(rollouts, shown)))
    first = [step for step, *_ in counts]
    return Change(
        step=first[best + 1],
        low=first[low + 1],
        high=first[high + 1],
        seen=next((step for step, _, shown in counts if shown), None),
        before=k / n,
        after=(shown - k) / (rollouts - n),
        odds=odds,
    )


def _evidence(n: int, k: int) -> float:
    """Return the log probability of one sequence with k of n, under a uniform prior on the share."""
    return math.lgamma(k + 1) + math.lgamma(n - k + 1) - math.lgamma(n + 2)


def first_common(steps: Sequence[int], share_at: Callable[[int], float], common: float) -> int | None:
    """Return the first of `steps` whose share is at least `common`, or None.

    Bisects, assuming that the behaviour stays once it is common: evaluates ⌈log₂(n + 1)⌉ of the n shares.
    """
    first = bisect_left(steps, True, key=lambda step: share_at(step) >= common)
    return steps[first] if first < len(steps) else None
