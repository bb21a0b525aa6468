"""The shared parts of lists under a query: moving in the table, and asking for another filter, search or order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from ....engine.runs.errors import FilterError, RecordError
from ....engine.runs.search.query import EVERYTHING, Query
from ....engine.runs.search.views import Count
from ...format import count
from ..data import Reads
from ..destinations import Behavior, Groups, Scatter, SideBySide
from ..widgets.pane import Line, Pane
from ..widgets.prompt_bar import ask
from ..widgets.table import Table
from .base import AppScreen

FILTER_HINT = "reward<0.2 and penalty:missing_prerequisite and action:TRACK_OBJECT and step>100 · tab completes"
SEARCH_HINT = "words of prompts, thoughts, actions, observations, answers and penalties · “two words” as a phrase"
_REMEMBERED = 30


class QueryList(AppScreen):
    """A table of the rows that match `list_query`. Subclasses read in `restart` and list their orders in `sorts`."""

    table: Table
    sorts: Sequence[str] = ()
    downwards: Sequence[str] = ()
    """Orders that start with the largest value."""
    restart: Callable[[bool], None]
    """Reads another query. If it is called with True, the cursor stays on its row if that still matches."""

    def __init__(self, reads: Reads, query: Query = EVERYTHING) -> None:
        super().__init__()
        self.reads = reads
        self.list_query = query
        self.problem = ""
        self.total: Count | None = None

    @property
    def number(self) -> int:
        """The number of the trajectory under the cursor, or of the first one in its group; 0 without a row."""
        row = self.table.current
        return 0 if row is None else getattr(row, "n", 0) or row.first_n

    async def page(self, offset: int, limit: int) -> Sequence[object] | None:
        """Return rows of the list for its table."""
        try:
            return await self.read_page(offset, limit)
        except RecordError as error:
            self.problem = str(error)
            self.frame.refresh_lines()
            return None

    async def read_page(self, offset: int, limit: int) -> Sequence[object]:
        query = self.list_query
        return await self.reads.later(lambda reader: reader.rollouts.page(query, offset=offset, limit=limit))

    async def place_of(self, n: int) -> int | None:
        """Return the row of trajectory `n`."""
        query = self.list_query
        return await self.reads.later(lambda reader: reader.rollouts.position(n, query))

    def come_back_from(self, n: int) -> None:
        self.run_worker(self._follow(n), group="follow", exclusive=True)

    async def _follow(self, n: int) -> None:
        query = self.list_query
        with suppress(RecordError):  # the list itself reports read errors
            position = await self.place_of(n)
            if position is not None and query == self.list_query:
                self.table.move_to(position)

    def position(self) -> Line:
        """Return the cursor's row and the number of rows, or nothing during the count."""
        p, line = self.palette, Line(self.palette)
        if self.total is None:
            return line
        return line.add(count(self.table.cursor + 1 if self.total else 0), p.strong).add(f" of {self.total}", p.muted)

    def set_query(self, keep: bool = False, **changes: object) -> None:
        self.list_query = replace(self.list_query, **changes)
        self.restart(keep)
        self.frame.refresh_lines()

    def sort_by(self, name: str) -> None:
        same = name == self.list_query.sort
        self.set_query(sort=name, descending=not self.list_query.descending if same else name in self.downwards)

    def action_sort(self) -> None:
        index = self.sorts.index(self.list_query.sort) if self.list_query.sort in self.sorts else -1
        name = self.sorts[(index + 1) % len(self.sorts)]
        self.set_query(sort=name, descending=name in self.downwards)

    def action_reverse(self) -> None:
        self.set_query(descending=not self.list_query.descending)

    def action_clear(self) -> None:
        self.set_query(keep=True, filter="", search="")

    def action_behavior(self) -> None:
        self.shell.open(Behavior(self.reads.path, Query(self.list_query.filter, self.list_query.search)))

    def action_scatter(self) -> None:
        self.shell.open(Scatter(self.reads.path, Query(self.list_query.filter, self.list_query.search)))

    def action_over_steps(self) -> None:
        row = self.table.wanted(self.action_over_steps)
        if row is not None and row.prompt_id:
            self.shell.open(Groups.of_prompt(self.reads.path, row.prompt_id, self.number))

    def action_side_by_side(self) -> None:
        if self.table.wanted(self.action_side_by_side) is not None:
            self.shell.open(SideBySide(self.reads.path, self.number))

    def action_filter(self) -> Awaitable[None] | None:
        from ....engine.runs.search.filters import completions

        def complete(text: str) -> list[str]:
            return completions(text, self.reads.now.rollouts.names)

        def accept(text: str) -> None:
            self.set_query(keep=True, filter=text)

        return ask(
            self, "Filter", self.list_query.filter, accept, _wrong, FILTER_HINT, complete, self._typed("filters")
        )

    def action_search(self) -> Awaitable[None] | None:
        def accept(text: str) -> None:
            self.set_query(keep=True, search=text)

        title = "Search all trajectories"
        return ask(self, title, self.list_query.search, accept, hint=SEARCH_HINT, history=self._typed("searches"))

    def _typed(self, what: str) -> list[str]:
        kept = self.shell.memory.run(self.reads.path.name).setdefault(what, [])
        del kept[:-_REMEMBERED]
        return kept

    def on_pane_hit(self, message: Pane.Hit) -> None:
        match message.what:
            case ("sort", str(name)):
                self.sort_by(name)


def _wrong(text: str) -> str:
    from ....engine.runs.search.filters import parse

    try:
        parse(text)
    except FilterError as error:
        return str(error)
    return ""
