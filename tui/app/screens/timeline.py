"""The time of steps: a bar of phases per step, and the phases and servers of the chosen one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from rich.style import Style

from ....engine.runs.control.status import look
from ....engine.runs.errors import RecordError
from ....engine.runs.search.query import Query
from ...format import EIGHTHS, count, fitted, percent
from ..bindings import TIMELINE
from ..data import Reads
from ..destinations import Trajectories
from ..live_data import FOLLOW_SECONDS
from ..theme import PATTERNS, Palette
from ..timings import LATER, OTHER, STACKED, ServerOutput, Timings, spans, timed_steps, timings, written
from ..widgets.frame import Box
from ..widgets.line import Line
from ..widgets.pane import Pane
from ..widgets.table import Table, TableColumn
from .base import TableScreen

Span = tuple[float, float]
_NAMES = [*STACKED.values(), OTHER]
_NAME = 24
"""Cells for the name of a phase."""


def _sign(name: str) -> str:
    return PATTERNS[_NAMES.index(name) % len(PATTERNS)]


def _style(p: Palette, name: str) -> Style:
    return p.series[_NAMES.index(name) % len(p.series)]


NO_SPANS = "This step has no start times. Its phases are drawn one after another."


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
            lines.append(Line(p).add(NO_SPANS, p.muted, cells=width))
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


class TimelineScreen(TableScreen):
    """One row per step, newest last. The bars of a page share one scale."""

    view = TIMELINE

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
        self.frame.refresh_lines()

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
        self.frame.refresh_header()
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
