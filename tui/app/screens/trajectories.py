"""All trajectories of a run: a table that reads only visible rows, with filter, sort, search and a histogram."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from ....configs.errors import GrpoTuiError
from ....engine.runs.errors import RecordError
from ....engine.runs.read.reader import RunReader
from ....engine.runs.search.query import EVERYTHING, Query, needles
from ....engine.runs.search.views import Count
from ....engine.runs.types import TrajectoryRow
from ...text import wrap
from ..data import Reads
from ..destinations import Groups, Live, Stepper
from ..rollout_columns import extras_shown, rollout_columns
from ..widgets.frame import Box, SplitPart, split
from ..widgets.list_panels import HistogramPane, Preview
from ..widgets.pane import Line, Pane
from ..widgets.table import PAGE, Table
from .base import PagedScreen
from .query_list import QueryList

if TYPE_CHECKING:
    from ..widgets.value_panel import ValuePanel


VALUES = {"reward": "rewards", "tokens": "tokens", "turns": "turns"}
"""Columns that the histogram can show, with their display names."""


class HistogramKeys(QueryList):
    """A chosen bar joins the filter as a range. The histogram keeps the other bars, for moving on to them."""

    def __init__(self, reads: Reads, query: Query = EVERYTHING) -> None:
        super().__init__(reads, query)
        self.histogram = HistogramPane()
        self.histogram_wanted = True
        self.counted = "reward"
        """The column to count."""
        self.shown = "reward"
        """The counted column: the next one with values if no rollout has a value in `counted`."""
        self._before = ""
        """The filter without the chosen bar."""
        self._chosen: tuple[int, str] | None = None
        """The chosen bar, and the filter with it."""

    @property
    def chosen_bar(self) -> int | None:
        """Return the chosen bar, unless another filter replaced it."""
        return self._chosen[0] if self._chosen is not None and self._chosen[1] == self.list_query.filter else None

    async def read_bins(self) -> None:
        """Count the bars of the list, as if no bar was chosen."""
        if not self.histogram_wanted:
            return
        query, column, chosen = self.list_query, self.counted, self.chosen_bar
        base = query if chosen is None else replace(query, filter=self._before)
        shown, bins = column, []
        try:
            for shown in dict.fromkeys([column, *VALUES]):
                bins = await self.reads.later(lambda r, c=shown: r.rollouts.histogram(base, column=c, bins=24))
                if bins:
                    break
        except RecordError:
            return
        if (query, column) == (self.list_query, self.counted):
            self.shown = shown if bins else column
            self.histogram.put(list(bins), chosen, VALUES[self.shown])

    def action_histogram(self) -> None:
        self.histogram_wanted = not self.histogram_wanted
        self.shell.memory.run(self.reads.path.name)["histogram"] = self.histogram_wanted
        self.frame.replan()
        self.run_worker(self.read_bins(), group="bins")

    def action_next_value(self) -> None:
        names = list(VALUES)
        self.counted = names[(names.index(self.shown) + 1) % len(names)]
        self._chosen = None
        self.shell.memory.run(self.reads.path.name)["counted"] = self.counted
        if not self.histogram_wanted:
            self.action_histogram()
        self.run_worker(self.read_bins(), group="bins", exclusive=True)

    def action_bar(self, by: int) -> None:
        """Choose the next bar with rollouts. After the last one, show the whole list again."""
        chosen = self.chosen_bar
        filled = [i for i, (_, _, n) in enumerate(self.histogram.bins) if n]
        later = [i for i in filled if chosen is None or (i > chosen if by > 0 else i < chosen)]
        if later:
            self.choose_bar(later[0] if by > 0 else later[-1])
        elif chosen is not None:
            self.choose_bar(chosen)

    def choose_bar(self, index: int) -> None:
        """Filter by a bar. Choosing the same bar again removes its range from the filter."""
        chosen, bins = self.chosen_bar, self.histogram.bins
        if chosen is None:
            self._before = self.list_query.filter
        self.histogram.put(bins, None if index == chosen else index, VALUES[self.shown])
        if index == chosen:
            self._chosen = None
            self.set_query(keep=True, filter=self._before)
            return
        (low, high, _), last = bins[index], index == len(bins) - 1
        part = f"{self.shown}>={_edge(low, -1 if not index else 0)} and "
        part += f"{self.shown}{'<=' if last else '<'}{_edge(high, int(last))}"
        base = f"({self._before})" if re.search(r"\bor\b", self._before, re.I) else self._before
        filter = f"{base} and {part}" if base else part
        self._chosen = index, filter
        self.set_query(keep=True, filter=filter)

    def on_pane_hit(self, message: Pane.Hit) -> None:
        match message.what:
            case ("bin", int(index)):
                self.choose_bar(index)


class TrajectoriesScreen(HistogramKeys, PagedScreen):
    """The list of trajectories through which the stepper moves."""

    view = "trajectories"
    sorts = ("n", "reward", "advantage", "turns", "tokens", "penalties", "step")
    downwards = ("advantage", "turns", "tokens", "penalties")

    def __init__(self, reads: Reads, query: Query = EVERYTHING, value: ValuePanel | None = None) -> None:
        super().__init__(reads, query)
        self.value = value
        """For a branch: the value of its step, shown above the list."""
        self.warning = ""
        self.pending = ""
        """The unreadable part of the record, in a few words."""
        self.following = False
        self.extras: tuple[str, ...] = ()
        self.table = Table(
            "table", lambda table: rollout_columns(self.palette, self.extras, table.near()), self._empty, self.page
        )
        self.preview = Preview()

    def panes(self) -> list[Pane]:
        return [self.table, self.histogram, self.preview, *([self.value] if self.value is not None else [])]

    def plan(self, width: int, height: int) -> list[Box]:
        boxes: list[Box] = []
        top, left = 0, width
        if self.value is not None:
            rows = min(len(self.value.build(width - 4, height)) + 2, height // 2 + 1)
            boxes.append(Box("value", 0, 0, width, rows))
            top = rows - 1
        room = height - top
        if width >= 140:
            (_, left), (x, w) = split(width, [SplitPart(90, 2.2), SplitPart(40, 1.0, 70)])
            boxes.append(Box("preview", x, top, w, room))
        if self.histogram_wanted and room >= 18:
            size = 6 if room < 30 else 8
            boxes.append(Box("histogram", 0, top, left, size))
            top += size - 1
        return [*boxes, Box("table", 0, top, left, height - top)]

    def header(self, width: int) -> tuple[Line, Line]:
        p = self.palette
        right = Line(p)
        if self.warning:
            right.add(f"⚠ {self.warning}", p.warn, most=width // 2).gap(2)
        if self.pending:
            right.add(self.pending, p.accent).gap(2)
        if self.problem:
            right.add(f"✗ {self.problem}", p.bad, most=width // 2)
        elif self.total is not None:
            right.extend(self.position())
            if self.following:
                right.add("  following", p.accent)
        else:
            right.add("counting…", p.faint)
        return self.heading("trajectories" if self.value is None else "branch", width), right

    # -- rows ---------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        kept = self.shell.memory.run(self.reads.path.name)
        self.histogram_wanted = self.value is None and kept.get("histogram", True) is not False
        self.counted = next((name for name in VALUES if name == kept.get("counted")), "reward")
        if self.value is not None:
            self.frame.replan()
        self._read(None if self.list_query.plain and not self.list_query.descending else 0)
        self.set_interval(1.0, self._poll)

    def restart(self, keep: bool) -> None:
        row = self.table.current if keep else None
        self.table.top = 0
        self.total = None
        self._read(0, row.n if row is not None else 0)

    def _read(self, row: int | None, n: int = 0) -> None:
        """Move the cursor to trajectory `n` if it is given, else to `row`, or (None) to the start of training."""
        self.problem = ""
        self.table.sort = (self.list_query.sort, self.list_query.descending)
        self.run_worker(self._start(row, n), exclusive=True, group="count")

    async def _start(self, row: int | None, n: int) -> None:
        query = self.list_query
        try:
            first_page = await self.reads.later(lambda reader: _begin(reader, query, row, n))
            position, rows, total, self.warning, self.extras = first_page
            self.total = total
            if row is None:
                self.table.top = position
            self.table.reset(total, position)
            if rows:
                self.table.deliver(position // PAGE * PAGE, rows)
            if not total.exact:
                total = await self.reads.later(lambda r: r.rollouts.count(query))
        except RecordError as error:
            self.problem, self.total = str(error), Count.of(0)
            self.table.reset(0)
            return
        if total is not self.total:
            self.total = total
            self.table.grow_to(total)
            self.frame.refresh_lines()
        await self.read_bins()

    async def _poll(self) -> None:
        if self.app.screen is not self or self.total is None or self.problem:
            return
        query = self.list_query
        try:
            value = self.value
            if value is not None and not value.ended and value.put(*await self.reads.later(value.read)):
                self.frame.replan()
            pending = await self.reads.later(lambda r: r.pending(query))
            before, self.pending = self.pending, pending
            if pending != before:
                self.frame.refresh_lines()
            if (query.search and not before) or query.descending or query.sort != "n":
                return
            total = await self.reads.later(lambda r: r.rollouts.count(query))
        except GrpoTuiError:  # such as a configuration that is not written yet
            return
        if query == self.list_query and self.total is not None and total != self.total:
            grew = total > self.total > 0  # the first rows bring the record's own columns, so they need a full read
            self.total = total
            if grew:
                self.table.grow_to(total)
                if self.following:
                    self.table.move_to(total - 1)
                if self.chosen_bar is None:  # bars grow with the run, so new ones would not match the chosen range
                    await self.read_bins()
            else:
                self._read(min(self.table.cursor, max(0, total - 1)))

    def _empty(self) -> list[str]:
        ways = ["", "f changes the filter · / the search · c clears both"]
        warning = wrap(self.warning, max(20, self.table.size.width - 4))
        selection = self.list_query.filter or self.list_query.search
        if self.problem:
            return [self.problem, *ways]
        if self.warning and not selection:
            return ["This record cannot be read.", "", *warning]
        if self.total is None:
            return ["reading…"]
        if selection:
            return ["Nothing matches.", *warning, *ways]
        return [
            "No trajectory was recorded yet.",
            "",
            "While a run is active, they appear here after each step.",
            "v shows the dashboard of the run",
        ]

    # -- keys ---------------------------------------------------------------------------------------------------

    def on_table_moved(self, message: Table.Moved) -> None:
        self.preview.put(self.table.current)

    def action_open(self) -> None:
        row = self.table.wanted(self.action_open)
        if row is not None:
            self.shell.open(Stepper(self.reads.path, row.n, self.list_query, find=needles(self.list_query.search)))

    def action_fold(self) -> None:
        row = self.table.current
        query = Query(self.list_query.filter, self.list_query.search)
        self.shell.open(Groups(self.reads.path, query, row.n if row is not None else None))

    def action_follow(self) -> None:
        self.following = not self.following
        if self.following:
            self.action_last()
        self.frame.refresh_lines()

    def action_live(self) -> None:
        self.shell.open(Live(self.reads.path))

    # -- elsewhere ----------------------------------------------------------------------------------------------

    def shown_text(self) -> str:
        import json
        from dataclasses import asdict

        end = min(self.total or 0, self.table.top + self.table.body_height)
        rows = (self.table.row(i) for i in range(self.table.top, end))
        return "\n".join(json.dumps(asdict(r), default=str) for r in rows if r is not None)

    def shown_name(self) -> str:
        return "trajectories.jsonl"

    def action_copy(self) -> None:
        row = self.table.current
        if row is not None:
            self.copy(row.id, row.id)


def _edge(value: float, outwards: int) -> str:
    """Format an edge in six digits. The outermost edges are rounded outwards, so that no rollout is lost."""
    text = f"{value:.6g}"
    if outwards and (float(text) - value) * outwards < 0:
        text = f"{value + outwards * abs(value) * 1e-5:.6g}"
    return text


def _begin(
    reader: RunReader, query: Query, row: int | None, n: int
) -> tuple[int, list[TrajectoryRow], Count, str, tuple[str, ...]]:
    """Return the cursor's row, its page of rows, the count, warnings, and the record's own columns."""
    rollouts = reader.rollouts
    if n:
        row = rollouts.position(n, query) or 0
    elif row is None:  # skip the evaluation before the first step, whose rollouts have no rewards
        row = (rollouts.first("train") or 1) - 1
    # read the page first: it fills a screen before a million rows are counted
    rows = rollouts.page(query, offset=row // PAGE * PAGE, limit=PAGE)
    count, notes = rollouts.least(query), rollouts.filter_notes(query.filter)
    warnings = "; ".join([*reader.problems, *notes])
    extras = extras_shown(rollouts.names("extra"), query.filter, rollouts.varying_extras())
    return row, rows, count, warnings, extras


def branch_screen(reads: Reads) -> TrajectoriesScreen:
    """Return the screen of a branch, with the value of its step above the list."""
    from ..widgets.value_panel import ValuePanel  # imported here: it loads the configuration classes

    return TrajectoriesScreen(reads, EVERYTHING, ValuePanel())
