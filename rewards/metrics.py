"""What a batch's rewards look like in numbers. No torch here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..configs import metric_names as metric
from ..envs.trajectory import Trajectory
from .moments import Moments

UNPARSABLE = "(unparsable)"
UNKNOWN_TOOL = "(unknown tool)"


def action_distribution(trajectories: Iterable[Trajectory]) -> dict[str, float]:
    """Frequency of each action among all steps of a batch; the values add up to 1, or there are none.

    Declared tools that were not called are there with 0. Names that a model made up share one entry, so that the
    number of entries is bounded by the environments.
    """
    counts: Counter[str] = Counter()
    steps = 0
    for trajectory in trajectories:
        names = {t.name for t in trajectory.tools}
        for name in names:
            counts[name] += 0
        for step in trajectory.steps:
            steps += 1
            if step.action is None:
                counts[UNPARSABLE] += 1
            else:
                counts[step.action if not names or step.action in names else UNKNOWN_TOOL] += 1
    return {name: counts[name] / steps for name in sorted(counts)} if steps else {}


@dataclass(frozen=True)
class RolloutSums:
    """Means over rollouts of a component's sums over the rollout's steps: normalised × weight = contribution, and the
    contributions of all components add up to `rewards/total/mean`."""

    raw: float
    normalized: float
    contribution: float


def component_metrics(
    name: str, raw: Moments, normalized: Moments, weight: float, running: Moments, sums: RolloutSums
) -> dict[str, float]:
    """The metrics of one component. `raw` and `normalized` are over the steps where it is defined."""
    return {
        metric.COMPONENT_RAW(name): raw.mean,
        metric.COMPONENT_RAW_STD(name): raw.std,
        metric.COMPONENT_NORMALIZED(name): normalized.mean,
        metric.COMPONENT_NORMALIZED_STD(name): normalized.std,
        metric.COMPONENT_WEIGHT(name): weight,
        metric.COMPONENT_CONTRIBUTION(name): normalized.mean * weight,
        metric.COMPONENT_RAW_SUM(name): sums.raw,
        metric.COMPONENT_NORMALIZED_SUM(name): sums.normalized,
        metric.COMPONENT_SUM(name): sums.contribution,
        metric.COMPONENT_RUNNING_MEAN(name): running.mean,
        metric.COMPONENT_RUNNING_STD(name): running.std,
    }


def flat(values: Mapping[str, float | Mapping[str, float]]) -> dict[str, float]:
    """One level: `{"behavior/action_distribution": {"A": 1}}` becomes `{"behavior/action_distribution/A": 1}`."""
    out: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            out.update({f"{name}/{key}": float(v) for key, v in value.items()})
        else:
            out[name] = float(value)
    return out
