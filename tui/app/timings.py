"""The seconds of a step by phase, from its metrics, and the servers that wrote its rollouts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...configs import metric_names as metric
from ...engine.runs.errors import RecordError
from ...engine.runs.read.reader import RunReader
from ...engine.runs.search.query import Query

STACKED = {
    metric.TRAINER_IDLE: "waiting for rollouts",
    metric.PHASE_SECONDS("generate"): "generation",
    metric.PHASE_SECONDS("environment"): "tools",
    metric.PHASE_SECONDS("reward"): "rewards",
    metric.PHASE_SECONDS("logprobs"): "log-probs",
    metric.PHASE_SECONDS("backward"): "update",
    metric.RECORD_SECONDS: "record",
}
"""Consecutive phases with their display names. Generation and tools are sums, because they alternate."""
LATER = {metric.EVALUATE_SECONDS: "evaluation after it", metric.ROLLOUTS_WAIT: "rollouts in the queue"}
"""Seconds that are not part of the step's own time."""
WHOLE = (metric.STEP_SECONDS, metric.UPDATE_SECONDS)
OTHER = "other"
NAMED = {
    "idle": STACKED[metric.TRAINER_IDLE],
    "queue": LATER[metric.ROLLOUTS_WAIT],
    **{name.removeprefix(metric.PHASE_SECONDS.prefix): told for name, told in STACKED.items()},
}
"""Display names of recorded spans. All other spans belong to servers."""
_READ = 512
"""Maximum number of rollouts of a step that are read to find their servers."""


@dataclass(frozen=True)
class Timings:
    """One step. `parts`: seconds by phase in order, which add up to `seconds`. `later`: see `LATER`. `spans`: begin
    and end of each part and server, in seconds from the first of them; empty if the record has none."""

    step: int
    seconds: float
    parts: Mapping[str, float] = field(default_factory=dict)
    later: Mapping[str, float] = field(default_factory=dict)
    spans: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)

    @property
    def scale(self) -> float:
        """The seconds that the lanes show."""
        ends = [ended for some in self.spans.values() for _, ended in some]
        return max(ends or [self.seconds, *self.later.values()])


@dataclass(frozen=True)
class ServerOutput:
    """The turns and tokens that one server wrote in a step."""

    server: str
    turns: int
    tokens: int


def timed_steps(reader: RunReader) -> list[int]:
    """Return the steps with timings."""
    found = next((points for name in WHOLE if (points := reader.metrics.points(name))), [])
    return [step for step, _ in found]


def timings(reader: RunReader, first: int, last: int) -> list[Timings]:
    """Read the timings of a range of steps."""
    read = {
        name: dict(reader.metrics.points(name, after_step=first - 1, until_step=last))
        for name in (*WHOLE, *STACKED, *LATER)
    }
    totals = next((read[name] for name in WHOLE if read[name]), {})
    rows = []
    for step, seconds in totals.items():
        parts, later = (
            {title: s for name, title in phases.items() if 0 < (s := read[name].get(step, 0.0)) < math.inf}
            for phases in (STACKED, LATER)
        )
        known, seconds = math.fsum(parts.values()), seconds if math.isfinite(seconds) else 0.0
        if seconds > known:
            parts[OTHER] = seconds - known
        rows.append(Timings(step, max(seconds, known), parts, later))
    return rows


def spans(reader: RunReader, step: int) -> dict[str, list[tuple[float, float]]]:
    """Return begin and end of a step's parts and servers, in seconds from the first. Empty if not recorded."""
    found = {name: some for name, some in reader.timeline(step).items() if some}
    found.pop("step", None)
    first = min((start for some in found.values() for start, _ in some), default=0.0)
    order = [*(name for name in NAMED if name in found), *sorted(name for name in found if name not in NAMED)]
    return {NAMED.get(name, name): [(a - first, b - first) for a, b in found[name]] for name in order}


def written(reader: RunReader, step: int) -> Sequence[ServerOutput]:
    """Return the servers that wrote the rollouts of a step. Empty if none is recorded."""
    turns, tokens = Counter[str](), Counter[str]()
    for row in reader.rollouts.page(Query(f"step={step} and not split:eval"), limit=_READ):
        try:
            steps = reader.bodies.trajectory(row.n).trajectory.steps
        except (RecordError, LookupError):
            continue
        for turn in steps:
            turns[turn.server] += 1
            tokens[turn.server] += turn.token_span[1] - turn.token_span[0]
    return [ServerOutput(server, turns[server], tokens[server]) for server in sorted(turns) if server]
