"""Running moments, repeated actions, and the reward metrics of a batch. No torch here."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..configs import metric_names as metric
from ..envs.trajectory import Trajectory
from .batch_statistics import advantage_shares, covariances
from .batches import RolloutSummary
from .breakdown import RewardBreakdown


@dataclass(frozen=True)
class Moments:
    """The number of values, their mean, and the sum of squared deviations from it."""

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0

    @property
    def std(self) -> float:
        return math.sqrt(self.m2 / self.count) if self.count else 0.0


def moments(values: Iterable[float]) -> Moments:
    """Compute the moments of values in two passes."""
    seen = list(values)
    mean = math.fsum(seen) / max(len(seen), 1)
    return Moments(len(seen), mean, math.fsum((v - mean) ** 2 for v in seen))


def merge(a: Moments, b: Moments) -> Moments:
    """Combine the moments of two streams."""
    if not a.count or not b.count:
        return a if a.count else b
    count = a.count + b.count
    delta = b.mean - a.mean
    return Moments(count, a.mean + delta * (b.count / count), a.m2 + b.m2 + delta * delta * (a.count * b.count / count))


UNPARSABLE = "(unparsable)"
UNKNOWN_TOOL = "(unknown tool)"


def action_distribution(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Return the frequency of each action among all steps of a batch. The values sum to 1, or there are none.

    Uncalled declared tools have the value 0. All names that a model made up share one entry, so that the environments
    bound the number of entries.
    """
    counts: Counter[str] = Counter()
    steps = 0
    for trajectory in trajectories:
        names = {t.name for t in trajectory.tools}
        for name in names:
            counts[name] += 0
        for step in trajectory.steps:
            if step.is_text and not names:
                continue  # without tools, text is not a choice
            steps += 1
            if step.action is None:
                counts[UNPARSABLE] += 1
            else:
                counts[step.action if not names or step.action in names else UNKNOWN_TOOL] += 1
    return {name: counts[name] / steps for name in sorted(counts)} if steps else {}


def batch_metrics(
    trajectories: Sequence[Trajectory],
    breakdowns: Sequence[RewardBreakdown],
    groups: Sequence[Hashable],
    weights: Mapping[str, float] | None = None,
) -> dict[str, float | Mapping[str, float]]:
    """Compute the reward metrics of scored rollouts, from one batch or several.

    Raw and normalised values are over the steps where a component is defined. groups: the group of each rollout.
    weights: components to include even if no step has them.
    """
    rows = [[(name, value) for step in b.steps for name, value in step.components.items()] for b in breakdowns]
    count, weights = max(len(rows), 1), dict(weights or {})
    for name, value in (found for row in rows for found in row):
        weights.setdefault(name, value.weight or 0.0)
    metrics: dict[str, float | Mapping[str, float]] = {}
    sums: dict[str, list[float]] = {}
    for name, weight in weights.items():
        columns = [[value for other, value in row if other == name] for row in rows]
        raw = moments(value.raw or 0.0 for column in columns for value in column)
        normalized = moments(value.normalized or 0.0 for column in columns for value in column)
        sums[name] = [math.fsum(value.contribution or 0.0 for value in column) for column in columns]
        metrics |= {
            metric.COMPONENT_RAW(name): raw.mean,
            metric.COMPONENT_RAW_STD(name): raw.std,
            metric.COMPONENT_NORMALIZED(name): normalized.mean,
            metric.COMPONENT_NORMALIZED_STD(name): normalized.std,
            metric.COMPONENT_WEIGHT(name): weight,
            metric.COMPONENT_CONTRIBUTION(name): normalized.mean * weight,
            metric.COMPONENT_RAW_SUM(name): math.fsum(v.raw or 0.0 for c in columns for v in c) / count,
            metric.COMPONENT_NORMALIZED_SUM(name): math.fsum(v.normalized or 0.0 for c in columns for v in c) / count,
            metric.COMPONENT_SUM(name): math.fsum(sums[name]) / count,
        }
    totals = moments(b.total or 0.0 for b in breakdowns)
    parts = [dict(zip(sums, row, strict=True)) for row in zip(*sums.values(), strict=True)]
    rollouts = [RolloutSummary("", str(g), math.fsum(p.values()), p) for g, p in zip(groups, parts, strict=False)]
    shares = advantage_shares([covariances(rollouts)])
    return {
        **metrics,
        **{metric.COMPONENT_ADVANTAGE_SHARE(name): share for name, share in shares.items()},
        metric.REWARD_MEAN: totals.mean,
        metric.REWARD_STD: math.sqrt(totals.m2 / max(totals.count - 1, 1)),
        metric.PENALTIES: sum(len(b.penalties) for b in breakdowns) / max(1, len(breakdowns)),
        metric.ACTION_SHARE.mapping: action_distribution(trajectories),
    }


def flat(values: Mapping[str, float | Mapping[str, float]]) -> dict[str, float]:
    """Flatten `{"behavior/action_distribution": {"A": 1}}` to `{"behavior/action_distribution/A": 1}`."""
    out: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            out.update({f"{name}/{key}": float(v) for key, v in value.items()})
        else:
            out[name] = float(value)
    return out


WINDOW = 3
"""An action is repeated if it occurred within this many steps before it."""
REPETITION = -1.0
"""R_coherence of a step that repeats an action, before normalisation and weight."""


def repeated(keys: Sequence[str]) -> list[bool]:
    """Return whether each step of a trajectory repeats an action. keys: the canonical action of each step."""
    return [key in keys[max(0, i - WINDOW) : i] for i, key in enumerate(keys)]
