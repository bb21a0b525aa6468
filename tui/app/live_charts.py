"""The charts of the dashboard for each kind of run, the user's view of one of them, and its curves."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...configs import metric_names as metric
from ...engine.runs.health.headline import RATE_WINDOW, rolling
from ..format import count
from .curves import SMOOTHING, Series
from .live_data import RATES, Kind, Points, Reading, spread_of


@dataclass(frozen=True)
class ChartOf:
    """A chart: its heading and its metrics in drawing order. `*` matches any rest of a name. With `panels`, metrics of
    different units get separate axes."""

    heading: str
    metrics: tuple[str, ...]
    panels: bool = False


_COMMON = (
    ChartOf("Loss", (metric.LOSS,)),
    ChartOf("Gradient norm", (metric.GRAD_NORM,)),
    ChartOf("Tokens", (metric.TOKENS_AGENT, metric.TOKENS_TOTAL), panels=True),
    ChartOf(
        "Seconds per step",
        (metric.STEP_SECONDS, *map(metric.PHASE_SECONDS, ("generate", "environment", "logprobs", "backward"))),
    ),
)
_RFT = (
    ChartOf(
        "Reward of a rollout, mean ± std",
        (
            metric.REWARD_MEAN,
            metric.SUCCESS_TRAIN,
            metric.SUCCESS_GREEDY,
            metric.SUCCESS_SAMPLED,
            metric.REWARD_GREEDY,
            metric.REWARD_SAMPLED,
        ),
    ),
    ChartOf("Components, contribution to the reward", (metric.COMPONENT_SUM.every,)),
    ChartOf("Components, raw, per step", (metric.COMPONENT_RAW.every,), panels=True),
    ChartOf("Components, running mean ± std of the normaliser", (metric.COMPONENT_RUNNING_MEAN.every,), panels=True),
    ChartOf("KL divergence and its target, nats per token", (metric.KL_MEAN, metric.KL_TARGET)),
    ChartOf("Beta", (metric.BETA,)),
    ChartOf("Entropy and clipped share", (metric.ENTROPY, metric.CLIP_FRACTION), panels=True),
    ChartOf("Groups filtered, samples replayed", (metric.FILTERING_RATE, metric.REPLAY_SHARE)),
    ChartOf("Seconds per step: trainer waits, rollouts wait", (metric.TRAINER_IDLE, metric.ROLLOUTS_WAIT)),
    ChartOf("Staleness in steps, rollouts dropped", (metric.STALENESS, metric.ROLLOUTS_DROPPED), panels=True),
    ChartOf(
        "Log-prob mismatch with the servers, nats",
        (metric.LOGPROB_MISMATCH, metric.LOGPROB_MISMATCH_P99, metric.LOGPROB_MISMATCH_MAX),
    ),
    ChartOf("Sampler against trainer", (metric.SAMPLER_KL, metric.SAMPLER_CLIPPED, metric.SAMPLER_RATIO), panels=True),
    *_COMMON,
)
_SFT = (
    ChartOf("Loss and token accuracy", (metric.LOSS, metric.TOKEN_ACCURACY), panels=True),
    ChartOf("Success on held-out tasks", (metric.SUCCESS_GREEDY, metric.SUCCESS_SAMPLED)),
    ChartOf("Entropy", (metric.ENTROPY,)),
    ChartOf("Learning rate", (metric.LEARNING_RATE,)),
    *_COMMON,
)
_ONLINE = (
    ChartOf(
        f"Success, rate over {RATE_WINDOW} requests",
        (metric.ONLINE_SUCCESS, metric.ONLINE_SUCCESS_INITIAL, metric.VALIDATION_EMA, metric.VALIDATION_LIVE),
    ),
    ChartOf(f"Gate and flips, rates over {RATE_WINDOW} requests", (metric.GATE_RATE, metric.FLIP_RATE)),
    ChartOf(f"Confidence of the vote, mean over {RATE_WINDOW} requests", (metric.CONFIDENCE,)),
    ChartOf("KL divergence and its target, nats per token", (metric.KL_MEAN, metric.KL_REVERSE, metric.KL_TARGET)),
    ChartOf("Beta", (metric.BETA,)),
    ChartOf(f"Seconds per answer, mean over {RATE_WINDOW} requests", (metric.LATENCY,)),
    ChartOf("Queued updates and version", (metric.QUEUE_DEPTH, metric.SERVING_VERSION), panels=True),
    ChartOf("Validation change", (metric.VALIDATION_DELTA,)),
    ChartOf("Components, contribution to the reward", (metric.COMPONENT_SUM.every,)),
    *_COMMON[:2],
)
CHARTS: Mapping[Kind, tuple[ChartOf, ...]] = {"rft": _RFT, "sft": _SFT, "online": _ONLINE}

KL = (metric.KL_MEAN, metric.KL_TARGET)
"""Metrics of the small chart next to the components."""
KL_HEADING = "KL, nats per token"
X_AXES = ("step", "time", "tokens")
XAxis = Literal["step", "time", "tokens"]

_LABELS = {
    metric.REWARD_MEAN: "reward",
    metric.SUCCESS_TRAIN: "success",
    metric.SUCCESS_GREEDY: "held-out greedy",
    metric.SUCCESS_SAMPLED: "held-out sampled",
    metric.REWARD_GREEDY: "held-out greedy",
    metric.REWARD_SAMPLED: "held-out sampled",
    metric.ONLINE_SUCCESS: "vote",
    metric.ONLINE_SUCCESS_INITIAL: "first rollout alone",
    metric.VALIDATION_EMA: "validation, published",
    metric.VALIDATION_LIVE: "validation, newest",
    metric.GATE_RATE: "gate open",
    metric.FLIP_RATE: "labels flipped",
    metric.KL_MEAN: "KL",
    metric.KL_REVERSE: "KL of the last update",
    metric.KL_TARGET: "target",
}
MEASURED_AT_TIMES = (
    metric.SUCCESS_GREEDY, metric.SUCCESS_SAMPLED, metric.REWARD_GREEDY, metric.REWARD_SAMPLED,
    metric.VALIDATION_EMA, metric.VALIDATION_LIVE,
)  # fmt: skip
"""Metrics that only few steps have. They are drawn as points without lines."""
_SHARES = (
    metric.ONLINE_SUCCESS, metric.ONLINE_SUCCESS_INITIAL, metric.GATE_RATE, metric.FLIP_RATE,
    metric.VALIDATION_EMA, metric.VALIDATION_LIVE,
)  # fmt: skip
_PREFIXES = (
    metric.COMPONENT_RAW.prefix,
    metric.COMPONENT_SUM.prefix,
    metric.COMPONENT_RUNNING_MEAN.prefix,
    "online/",
    "train/",
    metric.PHASE_SECONDS.prefix,
)


@dataclass(frozen=True)
class ChartView:
    """The user's view of a chart: its metrics, window, smoothing and axes."""

    kind: Kind = "rft"
    at: int = 0
    chosen: tuple[str, ...] = ()
    window: tuple[float, float] | None = None
    """The visible steps. None: all."""
    smoothing: int = 0
    log: bool = False
    x: int = 0

    @property
    def chart(self) -> ChartOf:
        if self.chosen:
            heading = self.chosen[0] if len(self.chosen) == 1 else count(len(self.chosen), "metric")
            return ChartOf(heading, self.chosen, panels=True)
        charts = CHARTS[self.kind]
        return charts[self.at % len(charts)]

    @property
    def axis(self) -> XAxis:
        return X_AXES[self.x % len(X_AXES)]  # type: ignore[return-value]

    @property
    def weight(self) -> float:
        return SMOOTHING[self.smoothing % len(SMOOTHING)]

    @property
    def heading(self) -> str:
        notes = [f"smoothed {self.weight:g}"] if self.weight else []
        notes += ["log scale"] if self.log else []
        return "  ".join([self.chart.heading, *notes])

    def next_chart(self, names: Iterable[str]) -> ChartView:
        names = list(names)
        charts = CHARTS[self.kind]
        for by in range(1, len(charts) + 1):
            index = (self.at + by) % len(charts)
            if metrics_of(charts[index].metrics, names):
                return replace(self, at=index, chosen=())
        return replace(self, chosen=())

    def zoomed(self, factor: float, first: float, last: float) -> ChartView:
        """Scale the window by `factor`. The first zoom keeps the newest step in place, later ones the middle. A
        window has at least four steps."""
        a, b = self.window or (first, last)
        half = (b - a) * factor / 2
        if half * 2 >= last - first:
            return replace(self, window=None)
        middle = min(max((a + b) / 2 if self.window else last - half, first + half), last - half)
        half = max(half, 2.0)
        return replace(self, window=(middle - half, middle + half))

    def panned(self, by: int, first: float, last: float) -> ChartView:
        if self.window is None:
            return self
        a, b = self.window
        shift = max(first - a, min(by * (b - a) / 4, last - b))
        return replace(self, window=(a + shift, b + shift))


def metrics_of(patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the recorded metrics that match the patterns of a chart."""
    names = list(names)
    found: list[str] = []
    for pattern in patterns:
        if pattern.endswith("*"):
            found += [n for n in names if n.startswith(pattern[:-1])]
        elif pattern in names:
            found.append(pattern)
    return found


@dataclass(frozen=True)
class Along:
    """Maps steps to x: time since the start, or tokens so far. `name` is the unit. With `whole`, all ticks are
    integers."""

    name: str = "step"
    whole: bool = True
    steps: Sequence[float] = ()
    values: Sequence[float] = ()

    def __call__(self, step: float) -> float:
        """Return the x of a step, interpolated between known steps and clamped outside them."""
        if not self.steps:
            return float(step)
        index = bisect_left(self.steps, step)
        if index == 0 or index == len(self.steps):
            return self.values[min(index, len(self.steps) - 1)]
        (a, b), (low, high) = self.steps[index - 1 : index + 1], self.values[index - 1 : index + 1]
        return low + (high - low) * (step - a) / (b - a)


def along(axis: XAxis, kind: Kind, times: Sequence[tuple[int, float]], tokens: Points, started: float) -> Along:
    """Return the x axis in a suitable unit, or in steps if nothing else is known."""
    if axis == "time" and times:
        seconds = [max(0.0, time - (started or times[0][1])) for _, time in times]
        size, unit = next((s, u) for s, u in ((86400, "days"), (3600, "hours"), (60, "minutes"), (0, "seconds"))
                          if seconds[-1] >= 2 * s)  # fmt: skip
        return Along(unit, False, [step for step, _ in times], [s / (size or 1) for s in seconds])
    finite = [(step, value) for step, value in tokens if math.isfinite(value)]
    if axis == "tokens" and finite:
        return Along("tokens", True, [step for step, _ in finite], [value for _, value in finite])
    return Along("request" if kind == "online" else "step")


def series_of(
    names: Iterable[str], curves: Mapping[str, Points], latest: Mapping[str, float], x: Along
) -> list[Series]:
    """Return the curves of these metrics: rates over their window, means with their spread."""
    series = []
    for name in names:
        points = curves.get(name, [])
        spread = dict(curves.get(spread_of(name), []))
        if name in RATES:
            points = rolling(points, RATE_WINDOW)
        series.append(
            Series(
                label(name),
                [x(step) for step, _ in points],
                [value for _, value in points],
                [spread.get(step, 0.0) for step, _ in points] if spread else None,
                dots=name in MEASURED_AT_TIMES,
                last=latest.get(name),
                share=is_share(name),
            )
        )
    return series


def kl_series(reading: Reading, curves: Mapping[str, Points], x: Along) -> list[Series]:
    """Return the KL and its target, with the tolerance as a band."""
    series = series_of([name for name in KL if curves.get(name)], curves, reading.latest, x)
    tolerance = reading.latest.get(metric.KL_TOLERANCE)
    return [
        replace(s, spread=[tolerance] * len(s.ys)) if s.name == "target" and tolerance is not None else s
        for s in series
    ]


def is_share(name: str) -> bool:
    """Return whether a metric is a share, so that its axis runs from 0 to 1."""
    return name in _SHARES or (metric.meaning(name).startswith("share") and name != metric.CLIP_FRACTION)


def label(name: str) -> str:
    """Return the name of a metric in a legend."""
    return _LABELS.get(name) or next((name.removeprefix(p) for p in _PREFIXES if name.startswith(p)), name)
