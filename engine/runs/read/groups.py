"""Read groups as rows: the count, mean and spread of the rollouts of one prompt in one step.

Group ids increase in recording order, so a page of all groups is a range of the index on `grp`, at any size of the run.
With a filter, a search or another order, the ids are listed once (eight bytes each).
"""

from __future__ import annotations

import json
import math
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..errors import FilterError
from ..schema import AMONG
from ..search.query import Selection
from .record import Record

_VARIANCE = "(avg(reward * reward) - avg(reward) * avg(reward)) * count(reward) / max(1, count(reward) - 1)"  # Bessel's
_COLUMNS = (
    f"grp, coalesce(groups.name, ''), min(rows.n), max(step), count(*), avg(reward), {_VARIANCE}, "
    "coalesce(sum(correct = 1), 0), count(correct), coalesce(sum(penalties), 0), avg(turns), avg(tokens), "
    "coalesce(prompts.name, ''), coalesce(prompts.head, '')"
)
_ORDERS = {
    "n": "grp",
    "step": "max(step)",
    "size": "count(*)",
    "correct": "avg(correct)",
    "reward": "avg(reward)",
    "std": _VARIANCE,
    "penalties": "sum(penalties)",
}
GROUP_SORTS = tuple(_ORDERS)


@dataclass(frozen=True)
class GroupRow:
    """One group. `std` is the standard deviation (n − 1) of its rewards, the divisor of its advantages. A group without
    spread has no gradient. `routes`: see `GroupList.with_routes`."""

    id: int
    group: str
    first_n: int
    step: int
    size: int
    mean: float | None
    std: float | None
    correct: int
    labelled: int
    penalties: int
    turns: float | None
    tokens: float | None
    prompt_id: str
    prompt: str
    routes: Sequence[tuple[tuple[str, ...], str, int]] = ()


class GroupList:
    """The groups of a run, or those with a match, in an order (`GROUP_SORTS`; `n` is the recording order).

    The list is a snapshot: it lacks groups that are recorded later.
    """

    def __init__(self, record: Record, selection: Selection, sort: str = "n", descending: bool = False) -> None:
        if sort not in _ORDERS:
            raise FilterError(f"cannot sort groups by {sort!r}: use one of {', '.join(GROUP_SORTS)}")
        self._record, self._selection = record, selection
        self._sort, self._descending = sort, descending
        self._dense = selection.everything and sort == "n" and not descending
        self._ids: array[int] | None = None

    def count(self) -> int:
        if self._dense:
            return int(self._record.scalar("SELECT max(grp) FROM rows") or 0)
        return len(self._listed())

    def first(self, limit: int) -> list[GroupRow]:
        """Return the first groups without listing the others, so that a screen fills before the groups are counted."""
        if self._sort == "n" and not self._descending and not self._dense and self._ids is None:
            return self._rows_of(self._matching(limit))
        return self.page(0, limit)

    def page(self, offset: int, limit: int) -> list[GroupRow]:
        if self._dense:
            return self._rows("grp > ? AND grp <= ?", (offset, offset + limit))
        return self._rows_of(self._listed()[offset : offset + limit])

    def position(self, n: int) -> int | None:
        """Return the offset of the group of trajectory `n`, or None if it is not in the list."""
        group = self._record.scalar("SELECT grp FROM rows WHERE n = ?", (n,))
        if group is None:
            return None
        if self._dense:
            return int(group) - 1
        ids = self._listed()
        if self._sort == "n" and not self._descending:
            index = bisect_left(ids, group)
            return index if index < len(ids) and ids[index] == group else None
        return ids.index(group) if group in ids else None

    def _rows_of(self, ids: Sequence[int]) -> list[GroupRow]:
        by_id = {row.id: row for row in self._rows(f"grp {AMONG}", (json.dumps([*ids]),))}
        return [by_id[i] for i in ids if i in by_id]

    def _listed(self) -> array[int]:
        if self._ids is None:
            self._ids = self._matching(-1)
            if self._sort != "n":
                self._ids = self._in_order(self._ids)
            elif self._descending:
                self._ids.reverse()
        return self._ids

    def _matching(self, limit: int) -> array[int]:
        """Return the first `limit` groups with a match in recording order; -1 means all."""
        source, params, _ = self._selection.source()
        found = self._record.all(f"SELECT DISTINCT grp {source} LIMIT ?", [*params, limit])
        return array("q", sorted(id_ for (id_,) in found if id_ is not None))

    def _in_order(self, ids: array[int]) -> array[int]:
        """Sort groups by the order's column over all their rollouts. Groups without a value come first."""
        found = self._record.all(f"SELECT grp, {_ORDERS[self._sort]} FROM rows WHERE grp IS NOT NULL GROUP BY grp")
        values = {id_: value for id_, value in found}
        key = lambda id_: ((value := values.get(id_)) is not None, value or 0.0, id_)  # noqa: E731
        return array("q", sorted(ids, key=key, reverse=self._descending))

    def _rows(self, where: str, params: Sequence[object]) -> list[GroupRow]:
        rows = self._record.all(
            f"SELECT {_COLUMNS} FROM rows LEFT JOIN groups ON groups.id = grp "
            "LEFT JOIN prompts ON prompts.id = rows.prompt "
            f"WHERE {where} GROUP BY grp ORDER BY grp",
            params,
        )
        found = [GroupRow(*row) for row in rows]
        return [replace(row, std=None if row.std is None else math.sqrt(max(0.0, row.std))) for row in found]

    def with_routes(self, rows: Sequence[GroupRow]) -> list[GroupRow]:
        """Return the groups with the actions and answers of their rollouts and their counts, the most frequent
        first."""
        labels = self._record.labels()
        names = {} if labels is None else labels.names
        found: dict[int, list[tuple[tuple[str, ...], str, int]]] = {}
        sql = (
            "SELECT grp, cards.actions, coalesce(substr(answer, 1, 200), ''), count(*) FROM rows JOIN cards "
            f"ON cards.n = rows.n WHERE grp {AMONG} GROUP BY 1, 2, 3 ORDER BY 4 DESC, 2, 3"
        )
        for id_, actions, answer, n in self._record.all(sql, (json.dumps([row.id for row in rows]),)):
            route = tuple(names.get(int(a), "?") for a in actions.split(",") if a)
            found.setdefault(id_, []).append((route, answer, n))
        return [replace(row, routes=found.get(row.id, ())) for row in rows]
