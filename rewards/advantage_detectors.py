"""Detect advantages that contradict the rewards, and rewards for the policy's own certainty. No torch, no numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from ..configs.sections.rewards import DiagnosisConfig
from . import batches as need
from .batch_statistics import SAME, deviation, groups_of, rollouts_of, total_of
from .batches import Batch
from .detectors import Finding, detector, ids_of
from .record_detectors import DISTINCT, ENOUGH, ORDERED, correlation_within, goal, newest

TINY, HUGE = 0.1, 30.0
"""Limits of the RMS of advantages: times the smaller, and the larger, of 1 and the rewards' deviation within groups."""
APART = 0.1
"""Difference between a rollout's advantage and the one in the loss, as a share of the RMS of advantages."""
CENTRE = 0.5
"""Mean of the advantages, as a share of their RMS. It should be near 0."""
CERTAIN = 0.9
"""Correlation of reward and log-prob within groups. Right answers may be likely, but a real reward varies otherwise."""


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
