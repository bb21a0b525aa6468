"""The data of the dashboard, read from the record in one go, and its findings. Nothing here draws.

Repeated findings are merged. The most severe come first, and good news is not an alert.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ...configs import metric_names as metric
from ...engine.runs.control.alerts import suggestion_of
from ...engine.runs.control.live import LiveState, read_live
from ...engine.runs.control.requests import Command, RunRequest, asked
from ...engine.runs.errors import RecordError
from ...engine.runs.health.headline import RATE_WINDOW
from ...engine.runs.read.reader import RunReader
from ...engine.runs.types import ENDED, Event, RunInfo
from ..format import count, finite_mean

Severity = Literal["failure", "warning", "asked", "hint", "good"]
SEVERITIES: tuple[Severity, ...] = ("failure", "warning", "asked", "hint", "good")
"""From urgent to good news. `asked`: a user's request to the run, and its answer."""


@dataclass(frozen=True)
class LiveFinding:
    """A finding with all its repeats. `event` is the newest one."""

    severity: Severity
    message: str
    event: Event
    first: int = 0
    last: int = 0
    times: int = 1

    @property
    def suggestion(self) -> str:
        return "" if self.severity == "asked" else suggestion_of(self.event.data)

    @property
    def trajectories(self) -> tuple[str, ...]:
        ids = self.event.data.get("trajectories")
        return tuple(str(i) for i in ids) if isinstance(ids, (list, tuple)) else ()


def findings(reading: Reading) -> list[LiveFinding]:
    """Return all findings of a run, most severe first, then newest first."""
    events = list(reading.findings)
    if reading.problem:
        events.append(Event("record", reading.problem))
    if reading.info.error and not any(e.kind == "error" and reading.info.error in e.message for e in events):
        events.append(Event("error", reading.info.error, step=reading.info.step))
    found = [*merged(events), *(_of_request(request) for request in reading.asked)]
    return sorted(found, key=lambda f: (SEVERITIES.index(f.severity), -f.last, -f.event.time))


def merged(events: Iterable[Event]) -> list[LiveFinding]:
    """Merge events of the same detector and subject. The newest one provides the text."""
    groups: dict[tuple[str, str, str], list[Event]] = {}
    for event in events:
        detector = str(event.data.get("detector") or "")
        subject = str(event.data.get("subject") or ("" if detector else event.message))
        groups.setdefault((event.kind, detector, subject), []).append(event)
    return [
        LiveFinding(_severity(same[-1]), same[-1].message, same[-1], same[0].step, same[-1].step, len(same))
        for same in groups.values()
    ]


def tally(found: Sequence[LiveFinding]) -> str:
    """Count the serious severities: `1 failure, 2 warnings`."""
    counted = ((sum(f.severity == severity for f in found), severity) for severity in ("failure", "warning", "hint"))
    return ", ".join(count(n, severity) for n, severity in counted if n)


def _severity(event: Event) -> Severity:
    stated = event.data.get("severity")
    if event.kind in ("error", "record"):
        return "failure"
    if event.kind == "note":
        return "good"
    return stated if stated in ("failure", "hint", "good") else "warning"


def _of_request(request: RunRequest) -> LiveFinding:
    answer = " · ".join(dict.fromkeys(request.answers.values()))
    message = f"{request.command}: {answer or 'requested, no answer yet'}"
    return LiveFinding("asked", message, Event("control", message, time=request.time))


Points = list[tuple[int, float]]
Kind = Literal["rft", "sft", "online"]
"""The kind of a run, which selects its panels."""

ACTIONS = metric.ACTION_SHARE.prefix
POINTS = 400
"""Maximum number of points read per curve: about two per cell of a wide terminal."""
FOLLOW_SECONDS = 1.0
"""Seconds between two reads of an active run, and so the least time between two redraws."""
PACE_STEPS = 20
"""Steps over which the time of a step is averaged, because any single step may have waited."""
RATES = (
    metric.ONLINE_SUCCESS, metric.ONLINE_SUCCESS_INITIAL, metric.GATE_RATE, metric.FLIP_RATE, metric.REJECTED,
    metric.CONFIDENCE, metric.LATENCY,
)  # fmt: skip
"""Metrics of single requests or updates, shown as rates and means over the last `RATE_WINDOW`."""
_TRENDS = (
    metric.COMPONENT_SUM.prefix, metric.COMPONENT_RAW.prefix, ACTIONS, metric.KL_MEAN, metric.BETA, metric.REWARD_MEAN,
    metric.TURNS, "train/", "grpo/", "online/", "success/",
)  # fmt: skip
_FAMILIES = (ACTIONS, "rewards/")
"""Metrics that are recorded together. If the newest step lacks one, its value is from an earlier step and is hidden."""


State = Literal["running", "pausing", "paused", "resuming", "stopping", "ended", "cannot"]
"""Training pauses after the current step. An online run keeps answering and only pauses its learning. `cannot`: the run
is active and has nothing to pause (an online run whose learning has ended). Only the run and its answers change the
state:

    running ──space──▸ pausing ──(the run answers)──▸ paused ──space──▸ resuming ──(it answers)──▸ running
       ▴                  │ space takes it back          ▴                  │ space takes it back
       └──────────────────┘                              └──────────────────┘
"""


@dataclass(frozen=True)
class Reading:
    """One snapshot of the dashboard without its curves. Events are oldest first."""

    info: RunInfo
    names: Sequence[str] = ()
    latest: Mapping[str, float] = field(default_factory=dict)
    """The newest values. Those of `RATES` are means over their window."""
    trends: Mapping[str, Points] = field(default_factory=dict)
    findings: Sequence[Event] = ()
    betas: Sequence[Event] = ()
    versions: Sequence[Event] = ()
    asked: Sequence[RunRequest] = ()
    phase: str = ""
    seconds_a_step: float | None = None
    """Mean over the last `PACE_STEPS` steps, plus the evaluation time per step."""
    log: Sequence[str] = ()
    live: LiveState | None = None
    """The texts in progress."""
    problem: str = ""
    gone: bool = False
    """Whether the run's folder was moved or deleted meanwhile."""

    @property
    def kind(self) -> Kind:
        """Return the kind from the run's mode or, for an unknown mode, from its metrics."""
        if self.info.mode == "online" or (not self.info.mode and metric.SERVING_VERSION in self.latest):
            return "online"
        return "sft" if self.info.mode == "sft" else "rft"

    @property
    def foreign(self) -> bool:
        """Return whether another program trained the policy."""
        return self.info.mode in ("dump", "recorded")

    @property
    def complete(self) -> bool:
        """Return whether missing data will not arrive."""
        return self.info.mode == "dump" or not self.info.active or (self.foreign and self.info.step > 0)

    @property
    def pending(self) -> RunRequest | None:
        """Return the request to pause or resume that the run has not answered."""
        waiting = [a for a in self.asked if a.command in ("pause", "resume") and not a.answers]
        return waiting[-1] if waiting else None

    def waits_for(self, command: Command) -> bool:
        return any(a.command == command and not a.answers for a in self.asked)

    @property
    def learning(self) -> str:
        """Return the status of the learner: the run, or the update worker of an online run."""
        if self.kind != "online":
            return self.info.status
        processes = self.info.facts.get("processes")
        worker = processes.get("worker") if isinstance(processes, dict) else None
        if not isinstance(worker, dict) or not worker.get("alive") or worker.get("status") in ENDED:
            return ""
        return str(worker.get("status") or "")

    @property
    def state(self) -> State:
        if not self.info.active:
            return "ended"
        if self.info.status == "stopping" or self.waits_for("stop"):
            return "stopping"
        if not self.learning:
            return "cannot"
        if self.pending is not None:
            return "pausing" if self.pending.command == "pause" else "resuming"
        return "paused" if self.learning == "paused" else "running"


def read(reader: RunReader, log_lines: int) -> Reading:
    """Read everything except the curves. Unreadable parts are listed in `problem`."""
    from ...engine.launch.logs import tail_log  # imported here to keep the first paint fast

    info = reader.info()
    reading = Reading(info, asked=asked(info.path), log=tail_log(info, log_lines), live=read_live(info))
    gone = not os.path.isdir(info.path)
    problems = ["the run's folder was moved or deleted; the values are from before"] if gone else []
    try:
        names, points = reader.metrics.names(), reader.metrics.latest_points()
        latest = _current(points)
        for name in RATES:
            if name in points:
                newest = reader.metrics.points(name, after_step=points[name][0] - RATE_WINDOW)
                latest[name] = finite_mean([value for _, value in newest])
        trends = {n: reader.metrics.points(n, max_points=40) for n in names if n.startswith(_TRENDS)}
        pace = _pace(reader, points)
        reading = replace(reading, names=names, latest=latest, trends=trends, seconds_a_step=pace)
        reading = replace(
            reading,
            findings=reader.events(("alert", "note", "error", "record"), limit=400),
            betas=reader.events(("beta",), limit=5),
            versions=reader.events(("snapshot", "checkpoint", "eval"), limit=40),
            phase=next((e.message for e in reader.events(("phase",), limit=1)), ""),
        )
    except RecordError as error:
        problems.append(str(error))
    return replace(reading, problem="; ".join(dict.fromkeys([*problems, *reader.problems])), gone=gone)


def _current(points: Mapping[str, tuple[int, float]]) -> dict[str, float]:
    """Return the newest values, without the older ones of a family."""
    newest = {f: max((s for name, (s, _) in points.items() if name.startswith(f)), default=0) for f in _FAMILIES}
    return {
        name: value
        for name, (step, value) in points.items()
        if all(step >= newest[f] for f in _FAMILIES if name.startswith(f))
    }


def _pace(reader: RunReader, points: Mapping[str, tuple[int, float]]) -> float | None:
    if metric.STEP_SECONDS not in points:
        return None
    last = points[metric.STEP_SECONDS][0]
    recent = reader.metrics.points(metric.STEP_SECONDS, after_step=last - PACE_STEPS)
    evaluations = reader.metrics.points(metric.EVALUATE_SECONDS, after_step=0)
    steps = finite_mean([value for _, value in recent])
    share = math.fsum(value for _, value in evaluations if math.isfinite(value)) / max(last, 1)
    return steps + share if math.isfinite(steps) else None


def spread_of(name: str) -> str:
    """Return the metric with the standard deviation of another, or an empty string."""
    if name == metric.REWARD_MEAN:
        return metric.REWARD_STD
    for mean, std in (
        (metric.COMPONENT_RUNNING_MEAN, metric.COMPONENT_RUNNING_STD),
        (metric.COMPONENT_RAW, metric.COMPONENT_RAW_STD),
    ):
        if name in mean:
            return std(mean.part(name))
    return ""


def read_curves(
    reader: RunReader, names: Iterable[str], window: tuple[float, float] | None = None
) -> dict[str, Points]:
    """Read curves and their spreads, whole or in a window of steps. Unreadable ones are empty."""
    after, until = (-1, None) if window is None else (math.ceil(window[0]) - 1, math.floor(window[1]))
    curves: dict[str, Points] = {}
    for wanted in dict.fromkeys(one for name in names for one in (name, spread_of(name)) if one):
        try:
            curves[wanted] = reader.metrics.points(wanted, after_step=after, until_step=until, max_points=POINTS)
        except RecordError:
            curves[wanted] = []
    return curves
