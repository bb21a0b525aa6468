"""Trajectories folded into their groups: where the rollouts of a prompt differ, there is something to learn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....engine.runs.errors import RecordError
from ....engine.runs.groups import GroupList, GroupRow
from ....engine.runs.query import Query
from ....engine.runs.reader import RunReader
from ....engine.runs.views import Count
from ...format import bar, count, fixed
from ..bindings import GROUPS, bindings
from ..data import Reads
from ..destinations import Stepper
from ..widgets.frame import Box
from ..widgets.line import Line
from ..widgets.pane import Pane
from ..widgets.table import PAGE, Column, Table
from .base import AppScreen


class GroupsScreen(AppScreen):
    """One row a group; enter opens its rollouts."""

    view = GROUPS
    BINDINGS = bindings(GROUPS)

    def __init__(self, reads: Reads, query: Query) -> None:
        super().__init__()
        self.reads = reads
        self.asks = query
        self.problem = ""
        self.total: Count | None = None
        self._list: GroupList | None = None
        self.table = Table("table", self._columns, self._fetch, self._empty)

    def panes(self) -> list[Pane]:
        """One table."""
        return [self.table]

    def plan(self, width: int, height: int) -> list[Box]:
        """The whole screen."""
        return [Box("table", 0, 0, width, height)]

    def header(self, width: int) -> tuple[Line, Line]:
        """Run and filter; how many groups."""
        p = self.palette
        left = Line(p).add(self.reads.path.name, p.title, cells=min(28, len(self.reads.path.name)))
        left.add(" · groups", p.muted)
        if self.asks.tells():
            left.add(" · ", p.faint).add(
                self.asks.tells(), p.accent, cells=min(len(self.asks.tells()), max(8, width // 2))
            )
        right = Line(p)
        if self.total is not None:
            right.add(count(self.table.cursor + 1 if self.total else 0), p.strong).add(f" of {self.total}", p.muted)
        return left, right

    def on_mount(self) -> None:
        """Count, then read the first page."""
        self._active = "table"
        self.run_worker(self._start(), group="groups")

    def _groups(self, reader: RunReader) -> GroupList:
        if self._list is None:
            self._list = reader.rollouts.groups(Query(self.asks.filter, self.asks.search))
        return self._list

    async def _start(self) -> None:
        try:
            first = await self.reads.later(lambda r: self._groups(r).first(PAGE))
            if len(first) == PAGE:
                self._show(Count.of(PAGE, exact=False), first)
            total, rows = await self.reads.later(lambda r: (self._groups(r).count(), self._groups(r).page(0, PAGE)))
        except RecordError as error:
            self.problem, total, rows = str(error), 0, []
        cursor = self.table.cursor
        self._show(Count.of(total), rows)
        self.table.move_to(cursor)

    def _show(self, total: Count, rows: Sequence[GroupRow]) -> None:
        self.total = total
        self.table.reset(total)
        self.table.deliver(0, rows)
        self.frame.refresh_lines()

    def _fetch(self, offset: int, limit: int) -> None:
        self.run_worker(self._page(offset, limit), group="pages")

    async def _page(self, offset: int, limit: int) -> None:
        try:
            rows = await self.reads.later(lambda r: self._groups(r).page(offset, limit))
        except RecordError as error:
            self.problem = str(error)
            return
        self.table.deliver(offset, rows)

    def _columns(self, table: Any) -> Sequence[Column]:
        p = self.palette

        def spread(row: GroupRow) -> tuple[str, Any]:
            flat = row.std is not None and row.std < 1e-9
            return ("no spread" if flat else fixed(row.std)), p.warn if flat else p.text

        def right(row: GroupRow) -> tuple[str, Any]:
            return f"{row.correct}/{row.labelled}" if row.labelled else "–", p.outcome(
                row.correct > 0 if row.labelled else None
            )

        return (
            Column("", "group", 12, lambda r: (r.group, p.strong)),
            Column("", "step", 7, lambda r: (r.step, p.muted), ">", drop=3),
            Column("", "rollouts", 9, lambda r: (r.size, p.text), ">", drop=2),
            Column("", "right", 7, right, ">"),
            Column("", "", 8, lambda r: (bar(r.correct / r.labelled if r.labelled else 0, 8), p.good), drop=4),
            Column("", "reward", 7, lambda r: (fixed(r.mean), p.strong), ">"),
            Column("", "std", 9, spread, ">"),
            Column("", "pen", 5, lambda r: (f"✗{r.penalties}" if r.penalties else "", p.warn), ">", drop=1),
            Column("", "prompt", 20, lambda r: (r.prompt, p.muted), grow=1.0, drop=5),
        )

    def _empty(self) -> list[str]:
        return [
            self.problem or ("reading…" if self.total is None else "No group to show."),
            "",
            "z opens the groups again",
        ]

    def on_table_moved(self, message: Table.Moved) -> None:
        """Which one, in the header."""
        self.frame.refresh_header()

    def on_table_selected(self, message: Table.Selected) -> None:
        """A click on the row under the cursor."""
        self.action_open()

    def action_open(self) -> None:
        """Step through the group from its first rollout."""
        row = self.table.current
        if row is not None:
            self.shell.open(Stepper(self.reads.path, row.first_n))

    def action_scroll(self, by: int) -> None:
        """One row."""
        self.table.move(by)

    def action_page(self, by: int) -> None:
        """One page."""
        self.table.move(by * max(1, self.table.body_height - 1))

    def action_first(self) -> None:
        """The first group."""
        self.table.move_to(0)

    def action_last(self) -> None:
        """The last group."""
        self.table.move_to(self.table.total - 1)
