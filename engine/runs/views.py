"""A view: the trajectories that a filter and a search leave, in an order; pages and neighbours of a million rows.

A view of few rows (at most `SMALL`) is found by one scan and kept as a sorted list of keys. A larger one is never
listed: pages and neighbours are read by key along an index, starting from the nearest place already seen. What
cannot be known in time is said to be a lower bound.
"""

from __future__ import annotations

import bisect
import itertools
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .connection import Connection, OutOfTime
from .errors import FilterError

SMALL = 20_000
SORTS = ("n", "step", "reward", "advantage", "turns", "tokens", "penalties")
COUNT_SECONDS = 0.15
WALK_SECONDS = 0.04
AHEAD = 64  # neighbours read at once: stepping through a view rarely asks the database

Key = tuple[int, float, int]
"""Position in an order: whether the value is there (missing values come first), the value, n."""


class Count(int):
    """A number of trajectories; `exact` is False when it is only a lower bound (shown as `≥ 20,001`)."""

    exact: bool = True

    @classmethod
    def of(cls, value: int, exact: bool = True) -> Count:
        """A count and whether it is all."""
        count = cls(value)
        count.exact = exact
        return count

    def __str__(self) -> str:
        return f"{int(self):,}" if self.exact else f"≥ {int(self):,}"


class Keys:
    """Sorted keys of a small view, sixteen bytes each."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.numbers = array("q", [n for _, _, n in keys])
        # SQLite holds no NaN, so NaN can stand for a missing value.
        self._values = array("d", [value if present else math.nan for present, value, _ in keys])

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> Key:
        value = self._values[i]
        return (0, 0.0, self.numbers[i]) if value != value else (1, value, self.numbers[i])

    def with_more(self, keys: Sequence[Key]) -> Keys:
        """These and others, sorted."""
        return Keys(sorted([*(self[i] for i in range(len(self))), *keys]))

    def after(self, key: Key) -> int | None:
        """The number behind a key, which need not be one of these."""
        i = bisect.bisect_right(self, key)
        return self.numbers[i] if i < len(self) else None

    def before(self, key: Key) -> int | None:
        """The number in front of a key, which need not be one of these."""
        i = bisect.bisect_left(self, key) - 1
        return self.numbers[i] if i >= 0 else None


@dataclass
class View:
    """One filter, search and order over one connection."""

    connection: Connection
    where: str
    params: tuple[object, ...]
    match: str
    sort: str
    descending: bool
    upto: int = 0
    small: Keys | None = None
    resolved: bool = False
    counted: Count | None = None
    anchors: dict[int, Key] = field(default_factory=dict)
    ahead: dict[tuple[int, int], int | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise FilterError(f"cannot sort by {self.sort!r}: use one of {', '.join(SORTS)}")

    @property
    def plain(self) -> bool:
        """Neither filter nor search."""
        return not self.where and not self.match

    def refresh(self, last_n: int) -> None:
        """Take in what was recorded since; cheap when nothing was."""
        if last_n == self.upto and (self.resolved or self.plain):
            return
        if last_n < self.upto:
            self.small, self.resolved, self.counted, self.upto = None, False, None, 0
        self.ahead.clear()
        if self.sort != "n" or self.descending:
            self.anchors.clear()
        if self.plain:
            self.upto, self.counted = last_n, Count.of(last_n)
            if self.sort == "n":
                self.resolved = True
            return
        if self.resolved and self.small is None:
            if self.counted is not None and self.counted.exact and last_n > self.upto:
                self.counted = self._count_after(self.counted, self.upto)
            self.upto = last_n
            return
        found = self._keys(self.upto if self.resolved else 0)
        known = self.small or Keys([])
        if found is None or len(known) + len(found) > SMALL:
            self.small, self.counted = None, None
        else:
            self.small = known.with_more(found)
            self.counted = Count.of(len(self.small))
        self.resolved, self.upto = True, last_n

    def count(self) -> Count:
        """How many trajectories the view has; a lower bound when counting took too long."""
        if self.counted is None:
            self.counted = self._count_after(Count.of(0), 0)
        return self.counted

    def least(self) -> Count:
        """What is known of the count without counting; a lower bound when the view is large."""
        return self.counted if self.counted is not None else Count.of(SMALL + 1, exact=False)

    def page(self, offset: int, limit: int) -> list[int]:
        """The numbers of the trajectories at `offset` … of the view."""
        if self.small is not None:
            numbers = self.small.numbers
            if self.descending:
                end = max(0, len(numbers) - offset)
                return numbers[max(0, end - limit) : end].tolist()[::-1]
            return numbers[offset : offset + limit].tolist()
        if self.plain and self.sort == "n":
            return self._dense(offset, limit)
        total = self.counted if self.counted is not None and self.counted.exact else None
        backwards = False
        start, skip, ascending = None, offset, not self.descending
        before = [o for o in self.anchors if o <= offset]
        if before:
            nearest = max(before)
            start, skip = self.anchors[nearest], offset - nearest
        if total is not None and total - offset - limit < skip:  # nearer to the end: read it from there
            limit = min(limit, max(0, total - offset))
            start, skip, backwards = None, total - offset - limit, True
        keys = self._walk(start, ascending != backwards, limit, skip)
        if backwards:
            keys.reverse()
        if keys:
            self.anchors[offset + len(keys)] = keys[-1]
            if len(self.anchors) > 4096:
                self.anchors.clear()
        return [n for _, _, n in keys]

    def neighbour(self, n: int, direction: int) -> int | None:
        """The trajectory after (`+1`) or before (`-1`) trajectory n in the order of the view, or None at its end."""
        forwards = (direction > 0) != self.descending
        if self.plain and self.sort == "n":
            other = n + (1 if forwards else -1)
            return other if 1 <= other <= self.upto else None
        if (n, direction) in self.ahead:
            return self.ahead[n, direction]
        here = self._key_of(n)
        if here is None:
            return None
        if self.small is not None:
            return self.small.after(here) if forwards else self.small.before(here)
        keys = self._walk(here, forwards, AHEAD, 0)
        chain = [k[2] for k in keys]
        if len(self.ahead) > 4096:
            self.ahead.clear()
        for a, b in itertools.pairwise(chain):
            self.ahead[a, direction] = b
            self.ahead[b, -direction] = a
        if chain:  # one way only: n itself need not be in the view
            self.ahead[n, direction] = chain[0]
        if not keys:
            self.ahead[n, direction] = None
        return keys[0][2] if keys else None

    def numbers(self) -> Sequence[int] | None:
        """All numbers of a small view; None for a large one."""
        return None if self.small is None else self.small.numbers

    def _dense(self, offset: int, limit: int) -> list[int]:
        if self.descending:
            first = self.upto - offset
            return list(range(first, max(0, first - limit), -1))
        return list(range(offset + 1, min(self.upto, offset + limit) + 1))

    def source(self, order: str = "") -> tuple[str, list[object], str]:
        """FROM and WHERE over `rows`, their parameters, and the name of n there.

        A search drives the join: its postings come in order of n. Without one, a scan beats every index that SQLite
        would choose for a filter, unless an order is asked for.
        """
        if self.match and order:  # along another order: each row is looked up among the postings
            found = "EXISTS (SELECT 1 FROM search WHERE search MATCH ? AND rowid = n)"
            source = f"FROM rows INDEXED BY {order} WHERE ({self.where or 1}) AND {found}"
            return source, [*self.params, self.match], "n"
        if self.match:
            hits = "(SELECT rowid AS hit FROM search WHERE search MATCH ?)"
            source = f"FROM {hits} CROSS JOIN rows ON rows.n = hit WHERE {self.where or 1}"
            return source, [self.match, *self.params], "hit"
        hint = f"INDEXED BY {order}" if order else "NOT INDEXED"
        return f"FROM rows {hint} WHERE {self.where or 1}", list(self.params), "n"

    def _keys(self, after: int) -> list[Key] | None:
        """Keys of the matches after a number, unsorted; None when there are more than `SMALL`, or no time."""
        source, params, n = self.source()
        value = "n" if self.sort == "n" else self.sort
        found = self.connection.all(f"SELECT {value}, n {source} AND {n} > ? LIMIT ?", (*params, after, SMALL + 1))
        return None if len(found) > SMALL else [_key(v, i) for v, i in found]

    def _count_after(self, known: Count, after: int) -> Count:
        source, params, n = self.source()
        if self.match and not self.where:
            source, n = "FROM search WHERE search MATCH ?", "rowid"
        try:
            with self.connection.limit(COUNT_SECONDS):
                more = self.connection.one(f"SELECT count(*) {source} AND {n} > ?", (*params, after))
            return Count.of(known + (more[0] if more else 0), known.exact)
        except OutOfTime:
            least = max(known, SMALL + 1 if self.resolved and self.small is None and not self.plain else 0)
            return Count.of(least, exact=False)

    def _key_of(self, n: int) -> Key | None:
        row = self.connection.one(f"SELECT {self.sort} FROM rows WHERE n = ?", (n,))
        return None if row is None else _key(row[0], n)

    def _walk(self, start: Key | None, ascending: bool, limit: int, skip: int) -> list[Key]:
        """The next `limit` keys after `start` (exclusive) in a direction, leaving out the first `skip`."""
        if limit <= 0:
            return []
        if self.sort == "n":
            source, params, n = self.source()
            op, order = (">", "ASC") if ascending else ("<", "DESC")
            edge = start[2] if start is not None else (0 if ascending else self.upto + 1)
            rows = self.connection.all(
                f"SELECT {n} {source} AND {n} {op} ? ORDER BY {n} {order} LIMIT ? OFFSET ?",
                (*params, edge, limit, skip),
            )
            return [_key(i, i) for (i,) in rows]
        try:
            with self.connection.limit(None if self.plain else WALK_SECONDS):
                return self._along_index(start, ascending, limit, skip)
        except OutOfTime:  # the matches lie far along this order: one scan that keeps the best is quicker
            return self._by_scan(start, ascending, limit, skip)

    def _along_index(self, start: Key | None, ascending: bool, limit: int, skip: int) -> list[Key]:
        source, params, _ = self.source(f"rows_{self.sort}")
        keys: list[Key] = []
        for condition, more in _spans(self.sort, start, ascending):
            order = "ASC" if ascending else "DESC"
            sql = f"SELECT {self.sort}, n {source} AND {condition} ORDER BY {self.sort} {order}, n {order} LIMIT ?"
            need = limit + skip - len(keys)
            if skip and not keys and condition == "1":  # the whole order: SQLite skips faster than we do
                found = self.connection.all(f"{sql} OFFSET ?", (*params, *more, limit, skip))
                return [_key(v, n) for v, n in found]
            keys.extend(_key(v, n) for v, n in self.connection.all(sql, (*params, *more, need)))
            if len(keys) >= limit + skip:
                break
        return keys[skip:]

    def _by_scan(self, start: Key | None, ascending: bool, limit: int, skip: int) -> list[Key]:
        source, params, _ = self.source()
        order = "ASC" if ascending else "DESC"
        conditions = _spans(self.sort, start, ascending)
        either = " OR ".join(f"({c})" for c, _ in conditions)
        more = [p for _, ps in conditions for p in ps]
        rows = self.connection.all(
            f"SELECT {self.sort}, n {source} AND ({either}) ORDER BY {self.sort} {order}, n {order} LIMIT ? OFFSET ?",
            (*params, *more, limit, skip),
        )
        return [_key(v, n) for v, n in rows]


def _key(value: Any, n: int) -> Key:
    return (0, 0.0, n) if value is None else (1, value, n)


def _spans(sort: str, start: Key | None, ascending: bool) -> list[tuple[str, tuple[object, ...]]]:
    """What lies beyond a key in an order, as conditions that each are one range of the index (ties first)."""
    if start is None:
        return [("1", ())]
    present, value, n = start
    if ascending:
        if not present:
            return [(f"{sort} IS NULL AND n > ?", (n,)), (f"{sort} IS NOT NULL", ())]
        return [(f"{sort} = ? AND n > ?", (value, n)), (f"{sort} > ?", (value,))]
    if not present:
        return [(f"{sort} IS NULL AND n < ?", (n,))]
    return [
        (f"{sort} = ? AND n < ?", (value, n)),
        (f"{sort} < ?", (value,)),
        (f"{sort} IS NULL", ()),
    ]
