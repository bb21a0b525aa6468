"""The numbers that a list of runs shows for each run: reward, success, and their curves.

A writer keeps a `Summary` in its status file. Viewers read the summary, or the record if there is none.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ....configs import metric_names as metric
from ....configs.plain_data import from_plain
from ..types import RunInfo

if TYPE_CHECKING:  # a list of runs with complete status files opens no record, so it need not load the reader
    from ..read.reader import RunReader

RATE_WINDOW = 100
"""The number of requests over which single outcomes (0 or 1) become a rate."""
RATES = (metric.ONLINE_SUCCESS,)
INTERVAL = (metric.SUCCESS_LOW, metric.SUCCESS_HIGH)
EVALUATED = (metric.SUCCESS_GREEDY, metric.SUCCESS_SAMPLED)
NAMES = (metric.SUCCESS_TRAIN, *EVALUATED, *INTERVAL, metric.REWARD_MEAN, *RATES)
POINTS = 32
REWARD = metric.REWARD_MEAN
SUCCESS = (*EVALUATED, *RATES, metric.SUCCESS_TRAIN)
"""The metrics for the success of a run. The first recorded one is used."""

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Headline:
    """The headline of a run. `reward`: of the last step. `success`: of the last evaluation, else of the last
    `RATE_WINDOW` requests, else of the last step. `curves`: (step, mean) by metric."""

    values: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Points] = field(default_factory=dict)

    @property
    def reward(self) -> float | None:
        return self.values.get(REWARD)

    @property
    def success(self) -> float | None:
        return next((self.values[name] for name in SUCCESS if name in self.values), None)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `success`, if it comes from an evaluation."""
        low, high = (self.values.get(name) for name in INTERVAL)
        return None if low is None or high is None else (low, high)


@dataclass(frozen=True)
class _Series:
    """One number of a summary: its last value, and its means up to certain steps."""

    last: float
    curve: tuple[float, ...]
    steps: tuple[int, ...]


def of_status(info: RunInfo) -> Headline | None:
    """Read the headline from the writer's summary in the status file. Return None if only the record has it."""
    summary = info.facts.get("summary")
    if not isinstance(summary, dict) or not (summary or info.ended):
        return None
    try:
        return _headline(summary)
    except (TypeError, ValueError):
        return None


def of_record(reader: RunReader) -> Headline:
    """Read the headline from the record, or from the readable part of a damaged record."""
    summary = Summary()
    for name in NAMES:
        for step, value in reader.metrics.points(name):
            summary.add(step, {name: value})
    return _headline(summary.to_json())


def _headline(summary: Mapping[str, Any]) -> Headline:
    found = {name: from_plain(_Series, summary[name], strict=True) for name in NAMES if name in summary}
    curves = {name: list(zip(map(float, s.steps), s.curve, strict=True)) for name, s in found.items()}
    return Headline({name: series.last for name, series in found.items()}, curves)


class Summary:
    """For each of `NAMES`, the last value and a curve of at most `POINTS` means over the whole run, with their steps.

    Both values and curves of `RATES` are means over the last `RATE_WINDOW` values.
    """

    def __init__(self) -> None:
        self._series: dict[str, _Curve] = {}

    def add(self, step: int, values: Mapping[str, float]) -> None:
        for name in NAMES:
            value = values.get(name)
            if value is not None and math.isfinite(value):
                if name not in self._series:
                    self._series[name] = _Curve(RATE_WINDOW if name in RATES else 1)
                self._series[name].add(step, value)

    def to_json(self) -> dict[str, dict[str, object]]:
        """Return `{name: {"last": x, "curve": [..], "steps": [..]}}`: the means, and the last step of each mean."""
        return {
            name: {
                "last": curve.last,
                "curve": [round(mean, 4) for mean, _ in curve.points()],
                "steps": [step for _, step in curve.points()],
            }
            for name, curve in self._series.items()
        }


def rolling(points: Sequence[tuple[int, float]], window: int) -> list[tuple[int, float]]:
    """Return for each step the mean of the last `window` values, which is a rate if the values are 0 or 1."""
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
    """Means over equal spans. If there are too many, neighbours merge and the span doubles."""

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
