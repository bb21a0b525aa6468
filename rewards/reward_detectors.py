"""Detect rewards that teach something other than the task. No torch, no numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ..configs.sections.rewards import COMPONENTS, DiagnosisConfig
from . import batches as need
from .batch_statistics import (
    advantage_shares,
    covariances,
    halves,
    mean_total,
    spread_of,
    success_of,
    total_of,
)
from .batches import GOALS, Batch, RolloutSummary
from .detectors import Finding, detector, ids_of

MANY = 512
"""Rollouts without a score other than 0. With 95 % confidence, fewer than 0.6 % of all rollouts then have one."""


def _of_the_return(rollout: RolloutSummary) -> RolloutSummary:
    """Return the rollout without components that only decide between peers."""
    if not rollout.apart:
        return rollout
    left = {name: value for name, value in rollout.contributions.items() if name not in rollout.apart}
    return RolloutSummary(rollout.id, rollout.group, math.fsum(left.values()), left, goals=rollout.goals)


@detector(need.COMPONENTS)
def advantage_share(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find components other than the task that dominate the advantage, so that the policy follows them."""
    parts = [b.fact("covariances", lambda b: covariances(map(_of_the_return, b.rollouts))) for b in batches]
    shares = advantage_shares(parts) if len(batches) >= min(3, limits.window) else {}
    goals = GOALS.union(
        *(b.fact("goals", lambda b: frozenset().union(*(r.goals for r in b.rollouts))) for b in batches)
    )
    found = []
    for name, share in shares.items():
        if name in goals or share <= limits.advantage_share:
            continue
        strongest = sorted(batches[-1].rollouts, key=lambda r, n=name: -abs(r.contributions.get(n, 0.0)))
        size = f"{share:.0%}" if share <= 1 else "all (others work against it)"
        message = (
            f"{name} outweighs the task: lower w_{name}. It accounts for {size} of the advantage's variance over "
            f"{len(batches)} steps (limit {limits.advantage_share:.0%})."
        )
        found.append(Finding(message, share, limits.advantage_share, ids_of(strongest), name, began=batches[0].step))
    return found


@detector(need.REWARDS)
def dead_component(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a reward function that gave 0 to every rollout of a window, while others gave something."""
    n = sum(len(b.rollouts) for b in batches)
    if len(batches) < limits.window or n < MANY:
        return []
    latest = batches[-1].rollouts
    names = frozenset().union(*(r.goals for r in latest)) - GOALS
    names = names or frozenset().union(*(r.contributions for r in latest)).difference(COMPONENTS)  # of another trainer
    fired = frozenset().union(*(b.fact("fired", _fired) for b in batches))
    message = (
        "{} never differs from 0, so it teaches nothing: does it recognise what it should reward? This may be right "
        "for a penalty. It gave 0 to all {:,} rollouts of {} steps."
    )
    return [
        Finding(message.format(name, n, len(batches)), 1.0, 1.0, subject=name, severity="hint", began=batches[0].step)
        for name in sorted(names - fired if fired else ())
    ]


def _fired(batch: Batch) -> frozenset[str]:
    return frozenset(name for r in batch.rollouts for name, value in r.contributions.items() if value)


@detector(need.REWARDS, need.SUCCESS)
def reward_without_success(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a mean reward that rises over the window without task success: the policy collects another component."""
    if len(batches) < limits.window:
        return []
    before, after = halves(batches)
    rise = mean_total(after) - mean_total(before)
    start, end = success_of(before), success_of(after)
    in_stds = rise / spread_of(batches)
    if in_stds <= limits.reward_rise or end - start > limits.success_rise or end > 0.99:
        return []
    names = sorted({n for b in batches for r in b.rollouts for n in r.contributions})
    rises = {n: mean_component(after, n) - mean_component(before, n) for n in names}
    component = max(rises, key=lambda n: rises[n], default="")
    mostly = f" {component} accounts for {rises[component] / rise:.0%} of the rise." if component else ""
    wrong = sorted((r for r in batches[-1].rollouts if not r.correct), key=lambda r: -total_of(r))
    message = (
        f"reward rises, success does not: over {len(batches)} steps the mean reward rose by {rise:.3g} and success "
        f"went from {start:.0%} to {end:.0%}.{mostly}"
    )
    return [Finding(message, in_stds, limits.reward_rise, ids_of(wrong), component or "reward", began=after[0].step)]


def mean_component(batches: Sequence[Batch], name: str) -> float:
    """Return a component's mean contribution."""
    return fmean(fmean(r.contributions.get(name, 0.0) for r in b.rollouts) for b in batches)
