"""What lists under a query share: moving in the table, and asking for another filter, search or order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ....engine.runs.errors import FilterError
from ....engine.runs.search.query import EVERYTHING, Query
from ..data import Reads
from ..widgets.line import Line
from ..widgets.table import Table
from .table_screen import TableScreen

FILTER_HINT = "reward<0.2 and penalty:missing_prerequisite and action:TRACK_OBJECT and step>100 · tab completes"
SEARCH_HINT = "words of prompts, thoughts, actions, observations, answers and penalties · “two words” as a phrase"
_REMEMBERED = 30


class QueryList(TableScreen):
    """A table of what `list_query` leaves. Subclasses read again in `restart`, and name their orders in `sorts`."""

    sorts: Sequence[str] = ()
    downwards: Sequence[str] = ()
    """Orders that begin with the largest."""

    def __init__(self, reads: Reads, query: Query = EVERYTHING) -> None:
        super().__init__()
        self.reads = reads
        self.list_query = query

    def restart(self, keep: bool) -> None:
        """The query is another one; with `keep`, the cursor stays on its row where that still matches."""
        raise RuntimeError(f"{type(self).__name__} does not read")

    def heading(self, what: str, width: int) -> Line:
        """Run, what is listed, and the query."""
        p, name, query = self.palette, self.reads.path.name, self.list_query.describe()
        left = Line(p).add(name, p.title, cells=min(28, len(name))).add(f" · {what}", p.muted)
        if query:
            left.add(" · ", p.faint).add(query, p.accent, cells=max(8, min(len(query), width - left.width - 30)))
        return left

    def set_query(self, keep: bool = False, **changes: Any) -> None:
        """Another filter, search or order."""
        self.list_query = replace(self.list_query, **changes)
        self.restart(keep)
        self.frame.refresh_lines()

    def sort_by(self, name: str) -> None:
        """Sort by a column; a second time turns the order."""
        same = name == self.list_query.sort
        self.set_query(sort=name, descending=not self.list_query.descending if same else name in self.downwards)

    def action_sort(self) -> None:
        """Sort by the next column."""
        at = self.sorts.index(self.list_query.sort) if self.list_query.sort in self.sorts else -1
        name = self.sorts[(at + 1) % len(self.sorts)]
        self.set_query(sort=name, descending=name in self.downwards)

    def action_reverse(self) -> None:
        """Turn the order around."""
        self.set_query(descending=not self.list_query.descending)

    def action_clear(self) -> None:
        """No filter and no search."""
        self.set_query(keep=True, filter="", search="")

    def action_filter(self) -> None:
        """Type a filter."""
        from ....engine.runs.search.filters import completions
        from ..widgets.prompt_bar import ask

        def complete(text: str) -> list[str]:
            return completions(text, self.reads.now.rollouts.names)

        def accept(text: str) -> None:
            self.set_query(keep=True, filter=text)

        ask(self, "Filter", self.list_query.filter, accept, _wrong, FILTER_HINT, complete, self._typed("filters"))

    def action_search(self) -> None:
        """Type words to search for."""
        from ..widgets.prompt_bar import ask

        def accept(text: str) -> None:
            self.set_query(keep=True, search=text)

        title = "Search all trajectories"
        ask(self, title, self.list_query.search, accept, hint=SEARCH_HINT, history=self._typed("searches"))

    def _typed(self, what: str) -> list[str]:
        """What was typed before in this run, the newest last."""
        kept = self.shell.memory.run(self.reads.path.name).setdefault(what, [])
        del kept[:-_REMEMBERED]
        return kept

    def on_table_selected(self, message: Table.Selected) -> None:
        """A click on the row under the cursor."""
        self.run_worker(self.run_action("open"), group="open")


def _wrong(text: str) -> str:
    """What cannot be understood of a filter; empty when it can."""
    from ....engine.runs.search.filters import parse

    try:
        parse(text)
    except FilterError as error:
        return str(error)
    return ""
