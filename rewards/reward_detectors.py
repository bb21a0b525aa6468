"""Detect rewards that teach something other than the task, and advantages that contradict the rewards. No torch, no
numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from ..configs.sections.rewards import COMPONENTS, DiagnosisConfig
from . import batches as need
from .batch_statistics import (
    SAME,
    advantage_shares,
    covariances,
    deviation,
    groups_of,
    halves,
    mean_total,
    rollouts_of,
    spread_of,
    success_of,
    total_of,
)
from .batches import GOALS, Batch, RolloutSummary
from .detectors import Finding, detector, ids_of
from .record_detectors import DISTINCT, ENOUGH, ORDERED, correlation_within, goal, newest

MANY = 512
"""Rollouts without a score other than 0. With 95 % confidence, fewer than 0.6 % of all rollouts then have one."""
TINY, HUGE = 0.1, 30.0
"""Limits of the RMS of advantages: times the smaller, and the larger, of 1 and the rewards' deviation within groups."""
APART = 0.1
"""Difference between a rollout's advantage and the one in the loss, as a share of the RMS of advantages."""
CENTRE = 0.5
"""Mean of the advantages, as a share of their RMS. It should be near 0."""
CERTAIN = 0.9
"""Correlation of reward and log-prob within groups. Right answers may be likely, but a real reward varies otherwise."""


def _of_the_return(rollout: RolloutSummary) -> RolloutSummary:
    """Return the rollout without components that only decide between peers."""
    if not rollout.apart:
        return rollout
    left = {name: value for name, value in rollout.contributions.items() if name not in rollout.apart}
    return replace(rollout, total=math.fsum(left.values()), contributions=left)


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


@detector(need.REWARDS, need.ADVANTAGES)
def advantage_order(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find advantages that follow neither the task reward nor the whole reward within groups."""
    latest = newest(batches)
    compared = [g for g in groups_of(rollouts_of(latest)) if any(abs(r.advantage or 0.0) > SAME for r in g)]
    forms = [(x, scaled) for x in (goal, total_of) for scaled in (False, True)]  # advantages may be scaled by group
    found = [correlation_within(compared, x, lambda r: r.advantage or 0.0, scaled=scaled) for x, scaled in forms]
    correlation = max((c for c in found if c is not None), default=ORDERED)
    if correlation >= ORDERED:
        return []
    what = "the sign of the advantage is wrong" if correlation < -ORDERED else "advantages come from other rollouts"
    message = (
        f"{what}: better rollouts in a group do not get higher advantages. The correlation of reward and advantage "
        f"within groups is {correlation:.2f}, and it should be near 1."
    )
    return [Finding(message, correlation, ORDERED, ids_of(batches[-1].rollouts), began=latest[0].step)]


@detector(need.ADVANTAGES, need.USED, reports="advantage_order")
def used_advantages(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find rollouts whose advantage in the loss is not their own."""
    latest = newest(batches)
    rollouts = rollouts_of(latest)
    scale = math.sqrt(fmean((r.advantage or 0.0) ** 2 for r in rollouts))
    other = [r for r in rollouts if abs((r.used or 0.0) - (r.advantage or 0.0)) > APART * scale]
    share = len(other) / len(rollouts)
    if len(rollouts) < ENOUGH or scale <= SAME or share <= DISTINCT:
        return []
    message = (
        "the loss does not use the rollouts' own advantages: its rows or tokens are out of order. This affects "
        f"{len(other):,} of {len(rollouts):,} rollouts, such as {other[0].used:.2g} for {other[0].advantage:.2g}."
    )
    return [Finding(message, share, DISTINCT, ids_of(other), "loss", "failure", latest[0].step)]


@detector(need.REWARDS, need.ADVANTAGES)
def advantage_scale(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find advantages that are 0, tiny or huge although rewards differ. Their RMS should be 1, or the rewards'
    deviation."""
    mixed = [g for g in groups_of(rollouts_of(newest(batches))) if max(map(goal, g)) - min(map(goal, g)) > 0.1]
    advantages = [r.advantage for r in rollouts_of(newest(batches)) if r.advantage is not None]
    if len(mixed) < ENOUGH or not advantages:
        return []
    size = math.sqrt(fmean(a * a for a in advantages))
    differ = math.sqrt(fmean(deviation(map(goal, g)) ** 2 for g in mixed))
    low, high = TINY * min(1.0, differ), HUGE * max(1.0, differ)
    if low < size < high:
        return _off_centre(batches)
    problem = (
        "small, so the policy learns little: are rollouts compared with themselves (a group of one), or advantages "
        "divided twice?"
        if size <= low
        else "large: are they divided by a standard deviation near 0, such as that of one rollout?"
    )
    message = (
        f"advantages are too {problem} Their RMS is {size:.2g}, and the rewards differ by {differ:.2g} in "
        f"{len(mixed):,} groups."
    )
    severity, began = "warning" if size else "failure", newest(batches)[0].step
    limit = low if size <= low else high
    return [Finding(message, size, limit, ids_of(mixed[0]), severity=severity, began=began)]


def _off_centre(batches: Sequence[Batch]) -> list[Finding]:
    """Find advantages whose mean is far from 0: the baseline is not the mean of the same rewards."""
    latest = newest(batches)
    kept = [r for r in rollouts_of(latest) if r.cut or not r.masked]  # a setting may mask cut rollouts
    rollouts = [r for r in kept if abs(r.advantage or 0.0) > SAME]
    if len(rollouts) < 4 * ENOUGH or 2 * len(kept) <= len(rollouts_of(latest)):  # a wrong mask is not the baseline
        return []
    mean = fmean(r.advantage or 0.0 for r in rollouts)
    share = abs(mean) / math.sqrt(fmean((r.advantage or 0.0) ** 2 for r in rollouts))
    if share <= CENTRE:
        return []
    message = (
        f"the baseline does not fit the rewards: nearly all advantages are {'above' if mean > 0 else 'below'} 0. "
        f"Subtract the mean of the same rewards. The mean advantage of {len(rollouts):,} rollouts is {mean:.2g}, "
        f"{share:.0%} of their RMS."
    )
    return [Finding(message, share, CENTRE, ids_of(rollouts), "mean", began=latest[0].step)]


@detector(need.REWARDS, need.SURPRISE)
def paid_certainty(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a graded reward that follows the probability that the policy assigns to its texts."""
    latest = newest(batches)
    groups = groups_of(rollouts_of(latest))
    correlation = correlation_within(groups, goal, lambda r: -(r.surprise or 0.0))
    rollouts = rollouts_of(latest)
    levels = {round(goal(r), 6) for r in rollouts}
    if correlation is None or correlation <= CERTAIN or len(levels) < len({(r.task, r.text) for r in rollouts}) / 2:
        return []
    message = (
        "the reward follows the policy's own certainty, so it pays for likely texts: reward right answers. The "
        f"correlation of reward and log-prob within groups is {correlation:.2f}."
    )
    return [Finding(message, correlation, CERTAIN, ids_of(latest[-1].rollouts), "certainty", began=latest[0].step)]
