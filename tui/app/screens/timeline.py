"""The time of steps: a bar of phases per step, and the phases and servers of the chosen one.

The seconds by phase come from the metrics of a step, start times from its timeline, and servers from its rollouts.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from rich.style import Style

from ....configs import metric_names as metric
from ....engine.runs.control.status import look
from ....engine.runs.errors import RecordError
from ....engine.runs.read.reader import RunReader
from ....engine.runs.search.query import Query
from ...format import EIGHTHS, count, fitted, percent
from ..data import Reads
from ..destinations import Trajectories
from ..live_data import FOLLOW_SECONDS
from ..theme import PATTERNS, Palette
from ..widgets.frame import Box
from ..widgets.pane import Line, Pane
from ..widgets.table import Table, TableColumn
from .base import AppScreen

Span = tuple[float, float]
"""Begin and end, in seconds."""
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
    spans: Mapping[str, Sequence[Span]] = field(default_factory=dict)

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


def spans(reader: RunReader, step: int) -> dict[str, list[Span]]:
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


_NAMES = [*STACKED.values(), OTHER]
_NAME = 24
"""Cells for the name of a phase."""


def _sign(name: str) -> str:
    return PATTERNS[_NAMES.index(name) % len(PATTERNS)]


def _style(p: Palette, name: str) -> Style:
    return p.series[_NAMES.index(name) % len(p.series)]


class Phases(Pane):
    """One line per phase of a step, placed where it begins, then one per server. Without begin times, phases follow
    each other."""

    name = "phases"
    timings: Timings | None = None
    servers: Sequence[ServerOutput] = ()

    def put(self, timings: Timings | None, servers: Sequence[ServerOutput] = ()) -> None:
        self.timings, self.servers = timings, servers
        self.changed()

    @property
    def rows(self) -> int:
        """The number of lines that the phases of a step can have."""
        spans = 0 if self.timings is None else len(self.timings.spans)
        return max(len(_NAMES) + len(LATER) + 1, spans) + len(self.servers) + bool(self.servers)

    def build(self, width: int, height: int) -> list[Line]:
        p, shown = self.palette, self.timings
        if shown is None:
            return []
        room, lines, start = max(4, width - _NAME - 16), [], 0.0
        for name, some in shown.spans.items():
            known = name in _NAMES
            style, sign = (_style(p, name), _sign(name)) if known else (p.muted, "░" if name in LATER.values() else "█")
            lines.append(self._lane(name, some, room, style, sign))
        if not shown.spans:
            for name, seconds in shown.parts.items():
                lines.append(self._lane(name, [(start, start + seconds)], room, _style(p, name), _sign(name)))
                start += seconds
            for name, seconds in shown.later.items():
                start = shown.seconds if name.startswith("evaluation") else 0.0
                lines.append(self._lane(name, [(min(start, shown.scale), start + seconds)], room, p.muted, "░"))
            missing = "This step has no start times. Its phases are drawn one after another."
            lines.append(Line(p).add(missing, p.muted, cells=width))
        tokens = sum(server.tokens for server in self.servers)
        for server in self.servers:
            counts = f" {count(server.tokens, 'token')} in {count(server.turns, 'turn')}"
            line = Line(p).add(server.server, p.muted, cells=_NAME).gap()
            bar = max(0, min(room, width - line.width - len(counts)))
            line.add("█" * round(bar * server.tokens / max(1, tokens)), p.faint, cells=bar)
            lines.append(line.whole(counts, p.text, width - line.width))
        return lines

    def _lane(self, name: str, spans: Sequence[Span], room: int, style: Style, sign: str) -> Line:
        assert self.timings is not None
        p, scale = self.palette, max(self.timings.scale, 1e-9)
        line = Line(p).add(f"{sign} ", style).add(name, p.text, cells=_NAME - 2)
        line.to(_NAME + 1)
        for cells, same in groupby(_eighths(spans, room, scale)):
            line.add((EIGHTHS[cells] if cells < 8 else sign) * sum(1 for _ in same), style)
        line.to(_NAME + 1 + room)
        seconds = sum(until - start for start, until in spans)
        share = seconds / self.timings.seconds if self.timings.seconds else 0.0
        return line.add(f"{fitted(seconds, 7)} s", p.strong, cells=9, align=">").add(percent(share), p.muted, 6, ">")


def _eighths(spans: Sequence[Span], room: int, scale: float) -> list[int]:
    """Return how many eighths of each of `room` cells to draw. A cell that spans cover by half or more is full. Another
    cell is drawn in part if it holds the middle of a span."""
    covered, middles = [0.0] * room, set[int]()
    for start, until in spans:
        begin, end = (min(max(room * x / scale, 0.0), room - 1e-9) for x in (start, until))
        middles.add(int((begin + end) / 2))
        for cell in range(int(begin), int(end) + 1):
            covered[cell] += min(end, cell + 1) - max(begin, cell)
    return [
        8 if share >= 0.5 else max(1, round(8 * share)) if cell in middles else 0 for cell, share in enumerate(covered)
    ]


class TimelineScreen(AppScreen):
    """One row per step, newest last. The bars of a page share one scale."""

    view = "timeline"

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads
        self.steps: Sequence[int] = ()
        self.problem = "reading…"
        self._active_run = True
        self.phases = Phases()
        self.table = Table("table", self._columns, lambda: [self.problem], self._page)

    def panes(self) -> list[Pane]:
        return [self.table, self.phases]

    def plan(self, width: int, height: int) -> list[Box]:
        rows = min(self.phases.rows + 2, height // 2) if self.steps and height >= 14 else 1
        phases = [Box("phases", 0, 0, width, rows)] if rows > 2 else []
        top = rows - 1 if phases else 0
        return [*phases, Box("table", 0, top, width, height - top)]

    def header(self, width: int) -> tuple[Line, Line]:
        p, row, left = self.palette, self.table.current, self.heading("timeline", width)
        if isinstance(row, Timings):
            left.add(f" · step {row.step}", p.accent)
        return left, Line(p).add(count(len(self.steps), "step") if self.steps else "", p.muted)

    def on_mount(self) -> None:
        self.run_worker(self._read(), group="timeline")
        self.set_interval(FOLLOW_SECONDS, self._follow)

    async def _follow(self) -> None:
        if self._active_run and self.app.screen is self:
            # look before reading the steps, which are complete once the run has ended
            self._active_run = (await asyncio.to_thread(look, self.reads.path)).active
            await self._read()

    async def _read(self) -> None:
        """Read the steps. The cursor stays at the newest one."""
        try:
            steps = await self.reads.later(timed_steps)
            self.problem = "No timings were recorded. They appear after the first training step."
        except RecordError as error:
            steps, self.problem = [], str(error)
        if len(steps) == len(self.steps) > 0:
            return
        newest = self.table.cursor >= len(self.steps) - 1
        self.steps = steps
        self.frame.replan()
        self.table.reset(len(steps), len(steps) - 1 if newest else self.table.cursor)

    async def _page(self, offset: int, limit: int) -> Sequence[Timings]:
        steps = self.steps[offset : offset + limit]
        return await self.reads.later(lambda r: timings(r, steps[0], steps[-1])) if steps else ()

    def _columns(self, table: Table) -> Sequence[TableColumn]:
        p = self.palette
        scale = max((row.seconds for row in table.near()), default=1.0) or 1.0
        room = max(10, table.size.width - 22)

        def bar(row: Timings) -> tuple[Line, None]:
            line, seconds_before = Line(p), 0.0
            for name, seconds in row.parts.items():
                seconds_before += seconds
                line.add(_sign(name) * (round(room * seconds_before / scale) - line.width), _style(p, name))
            return line, None

        return (
            TableColumn("", "step", 8, lambda r: (count(r.step), p.muted), ">"),
            TableColumn("", "seconds", 9, lambda r: (fitted(r.seconds, 9), p.strong), ">"),
            TableColumn("", "phases", 10, bar, grow=1.0),
        )

    # -- keys ---------------------------------------------------------------------------------------------------

    def on_table_moved(self, message: Table.Moved) -> None:
        row = self.table.current
        if not isinstance(row, Timings) or self.phases.timings is None or self.phases.timings.step != row.step:
            self.phases.put(row)
        if isinstance(row, Timings):
            self.run_worker(self._servers(row), group="servers", exclusive=True)

    async def _servers(self, row: Timings) -> None:
        spans_of_step, found = await self.reads.later(
            lambda reader: (spans(reader, row.step), written(reader, row.step))
        )
        if row is self.table.current:
            self.phases.put(replace(row, spans=spans_of_step), found)
            self.frame.replan()

    def action_open(self) -> None:
        row = self.table.current
        if isinstance(row, Timings):
            self.shell.open(Trajectories(self.reads.path, Query(f"step={row.step}")))
