"""The one-line summary of a run in every list of runs: its reward, its success, and their curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....configs import metric_names as metric
from ..control.status import number
from ..types import RunInfo
from ..write.summary import NAMES, POINTS, RATE_WINDOW, RATES, rolling

if TYPE_CHECKING:  # a list of runs whose status files say enough opens no record, and need not load what reads one
    from ..read.reader import RunReader

REWARD = metric.REWARD_MEAN
SUCCESS = (metric.SUCCESS_GREEDY, *RATES, metric.SUCCESS_TRAIN)
"""Where the success of a run is taken from: the first that was recorded."""

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Headline:
    """`reward` is that of the last step. `success` is that of the last evaluation, else over the last `RATE_WINDOW`
    requests, else of the last step. `curves`: (step, mean) by metric."""

    values: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Points] = field(default_factory=dict)

    @property
    def reward(self) -> float | None:
        return self.values.get(REWARD)

    @property
    def success(self) -> float | None:
        return next((self.values[name] for name in SUCCESS if name in self.values), None)


def of_status(info: RunInfo) -> Headline | None:
    """Read the run's status file, where its writer keeps a summary. Return None when the record has to be read."""
    summary = info.facts.get("summary")
    if not isinstance(summary, dict) or not (summary or info.ended):
        return None
    values: dict[str, float] = {}
    curves: dict[str, Points] = {}
    for name in NAMES:
        said = summary.get(name)
        if said is None:
            continue
        if not isinstance(said, dict) or not isinstance(said.get("steps"), list):
            return None  # written by an older version, which kept no steps and took one request for a rate
        last, curve = number(said.get("last")), said.get("curve")
        if last is not None:
            values[name] = last
        pairs = zip(map(number, said["steps"]), map(number, curve if isinstance(curve, list) else ()), strict=False)
        curves[name] = [(step, value) for step, value in pairs if step is not None and value is not None]
    return Headline(values, curves)


def of_record(reader: RunReader) -> Headline:
    """Return the headline from the record itself; of a damaged record, from its readable part."""
    values, curves = {}, {}
    for name in NAMES:
        points = reader.metrics.points(name, max_points=POINTS)
        if not points:
            continue
        points = rolling(points, RATE_WINDOW) if name in RATES else points
        curves[name] = [(float(step), value) for step, value in points]
        last = int(curves[name][-1][0])
        newest = reader.metrics.points(name, after_step=last - (RATE_WINDOW if name in RATES else 1))
        finite = [value for _, value in newest if number(value) is not None]
        if finite:
            values[name] = sum(finite) / len(finite)
    return Headline(values, curves)
