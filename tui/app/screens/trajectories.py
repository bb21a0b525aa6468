"""All trajectories of a run: a table that reads only what is on screen, with filter, sort, search and a histogram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.style import Style

from ....engine.runs.errors import RecordError
from ....engine.runs.query import Query
from ....engine.runs.reader import RunReader
from ....engine.runs.types import TrajectoryRow
from ....engine.runs.views import Count
from ...format import count, fixed, mark, number
from ...text import wrap
from ..bindings import LIST, bindings
from ..data import Reads
from ..destinations import Groups, Live, Stepper
from ..widgets.frame import Box, Part, split
from ..widgets.group_panel import short
from ..widgets.histogram import Histogram
from ..widgets.line import Line
from ..widgets.pane import Pane
from ..widgets.table import PAGE, Column, Table
from .base import AppScreen

SORTS = ("n", "reward", "advantage", "turns", "tokens", "penalties", "step")
FILTER_HINT = (
    "reward<0.2 and penalty:missing_prerequisite and action:TRACK_OBJECT and step>100   (not, or, parentheses)"
)


class Preview(Pane):
    """The row under the cursor, whole."""

    title = "preview"

    def __init__(self) -> None:
        super().__init__("preview")
        self.row: TrajectoryRow | None = None

    def put(self, row: TrajectoryRow | None) -> None:
        """Show a row."""
        if row != self.row:
            self.row = row
            self.changed(keep_scroll=False)

    def build(self, width: int, height: int) -> list[Line]:
        """Facts, route, prompt, answer."""
        p, row = self.palette, self.row
        if row is None:
            return []
        lines = [Line(p).add(f"{row.n} ", p.title).add(row.id, p.faint, cells=max(1, width - len(str(row.n)) - 1))]
        line = (
            Line(p)
            .add(mark(row.correct), p.outcome(row.correct))
            .add(" reward ", p.muted)
            .add(fixed(row.reward), p.strong)
        )
        lines.append(line.add("  A ", p.muted).add(fixed(row.advantage, signed=True), p.sign(row.advantage)))
        facts = f"step {number(row.step)} · group {row.group} · rollout {row.rollout} · {row.turns} turns"
        facts += "" if row.tokens is None else f" · {row.tokens} tokens"
        lines += [Line(p).add(t, p.muted) for t in wrap(f"{facts} · {row.split} · ended by {row.stop_reason}", width)]
        if row.penalties:
            lines.append(Line(p).add(f"✗ {row.penalties} penalt{'y' if row.penalties == 1 else 'ies'}", p.warn))
        lines.append(Line(p))
        for index, action in enumerate(row.actions[:60]):
            lines.append(Line(p).add(f"{index + 1:>3} ", p.faint).add(action, p.accent, cells=max(1, width - 4)))
        lines.append(Line(p))
        lines += [Line(p).add(t, p.text) for t in wrap(row.prompt, width, 2000)]
        if row.answer is not None:
            lines.append(Line(p))
            lines += [
                Line(p).add(t, p.outcome(row.correct)) for t in wrap(f"{mark(row.correct)} {row.answer}", width, 2000)
            ]
        return lines


class TrajectoriesScreen(AppScreen):
    """The list that the stepper steps through."""

    view = LIST
    BINDINGS = bindings(LIST)

    def __init__(self, reads: Reads, query: Query | None = None, note: str = "") -> None:
        super().__init__()
        self.reads = reads
        self.asks = query or Query()
        self.note = note
        self.total: Count | None = None
        self.recorded = 0
        self.problem = ""
        self.warning = ""
        self.following = False
        self.folded = False
        self.extras: tuple[str, ...] = ()
        self._asking = 0
        self._histogram_wanted = True
        self.table = Table("table", self._columns, self._fetch, self._empty)
        self.histogram = Histogram()
        self.preview = Preview()

    def panes(self) -> list[Pane]:
        """Table first: it takes the keys."""
        return [self.table, self.histogram, self.preview]

    def plan(self, width: int, height: int) -> list[Box]:
        """The preview goes first (under 140 cells), then the histogram (under 18 lines)."""
        boxes: list[Box] = []
        left = width
        if width >= 140:
            (_, left), (x, w) = split(width, [Part(90, 2.2), Part(40, 1.0, 70)])
            boxes.append(Box("preview", x, 0, w, height))
        top = 0
        if self._histogram_wanted and height >= 18:
            size = 6 if height < 30 else 8
            boxes.append(Box("histogram", 0, 0, left, size))
            top = size - 1
        boxes.append(Box("table", 0, top, left, height - top))
        return boxes

    def header(self, width: int) -> tuple[Line, Line]:
        """Run and query; how many, and how long the answer took."""
        p = self.palette
        left = Line(p).add(self.reads.path.name, p.title, cells=min(28, len(self.reads.path.name)))
        left.add(" · trajectories", p.muted)
        tells = self.asks.tells()
        if tells:
            left.add(" · ", p.faint).add(tells, p.accent, cells=max(8, min(len(tells), width - left.width - 30)))
        right = Line(p)
        if self.warning:
            right.add(f"⚠ {self.warning}", p.warn, cells=min(len(self.warning) + 2, width // 2)).gap(2)
        if self.problem:
            right.add(f"✗ {self.problem}", p.bad, cells=min(len(self.problem) + 2, width // 2))
        elif self.total is not None:
            here = self.table.cursor + 1 if self.total else 0
            right.add(count(here), p.strong).add(f" of {self.total}", p.muted)
            if self.following:
                right.add("  following", p.accent)
        else:
            right.add("counting…", p.faint)
        return left, right

    # -- rows ---------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Read the first page."""
        self._active = "table"
        remembered = self.shell.memory.run(self.reads.path.name)
        self._histogram_wanted = remembered.get("histogram", True) is not False
        self._restart(None if self.asks.plain and not self.asks.descending else 0)
        self.set_interval(1.0, self._poll)

    def _restart(self, at: int | None = 0) -> None:
        """The query is another one. The cursor goes to row `at`, or (None) to where training begins."""
        self._asking += 1
        self.problem = ""
        self.table.sort = (self.asks.sort, self.asks.descending)
        self.run_worker(self._count(self._asking, at), exclusive=True, group="count")

    async def _count(self, asking: int, at: int | None) -> None:
        query = self.asks

        def read(reader: RunReader) -> tuple[int, list[TrajectoryRow], Count, int, str, list[str]]:
            # None: not at the rollouts of the evaluation before the first step, which have no rewards
            row = at if at is not None else (reader.rollouts.first("train") or 1) - 1
            # the page first: a screen is full of it before a million rows are counted
            rows = reader.rollouts.page(query, offset=row // PAGE * PAGE, limit=PAGE)
            problems, extras = "; ".join(reader.problems), reader.rollouts.names("extra")
            return row, rows, reader.rollouts.least(query), reader.rollouts.total(), problems, extras

        try:
            row, rows, total, self.recorded, self.warning, extras = await self.reads.later(read)
            self.extras = _shown(extras, query.filter)
            if asking != self._asking:
                return
            if at is None:
                self.table.top = row
            self.total = total
            self.table.reset(total, row)
            if rows:
                self.table.deliver(row // PAGE * PAGE, rows)
            self.frame.refresh_lines()
            if not total.exact:
                total = await self.reads.later(lambda r: r.rollouts.count(query))
        except RecordError as error:
            if asking == self._asking:
                self.problem, self.total = str(error), Count.of(0)
                self.table.reset(0)
                self.frame.refresh_lines()
            return
        if asking != self._asking:
            return
        if total is not self.total:
            self.total = total
            self.table.grow_to(total)
            self.frame.refresh_header()
        if self._histogram_wanted:
            await self._bins(asking)

    async def _bins(self, asking: int) -> None:
        query = self.asks
        try:
            bins = await self.reads.later(lambda r: r.rollouts.histogram(query, bins=24))
        except RecordError:
            return
        if asking == self._asking:
            self.histogram.put(list(bins))

    def _fetch(self, offset: int, limit: int) -> None:
        self.run_worker(self._page(self._asking, offset, limit), group="pages")

    async def _page(self, asking: int, offset: int, limit: int) -> None:
        query = self.asks
        try:
            rows = await self.reads.later(lambda r: r.rollouts.page(query, offset=offset, limit=limit))
        except RecordError as error:
            self.problem = str(error)
            self.frame.refresh_header()
            return
        if asking == self._asking:
            self.table.deliver(offset, rows)

    async def _poll(self) -> None:
        """What was recorded since."""
        if self.app.screen is not self or self.total is None or self.problem:
            return
        query, asking = self.asks, self._asking
        if query.search or query.descending or query.sort != "n":
            return
        try:
            total = await self.reads.later(lambda r: r.rollouts.count(query))
        except RecordError:
            return
        if asking == self._asking and total != self.total:
            grew = total > self.total
            self.total = total
            if grew:
                self.table.grow_to(total)
                if self.following:
                    self.table.move_to(total - 1)
            else:
                self._restart(min(self.table.cursor, max(0, total - 1)))
            self.frame.refresh_header()

    def _columns(self, table: Any) -> Sequence[Column]:
        p = self.palette

        def route(row: TrajectoryRow) -> tuple[str, Style]:
            return " ▸ ".join(short(None if a == "?" else a) for a in row.actions[:12]), p.text

        size = len(str(self.recorded))
        return (
            Column("n", "#", max(4, size), lambda r: (r.n, p.muted), ">"),
            Column("step", "step", 6, lambda r: (r.step, p.muted), ">", drop=3),
            Column("", " ", 1, lambda r: (mark(r.correct), p.outcome(r.correct))),
            Column("reward", "reward", 7, lambda r: (fixed(r.reward), p.strong), ">"),
            Column("advantage", "A", 6, lambda r: (fixed(r.advantage, signed=True), p.sign(r.advantage)), ">", drop=1),
            *(self._extra_column(name, place) for place, name in enumerate(self.extras)),
            Column("turns", "turns", 6, lambda r: (r.turns, p.text), ">", drop=5),
            Column("tokens", "tokens", 7, lambda r: (number(r.tokens), p.muted), ">", drop=6),
            Column("penalties", "pen", 4, lambda r: (f"✗{r.penalties}" if r.penalties else "", p.warn), ">", drop=2),
            Column("", "group", 9, lambda r: (r.group, p.muted), drop=8),
            Column("", "split", 5, lambda r: (r.split, p.faint), drop=9),
            Column(
                "", "ended by", 9, lambda r: (r.stop_reason, p.muted if r.stop_reason == "answer" else p.warn), drop=7
            ),
            Column("", "route", 22, route, grow=1.2, drop=0),
            Column("", "prompt", 16, lambda r: (r.prompt, p.muted), grow=1.4, drop=4),
        )

    def _extra_column(self, name: str, place: int) -> Column:
        """A column of the record's own: a reward component, or what its writer added."""
        p = self.palette

        def cell(row: TrajectoryRow) -> tuple[str, Style]:
            value = row.extra.get(name)
            if value is None:
                return ("–" if name not in row.extra else "nan"), p.faint
            return (number(value), p.text) if isinstance(value, (int, float)) else (str(value), p.muted)

        title = name.removeprefix("component.")
        return Column("", title, max(5, min(9, len(title))), cell, ">", drop=4 if place < 4 else 10 + place)

    def _empty(self) -> list[str]:
        if self.warning:
            return ["This record cannot be read.", "", *wrap(self.warning, max(20, self.table.size.width - 4))]
        if self.problem:
            return [self.problem, "", "f changes the filter · / the search · c clears both"]
        if self.total is None:
            return ["reading…"]
        if self.asks.filter or self.asks.search:
            return ["Nothing matches.", "", "f changes the filter · / the search · c clears both"]
        return [
            "No trajectory was recorded yet.",
            "",
            "They appear here as soon as the first step ends.",
            "v shows the dashboard of the run",
        ]

    # -- keys ---------------------------------------------------------------------------------------------------

    def on_table_moved(self, message: Table.Moved) -> None:
        """The preview follows the cursor."""
        self.preview.put(self.table.current)
        self.frame.refresh_header()

    def on_table_selected(self, message: Table.Selected) -> None:
        """A click on the row under the cursor."""
        self.action_open()

    def on_pane_hit(self, message: Pane.Hit) -> None:
        """A click on a heading sorts; on a bar of the histogram, filters."""
        match message.what:
            case ("sort", str(name)):
                self.sort_by(name)
            case ("bin", int(index)):
                low, high, _ = self.histogram.bins[index]
                last = index == len(self.histogram.bins) - 1
                part = f"reward>={low:.6g} and reward{'<=' if last else '<'}{high:.6g}"
                self.set_query(filter=part)

    def set_query(self, **changes: Any) -> None:
        """Another filter, search or order."""
        from dataclasses import replace

        self.asks = replace(self.asks, **changes)
        self.table.top = 0
        self.total = None
        self._restart()
        self.frame.refresh_lines()

    def sort_by(self, name: str) -> None:
        """Sort by a column; a second time turns the order."""
        same = name == self.asks.sort
        self.set_query(sort=name, descending=not self.asks.descending if same else name not in ("n", "step", "reward"))

    def action_scroll(self, by: int) -> None:
        """One row."""
        self.table.move(by)

    def action_page(self, by: int) -> None:
        """One page."""
        self.table.move(by * max(1, self.table.body_height - 1))

    def action_first(self) -> None:
        """The first row."""
        self.table.move_to(0)

    def action_last(self) -> None:
        """The last row."""
        self.table.move_to(self.table.total - 1)

    def action_open(self) -> None:
        """Step through the row under the cursor."""
        row = self.table.current
        if row is not None:
            self.shell.open(Stepper(self.reads.path, row.n, self.asks))

    def action_sort(self) -> None:
        """Sort by the next column."""
        at = SORTS.index(self.asks.sort) if self.asks.sort in SORTS else -1
        name = SORTS[(at + 1) % len(SORTS)]
        self.set_query(sort=name, descending=name in ("advantage", "turns", "tokens", "penalties"))

    def action_reverse(self) -> None:
        """Turn the order around."""
        self.set_query(descending=not self.asks.descending)

    def action_filter(self) -> None:
        """Type a filter."""
        from ..widgets.prompt_bar import ask

        ask(self, "Filter", self.asks.filter, lambda text: self.set_query(filter=text), self._check, FILTER_HINT)

    def _check(self, text: str) -> str:
        from ....engine.runs.errors import FilterError
        from ....engine.runs.filters import parse

        try:
            parse(text)
        except FilterError as error:
            return str(error)
        return ""

    def action_search(self) -> None:
        """Type words to search for."""
        from ..widgets.prompt_bar import ask

        hint = "words of prompts, thoughts, actions, observations, answers and penalties · “two words” as a phrase"
        ask(self, "Search all trajectories", self.asks.search, lambda text: self.set_query(search=text), hint=hint)

    def action_clear(self) -> None:
        """No filter and no search."""
        self.set_query(filter="", search="")

    def action_histogram(self) -> None:
        """Show or hide the histogram."""
        self._histogram_wanted = not self._histogram_wanted
        self.shell.memory.run(self.reads.path.name)["histogram"] = self._histogram_wanted
        self.frame.replan()
        if self._histogram_wanted:
            self.run_worker(self._bins(self._asking), group="bins")

    def action_fold(self) -> None:
        """Fold rollouts into their groups."""
        row = self.table.current
        self.shell.open(Groups(self.reads.path, self.asks, row.n if row is not None else None))

    def action_follow(self) -> None:
        """Stay at the newest."""
        self.following = not self.following
        if self.following:
            self.action_last()
        self.frame.refresh_header()

    def action_live(self) -> None:
        """The dashboard of the run."""
        self.shell.open(Live(self.reads.path), replace=True)

    def _listing(self) -> str:
        rows = [
            self.table.row(i)
            for i in range(self.table.top, min(self.total or 0, self.table.top + self.table.body_height))
        ]
        import json
        from dataclasses import asdict

        return "\n".join(json.dumps(asdict(r), default=str) for r in rows if r is not None)

    def action_export(self) -> None:
        """The rows on screen, one JSON object a line."""
        from ...export import export_lines

        self.say(f"Written: {export_lines(self.reads.path, 'trajectories', self._listing())}")

    def action_pager(self) -> None:
        """The rows on screen in $PAGER."""
        from ...export import open_outside

        open_outside(self.app, self._listing(), "PAGER", "trajectories.jsonl")

    def action_editor(self) -> None:
        """The rows on screen in $EDITOR."""
        from ...export import open_outside

        open_outside(self.app, self._listing(), "EDITOR", "trajectories.jsonl")

    def action_copy(self) -> None:
        """Copy the id of the row."""
        row = self.table.current
        if row is not None:
            self.app.copy_to_clipboard(row.id)
            self.say(f"Copied {row.id}")


def _shown(names: Sequence[str], filter_: str) -> tuple[str, ...]:
    """Which of a record's own columns stand in the table: those that the filter names, components, then others."""
    asked = [n for n in names if n in filter_]
    components = [n for n in names if n.startswith("component.")][:4]
    return tuple(dict.fromkeys([*asked, *components, *names]))[:6]
