"""List a run's rollouts: count, page, step through and search them at any size."""

from __future__ import annotations

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ..columns import COLUMNS, Flag, Kind
from ..errors import FilterError
from ..labels import Labels
from ..learning import marks_of
from ..notes import Note
from ..schema import AMONG
from ..search import filters, histogram
from ..search.query import EVERYTHING, Query, Selection, match_expression
from ..search.views import Count, Dense, SortedView, View, open_view
from ..types import TrajectoryRow
from .groups import GroupList
from .record import Record

if TYPE_CHECKING:  # the first paint of a list needs neither
    from ..search import scatter
    from .behavior import Span, SpanBehavior

MOST_OF_GROUP = 4096
"""The maximum number of rollouts read from one group."""
_CARD = {
    "n": "rows.n",
    "id": "cards.id",
    "group": "groups.name",
    "prompt_id": "prompts.name",
    "prompt": "prompts.head",
    "actions": "cards.actions",
    "answer": "cards.answer",
}
"""Row attributes that are in tables other than `rows`."""
_SHOWN = [column for column in COLUMNS if column.kind is not Kind.LINK or column.name in ("penalties", "rules")]
_ATTRIBUTES = {field.name for field in fields(TrajectoryRow)}
_TABLES = (
    "rows JOIN cards ON cards.n = rows.n LEFT JOIN groups ON groups.id = rows.grp "
    "LEFT JOIN prompts ON prompts.id = rows.prompt"
)


def by_number(record: Record, numbers: Sequence[int]) -> list[TrajectoryRow]:
    """Return the rows with these numbers in this order. Missing rows are left out."""
    before = record.damages
    rows = where(record, f"rows.n {AMONG}", (json.dumps([*numbers]),))
    if record.damages > before:  # a damaged page: read one by one, to lose only its own rows
        rows = [row for n in numbers for row in where(record, "rows.n = ?", (n,))]
    found = {row.n: row for row in rows}
    return [found[n] for n in numbers if n in found]


def where(record: Record, condition: str, params: Sequence[object]) -> list[TrajectoryRow]:
    """Return the rows that match a condition, which may end in ORDER BY and LIMIT."""
    columns = (*_CARD.values(), *(f"rows.{column.name}" for column in _SHOWN))
    found = record.all(f"SELECT {', '.join(columns)} FROM {_TABLES} WHERE {condition}", params)
    labels = record.labels() if found else None
    if labels is None:
        return []
    extras = _extras(record, labels, [row[0] for row in found])
    return [_row(row, labels, extras.get(row[0], {})) for row in found]


def _extras(record: Record, labels: Labels, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the record's own columns of these rows by number. Most records have none."""
    values: dict[int, dict[str, object]] = {}
    if names := [*labels.of_kind("extra").values()]:
        sql = f"SELECT n, name, number, text FROM extras WHERE name {AMONG} AND n {AMONG}"
        for n, name, number, text in record.all(sql, (json.dumps(names), json.dumps(numbers))):
            values.setdefault(n, {})[labels.names[name]] = number if text is None else text
    return values


def _row(row: tuple[Any, ...], labels: Labels, extra: dict[str, Any]) -> TrajectoryRow:
    card = dict(zip(_CARD, row, strict=False))
    card["actions"] = tuple(labels.names.get(int(a), "?") for a in card["actions"].split(",") if a)
    for name in ("group", "prompt_id", "prompt"):
        card[name] = card[name] or ""
    values: dict[str, Any] = {}
    for column, value in zip(_SHOWN, row[len(_CARD) :], strict=True):
        if column.kind is Kind.NAME:
            value = labels.names.get(value, "")
        elif column.kind is Kind.BOOLEAN:
            value = None if value is None else bool(value)
        values[column.attribute] = value
    values["rules"] = labels.of_mask("penalty", values["rules"]) if values["rules"] else ()
    values["uses"] = None if values["uses"] is None else marks_of(values["uses"])
    flags = values.pop("flags")
    values["answered"] = not flags & Flag.UNANSWERED
    values["sent"] = bool(flags & Flag.SENT) if values["gate"] else None
    more = {name: values.pop(name) for name in values.keys() - _ATTRIBUTES}
    return TrajectoryRow(**card, **values, extra={**more, **extra})


class Rollouts:
    """The rollouts that match a query, as rows. Methods raise FilterError for an invalid filter, search or order."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._views: OrderedDict[tuple[Selection, str, bool, int], View] = OrderedDict()
        self._epoch: str | None = None

    def total(self) -> int:
        return int(self._record.scalar("SELECT max(n) FROM rows") or 0)

    def first(self, split: str) -> int | None:
        """Return the number of the first trajectory of a split (`train`, `eval`), or None."""
        id_ = self._record.scalar("SELECT id FROM labels WHERE kind = 'split' AND name = ?", (split,))
        if id_ is None:
            return None
        return self._record.scalar("SELECT n FROM rows WHERE split = ? ORDER BY n LIMIT 1", (id_,))

    def count(self, query: Query = EVERYTHING) -> Count:
        """Return how many rollouts match. The result's `exact` is False for a lower bound."""
        return self._view(query).count()

    def least(self, query: Query = EVERYTHING) -> Count:
        """Return at once the count if it is known, else a lower bound."""
        return self._view(query).least()

    def page(self, query: Query = EVERYTHING, *, offset: int = 0, limit: int = 100) -> list[TrajectoryRow]:
        return self.rows(self._view(query).page(offset, limit))

    def each(self, query: Query = EVERYTHING) -> Iterator[TrajectoryRow]:
        """Yield all rows of a query, reading them in pages."""
        offset = 0
        while numbers := self._view(query).page(offset, 500):
            yield from self.rows(numbers)
            offset += len(numbers)

    def seek(self, n: int, direction: int, query: Query = EVERYTHING) -> TrajectoryRow | None:
        """Return the row after (`+1`) or before (`-1`) trajectory `n`, which need not match the query."""
        other = self._view(query).neighbour(n, direction)
        return next(iter(self.rows([other])), None) if other is not None else None

    def position(self, n: int, query: Query = EVERYTHING) -> int | None:
        """Return the offset of trajectory `n` in a query; None if it does not match, or counting takes too long."""
        return self._view(query).position(n)

    def rows(self, numbers: Sequence[int]) -> list[TrajectoryRow]:
        return by_number(self._record, numbers)

    def group(self, group: str) -> list[TrajectoryRow]:
        """Return the first `MOST_OF_GROUP` rollouts of a group."""
        condition = "grp = (SELECT id FROM groups WHERE name = ?) ORDER BY rollout, rows.n LIMIT ?"
        return where(self._record, condition, (group, MOST_OF_GROUP))

    def prompt(self, prompt_id: str, limit: int = 200) -> list[TrajectoryRow]:
        """Return the last `limit` rollouts of one prompt in the whole run, oldest first."""
        condition = "rows.prompt = (SELECT id FROM prompts WHERE name = ?) ORDER BY rows.n DESC LIMIT ?"
        return where(self._record, condition, (prompt_id, limit))[::-1]

    def groups(self, query: Query = EVERYTHING) -> GroupList:
        return GroupList(self._record, self._selection(query), query.sort, query.descending)

    def histogram(self, query: Query = EVERYTHING, *, column: str = "reward", bins: int = 20) -> histogram.Histogram:
        """Return `[(low, high, count)]` for equal bins over the range of the whole run. Counts may be estimates
        (`exact`)."""
        selection = self._selection(query)
        view, db = self._view(Query(query.filter, query.search)), self._record.db
        if db is None:
            return histogram.Histogram()
        numbers = [n for _, _, n in view.keys] if isinstance(view, SortedView) else None
        return histogram.of(db, selection, numbers, self._record.extent()[0], column, bins)

    def per_step(self, query: Query = EVERYTHING) -> dict[int, int]:
        """Return the number of matches per training step. Rollouts without a step are left out."""
        source, params, _ = self._selection(query).source()
        sql = f"SELECT step, count(*) {source} AND step IS NOT NULL GROUP BY step ORDER BY step"
        return dict(self._record.all(sql, params))

    def behavior(self, query: Query, spans: Sequence[Span]) -> list[SpanBehavior]:
        """Return the behavior of the matching rollouts in some spans of steps, excluding evaluations."""
        from .behavior import behavior, trained

        selection = self._selection(replace(query, filter=trained(query.filter)))
        known = spans if self._record.db is not None else ()
        return [behavior(self._record, selection, span, query.everything) for span in known]

    def scatter(self, query: Query, x: str, y: str, size: tuple[int, int]) -> scatter.Cloud:
        """Return two values of the matching rollouts against each other, in at most `size` cells."""
        from ..search import scatter

        selection, db, labels = self._selection(query), self._record.db, self._record.labels()
        if db is None or labels is None:
            return scatter.Cloud(scatter.Axis(x), scatter.Axis(y))
        return scatter.cloud(db, labels, selection, x, y, size)

    def values(self) -> list[str]:
        """Return the names of the values that `scatter` accepts."""
        from ..search import scatter

        labels = self._record.labels()
        return [] if labels is None else scatter.names(labels)

    def filter_notes(self, filter: str) -> tuple[str, ...]:
        """Return the names in a filter that this record lacks, each with the nearest existing names."""
        labels = self._record.labels()
        return () if labels is None else tuple(filters.parse(filter, labels, self._notes).notes)

    def names(self, kind: str) -> list[str]:
        """Return the recorded names of a kind: `action`, `penalty`, `env`, `split` or `stop`."""
        labels = self._record.labels()
        return [] if labels is None else list(labels.of_kind(kind))

    def varying_extras(self) -> list[str]:
        """Return the record's own columns that differ between the first rollouts, or that only some of these have."""
        labels = self._record.labels()
        names = {} if labels is None else labels.of_kind("extra")
        first = "SELECT n FROM rows ORDER BY n LIMIT 1000"
        count = int(self._record.scalar(f"SELECT count(*) FROM ({first})") or 0) if names else 0
        if count < 2:
            return list(names)
        sql = (
            f"SELECT name FROM extras WHERE name {AMONG} AND n IN ({first}) GROUP BY name "
            "HAVING count(*) < ? OR count(DISTINCT coalesce(text, number, 'nan')) > 1"
        )
        found = {name for (name,) in self._record.all(sql, (json.dumps([*names.values()]), count))}
        return [name for name, id_ in names.items() if id_ in found]

    def _notes(self) -> Iterable[Note]:
        return self._record.notes.read().values()

    def covered(self, selection: Selection) -> int:
        """Return a number that grows as more texts become searchable: 0, as a record indexes its texts at once."""
        return 0

    def _selection(self, query: Query) -> Selection:
        found = filters.parse(query.filter, self._record.labels(), self._notes)
        return Selection(found.sql, tuple(found.params), match_expression(query.search))

    def _view(self, query: Query) -> View:
        selection, db = self._selection(query), self._record.db
        if db is None:
            return Dense(0, descending=False)
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
                view = kept.grown(last_n)
        except sqlite3.OperationalError as error:
            raise FilterError(f"this search cannot be understood ({error})") from error
        self._views[key] = view
        if len(self._views) > 12:
            self._views.popitem(last=False)
        return view
