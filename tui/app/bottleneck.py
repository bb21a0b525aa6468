"""Who waits for whom, where rollouts are made on servers beside the trainer."""

from __future__ import annotations

from collections.abc import Mapping

from ...configs import metric_names as metric

WORTH_SAYING = 0.1
"""Share of a step that somebody has to wait before it is a bottleneck."""


def bottleneck(latest: Mapping[str, float]) -> str:
    """One sentence on which side is the slower one; empty where rollouts are not made on servers."""
    idle, wait, step = (latest.get(name) for name in (metric.TRAINER_IDLE, metric.ROLLOUTS_WAIT, metric.STEP_SECONDS))
    if idle is None or wait is None or not step:
        return ""
    if idle >= wait and idle > WORTH_SAYING * step:
        share = min(idle / step, 1.0)
        return f"the trainer waits {share:.0%} of a step for rollouts: more servers, or a larger max_staleness"
    if wait > WORTH_SAYING * step:
        return f"rollouts were ready {wait:.1f} s early: the trainer is the slower side"
    return "rollouts and trainer keep pace"
