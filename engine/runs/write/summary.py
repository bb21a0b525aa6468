"""The few numbers that a list of runs shows of each, small enough to sit in the status file."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

from ....configs import metric_names as metric

RATE_WINDOW = 100
"""Requests over which the outcome of one request (0 or 1) becomes a rate."""
RATES = (metric.ONLINE_SUCCESS,)
NAMES = (metric.SUCCESS_TRAIN, metric.SUCCESS_GREEDY, metric.SUCCESS_SAMPLED, metric.REWARD_MEAN, *RATES)
POINTS = 32


class Summary:
    """For each of `NAMES` the last value and a curve of at most `POINTS` means over the whole run, with their steps.

    `RATES` are means over the last `RATE_WINDOW` values, as value and as curve.
    """

    def __init__(self) -> None:
        self._series: dict[str, _Curve] = {}

    def add(self, step: int, values: Mapping[str, float]) -> None:
        for name in NAMES:
            value = values.get(name)
            if value is not None and value == value:
                if name not in self._series:
                    self._series[name] = _Curve(RATE_WINDOW if name in RATES else 1)
                self._series[name].add(step, value)

    def to_json(self) -> dict[str, dict[str, object]]:
        """Return `{name: {"last": x, "curve": [..], "steps": [..]}}`: the means and the last step of each."""
        return {
            name: {
                "last": curve.last,
                "curve": [round(mean, 4) for mean, _ in curve.points()],
                "steps": [step for _, step in curve.points()],
            }
            for name, curve in self._series.items()
        }


def rolling(points: Sequence[tuple[int, float]], window: int) -> list[tuple[int, float]]:
    """Return at each step the mean of the values of the last `window` steps: a rate, if each value is 0 or 1."""
    kept: deque[tuple[int, float]] = deque()
    total, out = 0.0, []
    for step, value in points:
        if math.isfinite(value):
            kept.append((step, value))
            total += value
        while kept and kept[0][0] <= step - window:
            total -= kept.popleft()[1]
        out.append((step, total / len(kept) if kept else math.nan))
    return out


class _Curve:
    """Means of equal spans. If there are too many, neighbours merge and the span doubles."""

    def __init__(self, window: int) -> None:
        self._newest: deque[float] = deque(maxlen=window)
        self.span = 1
        self.done: list[tuple[float, int]] = []
        self.total = 0.0
        self.count = 0
        self.step = 0

    @property
    def last(self) -> float:
        return sum(self._newest) / len(self._newest)

    def add(self, step: int, value: float) -> None:
        self._newest.append(value)
        self.total += self.last if self._newest.maxlen != 1 else value
        self.count += 1
        self.step = step
        if self.count == self.span:
            self.done.append((self.total / self.count, step))
            self.total, self.count = 0.0, 0
            if len(self.done) == POINTS:
                pairs = zip(self.done[::2], self.done[1::2], strict=True)
                self.done = [((a + b) / 2, step) for (a, _), (b, step) in pairs]
                self.span *= 2

    def points(self) -> list[tuple[float, int]]:
        return [*self.done, (self.total / self.count, self.step)] if self.count else list(self.done)
