"""Trajectories folded into their groups. Groups whose rollouts differ offer something to learn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.style import Style

from ....engine.runs.errors import RecordError
from ....engine.runs.read.groups import GROUP_SORTS, GroupList, GroupRow
from ....engine.runs.read.reader import RunReader
from ....engine.runs.search.query import EVERYTHING, Query
from ....engine.runs.search.views import Count
from ....engine.runs.types import TEXT
from ...format import bar, fitted, percent, whole
from ..curves import Series
from ..data import Reads
from ..destinations import Stepper
from ..rollout_columns import route, shared_beginning, telling
from ..theme import Palette
from ..widgets.chart import Chart
from ..widgets.frame import Box
from ..widgets.pane import Line, Pane
from ..widgets.table import PAGE, Table, TableColumn
from .base import GrowingScreen
from .query_list import QueryList

T = TypeVar("T")
_POINTS = 2000
"""Maximum number of groups of a prompt whose rewards are drawn."""


class GroupsScreen(GrowingScreen, QueryList):
    """One row per group. Enter opens its rollouts."""

    view = "groups"
    sorts = GROUP_SORTS
    downwards = ("size", "correct", "reward", "std", "penalties")

    def __init__(self, reads: Reads, query: Query = EVERYTHING, n: int | None = None) -> None:
        super().__init__(reads, query)
        self._begin_at = n
        self._list: tuple[Query, GroupList] | None = None
        self.chart = Chart("chart")
        self.table = Table("table", lambda t: columns(self.palette, t.near(), self.one_prompt), self._empty, self.page)

    @property
    def one_prompt(self) -> bool:
        """Whether the list shows one prompt, whose groups come from different steps."""
        return self.list_query.filter.startswith("prompt:")

    def panes(self) -> list[Pane]:
        return [self.table, self.chart]

    def plan(self, width: int, height: int) -> list[Box]:
        rows = max(7, height // 3) if self.one_prompt and height >= 18 else 1
        chart = [Box("chart", 0, 0, width, rows)] if rows > 1 else []
        return [*chart, Box("table", 0, rows - 1, width, height - rows + 1)]

    def header(self, width: int) -> tuple[Line, Line]:
        return self.heading("groups", width), self.position()

    def hint_label(self, action: str, label: str) -> str:
        return "" if action == "over_steps" and self.one_prompt else label

    def on_mount(self) -> None:
        self._read(self._begin_at)

    def restart(self, keep: bool) -> None:
        row = self.table.current
        self.frame.replan()
        self._read(row.first_n if keep and row is not None else None)

    async def place_of(self, n: int) -> int | None:
        return await self._ask(lambda groups: groups.position(n))

    def _read(self, n: int | None) -> None:
        self.problem, self.total = "", None
        self.table.sort = (self.list_query.sort, self.list_query.descending)
        self.run_worker(self._start(n), group="groups", exclusive=True)

    async def _ask(self, ask: Callable[[GroupList], T]) -> T:
        query = self.list_query

        def answer(reader: RunReader) -> T:
            if self._list is None or self._list[0] != query:
                self._list = (query, reader.rollouts.groups(query))
            return ask(self._list[1])

        return await self.reads.later(answer)

    def reread(self) -> None:
        """Read the groups again. The cursor stays on its group."""
        row, self._list = self.table.current, None
        n = None if row is None else row.first_n
        self.run_worker(self._start(n, at_once=False), group="groups", exclusive=True)

    async def _start(self, n: int | None, at_once: bool = True) -> None:
        total, position = 0, 0
        rows: Sequence[GroupRow] = ()
        try:
            first = await self._ask(lambda groups: groups.first(PAGE))
            if len(first) == PAGE and at_once:
                self._show(Count.of(PAGE, exact=False), first, 0)
            total, position = await self._ask(
                lambda groups: (groups.count(), 0 if n is None else groups.position(n) or 0)
            )
            moved = len(first) == PAGE and at_once and self.table.cursor != 0  # the user moved on during the count
            if n is None or moved:
                position = self.table.cursor if first else 0
            rows = await self.read_page(position // PAGE * PAGE, PAGE)
            if self.one_prompt:
                self._draw(await self._ask(lambda groups: groups.page(0, _POINTS)))
        except RecordError as error:
            self.problem = str(error)
        self._show(Count.of(total), rows, position)

    def _draw(self, rows: Sequence[GroupRow]) -> None:
        known = [row for row in sorted(rows, key=lambda row: row.step) if row.mean is not None]
        steps, means = [float(row.step) for row in known], [row.mean or 0.0 for row in known]
        labelled = [(float(row.step), row.correct / row.labelled) for row in known if row.labelled]
        series = [Series("reward", steps, means, [row.std or 0.0 for row in known])] if known else []
        series += [Series.of("right", labelled, share=True)] if labelled else []
        self.chart.panels = True
        self.chart.put(rows[0].prompt if rows else "", series, "no rewards to show")

    def _show(self, total: Count, rows: Sequence[GroupRow], position: int) -> None:
        self.total = total
        self.table.reset(total, position)
        self.table.deliver(position // PAGE * PAGE, rows)

    async def read_page(self, offset: int, limit: int) -> Sequence[GroupRow]:
        def rows(groups: GroupList) -> Sequence[GroupRow]:
            found = groups.page(offset, limit)
            return groups.with_routes(found) if self.one_prompt else found

        return await self._ask(rows)

    def _empty(self) -> list[str]:
        return [
            self.problem or ("reading…" if self.total is None else "No group to show."),
            "",
            "f changes the filter · / the search · c clears both · z lists rollouts",
        ]

    def action_open(self) -> None:
        row = self.table.wanted(self.action_open)
        if row is not None:
            self.shell.open(Stepper(self.reads.path, row.first_n))


def columns(p: Palette, around: Sequence[GroupRow], one_prompt: bool) -> Sequence[TableColumn]:
    """Return the columns. Prompts start where they differ in the rows `around`. Groups of one prompt have lengths and
    routes instead."""
    shared = shared_beginning(row.prompt for row in around)

    def spread(row: GroupRow) -> tuple[str, Style]:
        flat = row.std is not None and row.std < 1e-9
        return ("no spread" if flat else fitted(row.std, 9)), p.warn if flat else p.text

    def right(row: GroupRow) -> tuple[str, Style]:
        if not row.labelled:
            return "–", p.outcome(None)
        shown = f"{row.correct}/{row.labelled}"
        shown = shown if len(shown) <= 7 else percent(row.correct / row.labelled)
        return shown, p.outcome(row.correct > 0)

    return (
        TableColumn("n", "group", 12, lambda r: (r.group, p.strong), drop=6 * one_prompt),
        TableColumn("step", "step", 7, lambda r: (whole(r.step, 7), p.muted), ">", drop=3 * (not one_prompt)),
        TableColumn("size", "rollouts", 9, lambda r: (whole(r.size, 8), p.text), ">", drop=7 if one_prompt else 2),
        TableColumn("correct", "right", 7, right, ">"),
        TableColumn("", "", 8, lambda r: (bar(r.correct / r.labelled if r.labelled else 0, 8), p.good), drop=4),
        TableColumn("reward", "reward", 7, lambda r: (fitted(r.mean, 7), p.strong), ">"),
        TableColumn("std", "std", 9, spread, ">"),
        TableColumn(
            "penalties",
            "pen",
            5,
            lambda r: (f"✗{whole(r.penalties, 4)}" if r.penalties else "", p.warn),
            ">",
            drop=1,
        ),
        *(
            (
                TableColumn("", "turns", 6, lambda r: (fitted(r.turns, 6), p.text), ">", drop=4),
                TableColumn("", "tokens", 7, lambda r: (fitted(r.tokens, 7), p.muted), ">", drop=5),
                TableColumn("", "routes or answers", 24, lambda r: (_routes(r), p.text), grow=1.0),
            )
            if one_prompt
            else (TableColumn("", "prompt", 20, lambda r: (telling(r.prompt, shared), p.muted), grow=1.0, drop=5),)
        ),
    )


def _routes(row: GroupRow) -> str:
    """Return the routes of a group with their counts. Rollouts that only wrote text are counted by answer."""
    found: Counter[str] = Counter()
    for actions, answer, n in row.routes:
        found[" ".join(answer.split()) if not actions or set(actions) == {TEXT} else route(actions)] += n
    return " · ".join(f"{n}× {text}" if row.size > 1 else text for text, n in found.most_common(8))
