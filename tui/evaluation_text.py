"""Evaluations and their comparison as text, for `grpo-tui eval` and for the app."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..engine.evaluation.results import Comparison, Difference, Evaluation
from ..engine.evaluation.statistics import Interval
from .format import MINUS, count


def powers(samples: int) -> list[int]:
    """Return the values of k for which pass@k is shown."""
    return sorted({samples, *(2**i for i in range(samples.bit_length()) if 2**i <= samples)})


def summary(results: Sequence[Evaluation]) -> dict[str, list[str]]:
    """Return the results of evaluations by name, with one text per evaluation."""
    rows: dict[str, list[str]] = {"tasks × samples": [f"{len(r.tasks)} × {r.spec.samples}" for r in results]}
    if all(r.success is not None for r in results):
        rows["success"] = [_share(r.success) for r in results]
        for k in powers(max(r.spec.samples for r in results))[1:]:
            both = [r.pass_k(k) for r in results]
            rows[f"pass@{k}"] = ["–" if b is None else _share(b[0]) for b in both]
            rows[f"pass^{k}"] = ["–" if b is None else _share(b[1]) for b in both]
    rows["reward"] = [_mean(r.reward) for r in results]
    for kind in ("components", "cost"):
        for name in dict.fromkeys(n for r in results for n in getattr(r, kind)):
            found = [getattr(r, kind).get(name) for r in results]
            rows[f"  {name}" if kind == "components" else name] = ["–" if i is None else _mean(i) for i in found]
    return rows


def difference(c: Comparison) -> list[str]:
    """Format a paired comparison as lines."""
    lines = [f"{c.second.name} against {c.first.name}, paired over {count(c.reward.interval.n, 'task')}"]
    if c.success is not None:
        lines.append(f"  success {_change(c.success, points=True)}")
        lines.append(f"  gained {count(len(c.gained), 'task')}, lost {len(c.lost)}")
    lines.append(f"  reward  {_change(c.reward, points=False)}")
    best = c.success or c.reward
    if best.needed:
        needed = ", ".join(f"{count:,} for {points}" for points, count in best.needed.items())
        scale = "points" if c.success is not None else "hundredths"
        lines.append(f"  tasks needed (80 % power): {needed} {scale}")
    return lines


def _share(interval: Interval | None) -> str:
    return "–" if interval is None else _shown(interval, ".1%")


def _mean(interval: Interval) -> str:
    return _shown(interval, ".3f").replace("-", MINUS)


def _change(difference: Difference, *, points: bool) -> str:
    """Format a difference with its interval and p-value, in percentage points if `points`."""
    i, p = difference.interval, difference.p
    text = _shown(i, "+.1f", 100, " points") if points else _shown(i, "+.3f")
    return f"{text}, {f'p = {p:.3f}' if p >= 0.001 else 'p < 0.001'}".replace("-", MINUS)


def _shown(interval: Interval, form: str, scale: int = 1, unit: str = "") -> str:
    """Format an estimate with its interval, if it has one."""
    estimate, low, high = (format(scale * n, form) for n in (interval.estimate, interval.low, interval.high))
    return f"{estimate}{unit}" if math.isnan(interval.low) else f"{estimate}{unit} ({low} to {high})"
