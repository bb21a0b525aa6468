"""Views: the trajectories that match a filter and a search, in an order. They provide pages and neighbours over
millions of rows.

A view has one of three kinds, which may change as the run grows:

- `Dense`: all trajectories in recording order. Every answer is arithmetic.
- `SortedView`: few matches (at most `SMALL`), found by one scan and kept as a sorted list of keys.
- `Walked`: many matches, never listed. Pages and neighbours are read by key along an index, from the nearest known
  place. A count that takes too long is a lower bound, or unknown.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence

from ..columns import SORTS
from ..errors import FilterError
from ..read.record import Connection, OutOfTime
from .query import Selection

SMALL = 20_000
COUNT_SECONDS = 0.15
AHEAD = 64
"""The number of neighbours read at once, so that stepping through a view rarely queries the database."""
_PLACES = 4096
"""The maximum number of known places of a walk."""

Key = tuple[int, float, int]
"""The position in an order: whether there is a value (missing values come first), the value, n."""


def key_of(value: float | None, n: int) -> Key:
    """Return the key of rollout `n` with `value` in the order's column."""
    return (0, 0.0, n) if value is None else (1, value, n)


def beyond(column: str, start: Key | None, ascending: bool, n_is: str = "n") -> list[tuple[str, tuple[object, ...]]]:
    """Return the conditions for rows beyond a key in an order, ties first. Each condition is one range of the index.
    `n_is`: the name of n in the query."""
    if start is None:
        return [("1", ())]
    present, value, n = start
    if column == "n":
        return [(f"{n_is} {'>' if ascending else '<'} ?", (n,))]
    if ascending:
        if not present:
            return [(f"{column} IS NULL AND n > ?", (n,)), (f"{column} IS NOT NULL", ())]
        return [(f"{column} = ? AND n > ?", (value, n)), (f"{column} > ?", (value,))]
    if not present:
        return [(f"{column} IS NULL AND n < ?", (n,))]
    return [(f"{column} = ? AND n < ?", (value, n)), (f"{column} < ?", (value,)), (f"{column} IS NULL", ())]


class Count(int):
    """A number of trajectories. `exact` is False for a lower bound (shown as `≥ 20,001`)."""

    exact: bool = True

    @classmethod
    def of(cls, value: int, exact: bool = True) -> Count:
        count = cls(value)
        count.exact = exact
        return count

    def __str__(self) -> str:
        return f"{int(self):,}" if self.exact else f"≥ {int(self):,}"


class Dense:
    """All trajectories in recording order, whose numbers have no gaps. Offsets count from 0, numbers `n` from 1."""

    def __init__(self, last_n: int, descending: bool) -> None:
        self.last_n, self.descending = last_n, descending

    def count(self) -> Count:
        """Return the number of trajectories, or a lower bound if counting takes too long."""
        return Count.of(self.last_n)

    least = count
    """The count as far as it is known without counting."""

    def page(self, offset: int, limit: int) -> list[int]:
        """Return up to `limit` numbers of the view from `offset` on."""
        if self.descending:
            first = self.last_n - offset
            return list(range(first, max(0, first - limit), -1))
        return list(range(offset + 1, min(self.last_n, offset + limit) + 1))

    def neighbour(self, n: int, direction: int) -> int | None:
        """Return the number after (`+1`) or before (`-1`) trajectory n, which may be outside the view; None at the
        view's end."""
        other = n + (-direction if self.descending else direction)
        return other if 1 <= other <= self.last_n else None

    def position(self, n: int) -> int | None:
        """Return the offset of trajectory n; None if it is not in the view or counting takes too long."""
        if not 1 <= n <= self.last_n:
            return None
        return self.last_n - n if self.descending else n - 1

    def grown(self, last_n: int) -> View:
        """Return the view of trajectories up to `last_n`. This is cheap if there are no new ones."""
        self.last_n = last_n
        return self


class _Ordered:
    """The base of views with a filter or another order: the selection and the order's column."""

    def __init__(self, db: Connection, selection: Selection, sort: str, descending: bool, last_n: int) -> None:
        self.db, self.selection = db, selection
        self.sort, self.descending = sort, descending
        self.last_n = last_n

    def _forwards(self, direction: int) -> bool:
        return (direction > 0) != self.descending

    def _key_of(self, n: int) -> Key | None:
        row = self.db.one(f"SELECT {self.sort} FROM rows WHERE n = ?", (n,))
        return None if row is None else key_of(row[0], n)


class SortedView(_Ordered):
    """A view that holds all its keys, sorted."""

    keys: Sequence[Key] = ()

    def count(self) -> Count:
        return Count.of(len(self.keys))

    least = count

    def page(self, offset: int, limit: int) -> list[int]:
        keys = self.keys[offset : offset + limit]
        if self.descending:
            end = max(0, len(self.keys) - offset)
            keys = self.keys[max(0, end - limit) : end][::-1]
        return [n for _, _, n in keys]

    def neighbour(self, n: int, direction: int) -> int | None:
        key = self._key_of(n)
        if key is None:
            return None
        forwards = self._forwards(direction)
        index = bisect.bisect_right(self.keys, key) if forwards else bisect.bisect_left(self.keys, key) - 1
        return self.keys[index][2] if 0 <= index < len(self.keys) else None

    def position(self, n: int) -> int | None:
        key = self._key_of(n)
        index = len(self.keys) if key is None else bisect.bisect_left(self.keys, key)
        if index == len(self.keys) or self.keys[index] != key:
            return None
        return len(self.keys) - 1 - index if self.descending else index

    def grown(self, last_n: int) -> View:
        """Insert the new matches. Return a `Walked` view if there are too many."""
        if last_n == self.last_n:
            return self
        source, params, n = self.selection.source()
        sql = f"SELECT {self.sort}, n {source} AND {n} > ? LIMIT ?"
        found = self.db.all(sql, (*params, self.last_n, SMALL + 1))
        if len(self.keys) + len(found) > SMALL:
            return Walked(self.db, self.selection, self.sort, self.descending, last_n)
        self.keys, self.last_n = sorted([*self.keys, *(key_of(v, i) for v, i in found)]), last_n
        return self


class Walked(_Ordered):
    """A view that is read by key along an index, from the nearest known place."""

    def __init__(self, db: Connection, selection: Selection, sort: str, descending: bool, last_n: int) -> None:
        super().__init__(db, selection, sort, descending, last_n)
        self._counted = Count.of(last_n) if selection.everything else None
        self._anchors: dict[int, Key] = {}
        """The key before an offset."""
        self._ahead: dict[tuple[int, int], int | None] = {}
        """The neighbour of a number in a direction."""

    def count(self) -> Count:
        """Count once, then only update the count."""
        if self._counted is None:
            self._counted = self._count_after(Count.of(0), 0)
        return self._counted

    def least(self) -> Count:
        """Return the count, or a lower bound: more than the longest `SortedView`."""
        return self._counted if self._counted is not None else Count.of(SMALL + 1, exact=False)

    def page(self, offset: int, limit: int) -> list[int]:
        """Read a page, starting from the nearest known place before it, or from the end if that is nearer."""
        total = self._counted if self._counted is not None and self._counted.exact else None
        backwards = False
        start, skip, ascending = None, offset, not self.descending
        before = [o for o in self._anchors if o <= offset]
        if before:
            nearest = max(before)
            start, skip = self._anchors[nearest], offset - nearest
        if total is not None and total - offset - limit < skip:  # nearer to the end: read it from there
            limit = min(limit, max(0, total - offset))
            start, skip, backwards = None, total - offset - limit, True
        keys = self._walk(start, ascending != backwards, limit, skip)
        if backwards:
            keys.reverse()
        if keys:
            if len(self._anchors) > _PLACES:
                self._anchors.clear()
            self._anchors[offset + len(keys)] = keys[-1]
        return [n for _, _, n in keys]

    def neighbour(self, n: int, direction: int) -> int | None:
        """Return the next number along the index, and read some more ahead."""
        if (n, direction) in self._ahead:
            return self._ahead[n, direction]
        key = self._key_of(n)
        if key is None:
            return None
        chain = [k[2] for k in self._walk(key, self._forwards(direction), AHEAD, 0)]
        if len(self._ahead) > _PLACES:
            self._ahead.clear()
        for a, b in itertools.pairwise(chain):
            self._ahead[a, direction] = b
            self._ahead[b, -direction] = a
        # only in this direction, because n itself need not be in the view
        other = self._ahead[n, direction] = chain[0] if chain else None
        return other

    def position(self, n: int) -> int | None:
        """Return the number of matches before trajectory n, if they can be counted in time."""
        key = self._key_of(n)
        if key is None:
            return None
        along = self.selection.everything  # else one scan is faster than the order's index
        source, params, name = self.selection.source(f"rows_{self.sort}" if along else "")
        if self.db.one(f"SELECT 1 {source} AND {name} = ?", (*params, n)) is None:
            return None
        position = 0
        try:
            with self.db.limit(COUNT_SECONDS):
                for condition, more in beyond(self.sort, key, self.descending, name):
                    row = self.db.one(f"SELECT count(*) {source} AND ({condition})", (*params, *more))
                    position += row[0] if row else 0
        except OutOfTime:
            return None
        self._anchors[position + 1] = key
        return position

    def grown(self, last_n: int) -> View:
        """Forget neighbours that may have changed, and continue the count."""
        if last_n == self.last_n:
            return self
        self._ahead.clear()
        if self.sort != "n" or self.descending:
            self._anchors.clear()
        if self.selection.everything:
            self._counted = Count.of(last_n)
        elif self._counted is not None and self._counted.exact:
            self._counted = self._count_after(self._counted, self.last_n)
        self.last_n = last_n
        return self

    def _count_after(self, known: Count, after: int) -> Count:
        source, params, n = self.selection.counted()
        try:
            with self.db.limit(COUNT_SECONDS):
                more = self.db.one(f"SELECT count(*) {source} AND {n} > ?", (*params, after))
            return Count.of(known + (more[0] if more else 0), known.exact)
        except OutOfTime:
            return Count.of(max(known, SMALL + 1), exact=False)

    def _walk(self, start: Key | None, ascending: bool, limit: int, skip: int) -> list[Key]:
        """Return the next `limit` keys after `start` (exclusive) in a direction, skipping the first `skip`."""
        if limit <= 0:
            return []
        if self.sort == "n":
            source, params, n = self.selection.source()
            order = "ASC" if ascending else "DESC"
            ((condition, more),) = beyond(self.sort, start, ascending, n)
            sql = f"SELECT {n} {source} AND {condition} ORDER BY {n} {order} LIMIT ? OFFSET ?"
            return [key_of(i, i) for (i,) in self.db.all(sql, (*params, *more, limit, skip))]
        try:
            with self.db.limit(None if self.selection.everything else 0.04):
                return self._along_index(start, ascending, limit, skip)
        except OutOfTime:  # matches are far along this order, so one scan that keeps the best is faster
            return self._by_scan(start, ascending, limit, skip)

    def _along_index(self, start: Key | None, ascending: bool, limit: int, skip: int) -> list[Key]:
        source, params, _ = self.selection.source(f"rows_{self.sort}")
        order = "ASC" if ascending else "DESC"
        keys: list[Key] = []
        for condition, more in beyond(self.sort, start, ascending):
            sql = f"SELECT {self.sort}, n {source} AND {condition} ORDER BY {self.sort} {order}, n {order} LIMIT ?"
            need = limit + skip - len(keys)
            if skip and not keys and condition == "1":  # for the whole order, SQLite skips faster than we do
                found = self.db.all(f"{sql} OFFSET ?", (*params, *more, limit, skip))
                return [key_of(v, n) for v, n in found]
            keys.extend(key_of(v, n) for v, n in self.db.all(sql, (*params, *more, need)))
            if len(keys) >= limit + skip:
                break
        return keys[skip:]

    def _by_scan(self, start: Key | None, ascending: bool, limit: int, skip: int) -> list[Key]:
        source, params, _ = self.selection.source()
        order = "ASC" if ascending else "DESC"
        conditions = beyond(self.sort, start, ascending)
        either = " OR ".join(f"({c})" for c, _ in conditions)
        more = [p for _, ps in conditions for p in ps]
        rows = self.db.all(
            f"SELECT {self.sort}, n {source} AND ({either}) ORDER BY {self.sort} {order}, n {order} LIMIT ? OFFSET ?",
            (*params, *more, limit, skip),
        )
        return [key_of(v, n) for v, n in rows]


View = Dense | SortedView | Walked


def open_view(db: Connection, selection: Selection, sort: str, descending: bool, last_n: int) -> View:
    """Return the view of a query over trajectories 1 … `last_n`. Raises FilterError for an unknown order."""
    if sort not in SORTS:
        raise FilterError(f"cannot sort by {sort!r}: use one of {', '.join(SORTS)}")
    if selection.everything:
        return Dense(last_n, descending) if sort == "n" else Walked(db, selection, sort, descending, last_n)
    return SortedView(db, selection, sort, descending, 0).grown(last_n)
