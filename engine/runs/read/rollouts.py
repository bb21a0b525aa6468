"""The lists of a run's rollouts: counted, paged, stepped through and searched at any size."""

from __future__ import annotations

import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import FilterError
from ..notes import Note
from ..search import filters, histogram
from ..search import full_text as search
from ..search.query import EVERYTHING, Query, Selection
from ..search.views import Count, View, open_view
from ..types import TrajectoryRow
from . import rows
from .groups import GroupList
from .record import Record

_KEPT_VIEWS = 12
_KIN = 4096
"""Rollouts of one group that are read at most."""


@dataclass
class _Kept:
    """A view, and up to which trajectory it knows the run."""

    view: View
    last_n: int


class Rollouts:
    """The rollouts that match a query, as rows. Methods raise FilterError for an invalid filter, search or order."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._views: OrderedDict[tuple[Selection, str, bool, int], _Kept] = OrderedDict()
        self._epoch: str | None = None

    def total(self) -> int:
        """Return the number of trajectories of the run, which is the number `n` of the last one."""
        return int(self._record.scalar("SELECT max(n) FROM rows") or 0)

    def first(self, split: str) -> int | None:
        """Return the number of the first trajectory of a split (`train`, `eval`), or None."""
        id_ = self._record.scalar("SELECT id FROM labels WHERE kind = 'split' AND name = ?", (split,))
        if id_ is None:
            return None
        return self._record.scalar("SELECT n FROM rows WHERE split = ? ORDER BY n LIMIT 1", (id_,))

    def count(self, query: Query = EVERYTHING) -> Count:
        """Return how many match. `exact` of the result is False for a lower bound."""
        view = self._view(query)
        return Count.of(0) if view is None else view.count()

    def least(self, query: Query = EVERYTHING) -> Count:
        """Return the count when it is known without counting, else a lower bound, at once."""
        view = self._view(query)
        return Count.of(0) if view is None else view.least()

    def page(self, query: Query = EVERYTHING, *, offset: int = 0, limit: int = 100) -> list[TrajectoryRow]:
        """Return the matching rows `offset` … `offset + limit`, in order."""
        view = self._view(query)
        return [] if view is None else self.rows(view.page(offset, limit))

    def seek(self, n: int, direction: int, query: Query = EVERYTHING) -> TrajectoryRow | None:
        """Return the row after (`+1`) or before (`-1`) trajectory `n`, which need not itself match the query."""
        view = self._view(query)
        other = None if view is None else view.neighbour(n, direction)
        found = [] if other is None else self.rows([other])
        return found[0] if found else None

    def position(self, n: int, query: Query = EVERYTHING) -> int | None:
        """Return the offset of trajectory `n` in a query; None if it does not match, or counting takes too long."""
        view = self._view(query)
        return None if view is None else view.position(n)

    def rows(self, numbers: Sequence[int]) -> list[TrajectoryRow]:
        """Return the rows with these numbers, in this order, without missing ones."""
        return rows.by_number(self._record, numbers)

    def group(self, group: str) -> list[TrajectoryRow]:
        """Return the rollouts of one group, in order of rollout."""
        condition = "grp = (SELECT id FROM groups WHERE name = ?) ORDER BY rollout, rows.n LIMIT ?"
        return rows.where(self._record, condition, (group, _KIN))

    def prompt(self, prompt_id: str, limit: int = 200) -> list[TrajectoryRow]:
        """Return the last `limit` rollouts of one prompt over the whole run, oldest first."""
        condition = "rows.prompt = (SELECT id FROM prompts WHERE name = ?) ORDER BY rows.n DESC LIMIT ?"
        return rows.where(self._record, condition, (prompt_id, limit))[::-1]

    def groups(self, query: Query = EVERYTHING) -> GroupList:
        """Return the groups with a rollout that matches."""
        compiled = self._selection(query)
        return GroupList(self._record, compiled or Selection("0"), query.sort, query.descending)

    def histogram(self, query: Query = EVERYTHING, *, column: str = "reward", bins: int = 20) -> histogram.Histogram:
        """Return `[(low, high, count)]` of equal bins over the range of the whole run. Counts may be estimates
        (`exact`)."""
        selection = self._selection(query)
        view, db = self._view(Query(query.filter, query.search)), self._record.db
        if view is None or db is None or selection is None:
            return histogram.Histogram()
        return histogram.of(db, selection, view.numbers(), self._record.extent()[0], column, bins)

    def filter_notes(self, filter: str) -> tuple[str, ...]:
        """Return names in a filter that this record does not hold, each with the nearest that it does."""
        labels = self._record.labels()
        return () if labels is None else filters.parse(filter).compile(labels, self._notes).notes

    def names(self, kind: str) -> list[str]:
        """Return the recorded names of a kind: `action`, `penalty`, `env`, `split` or `stop`."""
        labels = self._record.labels()
        return [] if labels is None else list(labels.of_kind(kind))

    def _notes(self) -> Iterable[Note]:
        return self._record.notes.read().values()

    def covered(self, selection: Selection) -> int:
        """Return how far the texts go that a selection searches. A record indexes its own texts at once."""
        return 0

    def _selection(self, query: Query) -> Selection | None:
        expression, match = filters.parse(query.filter), search.match_expression(query.search)
        labels = self._record.labels()
        if labels is None:
            return None
        compiled = expression.compile(labels, self._notes)
        return Selection(compiled.sql, compiled.params, match)

    def _view(self, query: Query) -> View | None:
        selection, db = self._selection(query), self._record.db
        if selection is None or db is None:
            return None
        last_n, epoch = self._record.extent()
        if epoch != self._epoch:
            self._views.clear()
            self._epoch = epoch
        key = (selection, query.sort, query.descending, self.covered(selection))
        kept = self._views.pop(key, None)
        try:
            if kept is None or kept.last_n > last_n:
                view = open_view(db, selection, query.sort, query.descending, last_n)
            else:
                view = kept.view.grown(last_n)
        except sqlite3.OperationalError as error:
            raise FilterError(f"this search cannot be understood ({error})") from error
        self._views[key] = _Kept(view, last_n)
        if len(self._views) > _KEPT_VIEWS:
            self._views.popitem(last=False)
        return view
