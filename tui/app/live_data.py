"""What the dashboard shows, read from the record in one go, and the curves that its charts draw."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...engine.runs.errors import RecordError
from ...engine.runs.reader import RunReader
from ...engine.runs.types import Event, RunInfo
from .widgets.action_bars import PREFIX
from .widgets.chart import Series

Points = list[tuple[int, float]]

CHARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Reward mean ± std, task success",
        ("rewards/total/mean", "success/train", "success/eval_greedy", "success/eval_sampled", "online/success"),
    ),
    ("Components, raw", ("rewards/raw/*",)),
    ("Components, contribution to the reward", ("rewards/contribution/*",)),
    ("Components, running mean ± std", ("rewards/running_mean/*",)),
    ("KL divergence and its target, nats per token", ("kl/mean", "kl/reverse", "kl/target", "online/mean_kl")),
    ("Beta", ("kl/beta", "online/current_beta")),
    ("Loss", ("train/loss",)),
    ("Entropy and clipped share", ("train/entropy", "train/clip_fraction")),
    ("Gradient norm", ("train/grad_norm",)),
    ("Groups filtered, samples replayed", ("grpo/filtering_rate", "grpo/replay_share")),
    ("Tokens and turns", ("tokens/agent", "tokens/total")),
    ("Seconds a step", ("time/step", "time/generate", "time/environment", "time/logprobs", "time/backward")),
    ("Online: gate, flips, validation", ("online/gate_rate", "online/flip_rate", "online/delta_validation")),
)
"""Heading and metrics of each chart; a `*` stands for all metrics that begin so."""

KL = ("kl/mean", "online/mean_kl", "kl/target")
POINTS = 400
"""Points of a curve that are read: about two a cell of a wide terminal."""
FOLLOW_SECONDS = 1.0
"""How often a run that goes on is read, and so the least time between two redraws of what it adds."""
TREND = 40
_TRENDS = ("rewards/raw/", PREFIX, "kl/mean", "kl/beta", "rewards/total/mean", "train/", "grpo/", "turns/", "online/")
_LABELS = {"rewards/total/mean": "reward", "success/train": "success", "online/success": "success"}
_PREFIXES = ("rewards/raw/", "rewards/contribution/", "rewards/running_mean/", "success/")


@dataclass
class Snapshot:
    """Everything the dashboard shows besides its curves, as read at one moment. Events are oldest first."""

    info: RunInfo
    names: list[str] = field(default_factory=list)
    latest: dict[str, float] = field(default_factory=dict)
    trends: dict[str, list[float]] = field(default_factory=dict)
    alerts: list[Event] = field(default_factory=list)
    betas: list[Event] = field(default_factory=list)
    versions: list[Event] = field(default_factory=list)
    answers: list[Event] = field(default_factory=list)
    phase: str = ""
    log: list[str] = field(default_factory=list)
    problem: str = ""


def spread_of(name: str) -> str:
    """The metric that holds the standard deviation of another."""
    if name == "rewards/total/mean":
        return "rewards/total/std"
    return name.replace("/running_mean/", "/running_std/") if "/running_mean/" in name else ""


def chart_names(wanted: Iterable[str], names: Iterable[str]) -> list[str]:
    """The recorded metrics that a chart asks for."""
    names = list(names)
    found: list[str] = []
    for pattern in wanted:
        if pattern.endswith("*"):
            found += [n for n in names if n.startswith(pattern[:-1])]
        elif pattern in names:
            found.append(pattern)
    return found


def read_snapshot(reader: RunReader, log_lines: int) -> Snapshot:
    """Read all but the curves; what cannot be read is left out and told in `problem`."""
    from ...engine.launch.logs import tail_log

    made = Snapshot(reader.info())
    problems: list[str] = []
    try:
        made.names = reader.metrics.names()
        made.latest = reader.metrics.latest()
        for name in made.names:
            if name.startswith(_TRENDS):
                made.trends[name] = [v for _, v in reader.metrics.points(name, max_points=TREND)]
        made.alerts = reader.events(("alert", "error", "record"), limit=200)
        made.betas = reader.events(("beta",), limit=5)
        made.versions = reader.events(("snapshot", "checkpoint", "eval"), limit=40)
        made.answers = reader.events(("control",), limit=5)
        made.phase = next((e.message for e in reader.events(("phase",), limit=1)), "")
    except RecordError as error:
        problems.append(str(error))
    made.problem = "; ".join(dict.fromkeys([*problems, *reader.problems]))
    made.log = tail_log(made.info, log_lines)
    return made


def read_curves(
    reader: RunReader, names: Iterable[str], window: tuple[float, float] | None = None
) -> dict[str, Points]:
    """The curves of these metrics with their spreads, in a window of steps or whole; what cannot be read is empty."""
    after, until = (-1, None) if window is None else (math.ceil(window[0]) - 1, math.floor(window[1]))
    made: dict[str, Points] = {}
    for name in names:
        for wanted in (name, spread_of(name)):
            if wanted and wanted not in made:
                try:
                    made[wanted] = reader.metrics.points(wanted, after_step=after, until_step=until, max_points=POINTS)
                except RecordError:
                    made[wanted] = []
    return made


def chart_series(names: Iterable[str], curves: Mapping[str, Points]) -> list[Series]:
    """What a chart draws of these metrics."""
    made = []
    for name in names:
        points = curves.get(name, [])
        spread = dict(curves.get(spread_of(name), []))
        label = _LABELS.get(name, name)
        for prefix in _PREFIXES:
            label = label.removeprefix(prefix)
        made.append(
            Series(
                label.replace("eval_", "eval "),
                [float(x) for x, _ in points],
                [y for _, y in points],
                [spread.get(x, 0.0) for x, _ in points] if spread else None,
                dots=name.startswith("success/eval"),
            )
        )
    return made


def kl_series(latest: Mapping[str, float], curves: Mapping[str, Points]) -> list[Series]:
    """KL, and its target with the tolerance as a band."""
    made = []
    for name in KL:
        points = curves.get(name, [])
        if points:
            tolerance = latest.get("kl/tolerance") if name == "kl/target" else None
            band = [tolerance] * len(points) if tolerance is not None else None
            title = "target" if name == "kl/target" else "KL"
            made.append(Series(title, [float(x) for x, _ in points], [y for _, y in points], band))
    return made
