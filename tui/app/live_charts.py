"""Which charts the dashboard offers for each kind of run, how one of them is being looked at, and its curves."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ...engine.runs.summary import RATE_WINDOW, rolling
from .curves import SMOOTHING, Series
from .live_data import RATES, Kind, Points, Reading, spread_of


@dataclass(frozen=True)
class ChartOf:
    """A chart: its heading and its metrics, in the order of drawing; a `*` stands for all metrics that begin so.

    `panels`: the metrics are of different units, and are drawn one under the other where their scales differ.
    """

    heading: str
    metrics: tuple[str, ...]
    panels: bool = False


_COMMON = (
    ChartOf("Loss", ("train/loss",)),
    ChartOf("Gradient norm", ("train/grad_norm",)),
    ChartOf("Tokens", ("tokens/agent", "tokens/total"), panels=True),
    ChartOf("Seconds a step", ("time/step", "time/generate", "time/environment", "time/logprobs", "time/backward")),
)
_RFT = (
    ChartOf(
        "Reward of a rollout, mean ± std, and success",
        ("rewards/total/mean", "success/train", "success/eval_greedy", "success/eval_sampled"),
    ),
    ChartOf("Components, their part of a rollout's reward", ("rewards/per_trajectory/*",)),
    ChartOf("Components, raw, a step", ("rewards/raw/*",), panels=True),
    ChartOf("Components, running mean ± std of the normaliser", ("rewards/running_mean/*",), panels=True),
    ChartOf("KL divergence and its target, nats per token", ("kl/mean", "kl/target")),
    ChartOf("Beta", ("kl/beta",)),
    ChartOf("Entropy and clipped share", ("train/entropy", "train/clip_fraction"), panels=True),
    ChartOf("Groups filtered, samples replayed", ("grpo/filtering_rate", "grpo/replay_share")),
    ChartOf("Seconds a step: trainer waits, rollouts wait", ("trainer/idle", "rollout/wait")),
    ChartOf("Steps that rollouts are behind", ("rollout/staleness", "rollout/dropped"), panels=True),
    ChartOf(
        "Log-probs of servers and trainer apart, nats",
        ("rollout/logprob_mismatch", "rollout/logprob_mismatch_p99", "rollout/logprob_mismatch_max"),
    ),
    *_COMMON,
)
_SFT = (
    ChartOf("Loss and token accuracy", ("train/loss", "train/token_accuracy"), panels=True),
    ChartOf("Success on held-out tasks", ("success/eval_greedy", "success/eval_sampled")),
    ChartOf("Entropy", ("train/entropy",)),
    ChartOf("Learning rate", ("train/learning_rate",)),
    *_COMMON,
)
_ONLINE = (
    ChartOf(
        f"Success, rate over {RATE_WINDOW} requests",
        ("online/success", "online/success_initial", "online/validation_ema", "online/validation_live"),
    ),
    ChartOf(f"Gate and flips, rates over {RATE_WINDOW} requests", ("online/gate_rate", "online/flip_rate")),
    ChartOf(f"Confidence of the vote, mean over {RATE_WINDOW} requests", ("online/confidence",)),
    ChartOf("KL divergence and its target, nats per token", ("kl/mean", "kl/reverse", "kl/target")),
    ChartOf("Beta", ("kl/beta",)),
    ChartOf(f"Seconds to an answer, mean over {RATE_WINDOW} requests", ("online/latency_s",)),
    ChartOf("Waiting updates and version", ("online/queue_depth", "online/serving_version"), panels=True),
    ChartOf("Change of validation", ("online/delta_validation",)),
    ChartOf("Components, their part of a rollout's reward", ("rewards/per_trajectory/*",)),
    *_COMMON[:2],
)
CHARTS: Mapping[Kind, tuple[ChartOf, ...]] = {"rft": _RFT, "sft": _SFT, "online": _ONLINE}

KL = ("kl/mean", "kl/target")
"""Metrics of the small chart beside the components."""
KL_HEADING = "KL, nats per token"
X_AXES = ("step", "time", "tokens")
XAxis = Literal["step", "time", "tokens"]
LEAST_WINDOW = 4.0
"""Steps that are shown at the least."""

_LABELS = {
    "rewards/total/mean": "reward",
    "success/train": "success",
    "success/eval_greedy": "held-out greedy",
    "success/eval_sampled": "held-out sampled",
    "online/success": "vote",
    "online/success_initial": "first rollout alone",
    "online/validation_ema": "validation, published",
    "online/validation_live": "validation, newest",
    "online/gate_rate": "gate open",
    "online/flip_rate": "labels flipped",
    "kl/mean": "KL",
    "kl/reverse": "KL of the last update",
    "kl/target": "target",
}
_PREFIXES = ("rewards/raw/", "rewards/per_trajectory/", "rewards/running_mean/", "online/", "train/", "time/")


@dataclass(frozen=True)
class ChartView:
    """How a person looks at the chart: which one (or which metrics), which steps, how smooth, on which axes."""

    kind: Kind = "rft"
    at: int = 0
    chosen: tuple[str, ...] = ()
    window: tuple[float, float] | None = None
    """The steps that are shown; None: all."""
    smoothing: int = 0
    log: bool = False
    x: int = 0

    @property
    def chart(self) -> ChartOf:
        """The chart that is shown."""
        if self.chosen:
            return ChartOf(", ".join(self.chosen), self.chosen, panels=True)
        charts = CHARTS[self.kind]
        return charts[self.at % len(charts)]

    @property
    def axis(self) -> XAxis:
        """What runs along x."""
        return X_AXES[self.x % len(X_AXES)]  # type: ignore[return-value]

    @property
    def weight(self) -> float:
        """Weight of the moving average."""
        return SMOOTHING[self.smoothing % len(SMOOTHING)]

    @property
    def heading(self) -> str:
        """The chart's heading with what was changed about it."""
        notes = [f"smoothed {self.weight:g}"] if self.weight else []
        notes += ["log scale"] if self.log else []
        return "  ".join([self.chart.heading, *notes])

    def next_chart(self, names: Iterable[str]) -> ChartView:
        """The next chart that has something to show."""
        names = list(names)
        charts = CHARTS[self.kind]
        for by in range(1, len(charts) + 1):
            at = (self.at + by) % len(charts)
            if metrics_of(charts[at].metrics, names):
                return replace(self, at=at, chosen=())
        return replace(self, chosen=())

    def zoomed(self, factor: float, first: float, last: float) -> ChartView:
        """`factor` times as many steps of `first` … `last`: the newest at first, then around the middle."""
        a, b = self.window or (first, last)
        half = (b - a) * factor / 2
        if half * 2 >= last - first:
            return replace(self, window=None)
        middle = min(max((a + b) / 2 if self.window else last - half, first + half), last - half)
        half = max(half, LEAST_WINDOW / 2)
        return replace(self, window=(middle - half, middle + half))

    def panned(self, by: int, first: float, last: float) -> ChartView:
        """A quarter of the window earlier or later; the ends hold."""
        if self.window is None:
            return self
        a, b = self.window
        shift = max(first - a, min(by * (b - a) / 4, last - b))
        return replace(self, window=(a + shift, b + shift))


def metrics_of(wanted: Iterable[str], names: Iterable[str]) -> list[str]:
    """The recorded metrics that a chart asks for."""
    names = list(names)
    found: list[str] = []
    for pattern in wanted:
        if pattern.endswith("*"):
            found += [n for n in names if n.startswith(pattern[:-1])]
        elif pattern in names:
            found.append(pattern)
    return found


@dataclass(frozen=True)
class Along:
    """Turns steps into what runs along x: seconds since the run began, or tokens so far, by the steps that are known.

    `name` is that of the axis with its unit; `whole`: only whole numbers have a meaning.
    """

    name: str = "step"
    whole: bool = True
    steps: Sequence[float] = ()
    values: Sequence[float] = ()

    def __call__(self, step: float) -> float:
        """Where a step stands; between known steps in proportion, outside them at the nearest."""
        if not self.steps:
            return float(step)
        at = bisect_left(self.steps, step)
        if at == 0 or at == len(self.steps):
            return self.values[min(at, len(self.steps) - 1)]
        (a, b), (low, high) = self.steps[at - 1 : at + 1], self.values[at - 1 : at + 1]
        return low + (high - low) * (step - a) / (b - a)


def along(axis: XAxis, kind: Kind, times: Sequence[tuple[int, float]], tokens: Points, began: float) -> Along:
    """The axis of x, in a unit that fits; steps where nothing else is known."""
    if axis == "time" and times:
        seconds = [max(0.0, time - (began or times[0][1])) for _, time in times]
        size, unit = next((s, u) for s, u in ((86400, "days"), (3600, "hours"), (60, "minutes"), (0, "seconds"))
                          if seconds[-1] >= 2 * s)  # fmt: skip
        return Along(unit, False, [step for step, _ in times], [s / (size or 1) for s in seconds])
    finite = [(step, value) for step, value in tokens if math.isfinite(value)]
    if axis == "tokens" and finite:
        return Along("tokens", True, [step for step, _ in finite], [value for _, value in finite])
    return Along("request" if kind == "online" else "step")


def series_of(
    names: Iterable[str], curves: Mapping[str, Points], latest: Mapping[str, float], x: Along | None = None
) -> list[Series]:
    """What a chart draws of these metrics: rates over their window, means with their spread."""
    x = x or Along()
    made = []
    for name in names:
        points = curves.get(name, [])
        spread = dict(curves.get(spread_of(name), []))
        if name in RATES:
            points = rolling(points, RATE_WINDOW)
        made.append(
            Series(
                label(name),
                [x(step) for step, _ in points],
                [value for _, value in points],
                [spread.get(step, 0.0) for step, _ in points] if spread else None,
                dots=name.startswith(("success/eval", "online/validation")),
                last=latest.get(name),
            )
        )
    return made


def kl_series(reading: Reading, curves: Mapping[str, Points], x: Along | None = None) -> list[Series]:
    """KL, and its target with the tolerance as a band."""
    made = series_of([name for name in KL if curves.get(name)], curves, reading.latest, x)
    tolerance = reading.latest.get("kl/tolerance")
    return [
        replace(s, spread=[tolerance] * len(s.ys)) if s.name == "target" and tolerance is not None else s for s in made
    ]


def label(name: str) -> str:
    """A metric's name for a legend."""
    if name in _LABELS:
        return _LABELS[name]
    return next((name.removeprefix(prefix) for prefix in _PREFIXES if name.startswith(prefix)), name)
