"""Compute the distribution of a number over a view, fast enough to follow typing in the filter box."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from itertools import pairwise

from ..columns import SORTS, WHOLE
from ..errors import FilterError
from ..read.record import Connection, OutOfTime
from ..schema import AMONG
from .query import Selection

SECONDS = 0.12
BLOCK = 8192
INFINITY = "8e307"
"""Larger numbers count as infinite, so that a difference of two numbers is finite."""


class Histogram(list[tuple[float, float, int]]):
    """`[(low, high, count)]`. The last bin includes `high`. `exact` is False if the counts are scaled up from the
    share `seen` (0 … 1) of the run that was read in time."""

    exact: bool = True
    seen: float = 1.0


def of(
    db: Connection, selection: Selection, numbers: Sequence[int] | None, last_n: int, column: str, bins: int
) -> Histogram:
    """Count a column's finite values in at most `bins` equal bins over their range in the whole run (1 … `last_n`).

    `numbers`: the trajectories of the selection, if known.
    """
    if column not in SORTS:
        raise FilterError(f"no histogram of {column!r}: use one of {', '.join(SORTS)}")
    low = "SELECT min({0}) FROM rows WHERE {0} > -{1}"
    high = "SELECT max({0}) FROM rows WHERE {0} < {1}"
    result = Histogram()
    ends = [row[0] for sql in (low, high) for row in db.all(sql.format(column, INFINITY)) if row[0] is not None]
    if len(ends) < 2:
        return result
    edges = _edges(float(ends[0]), float(ends[1]), max(1, bins), column)
    if selection.everything:
        counts = _by_ranges(db, column, edges)
    elif numbers is not None:
        sql = f"SELECT {_bin(column, edges)} AS b, count({column}) FROM rows WHERE n {AMONG} GROUP BY b"
        found = dict(db.all(sql, (json.dumps(numbers),)))
        counts = [found.get(b, 0) for b in range(len(edges) - 1)]
    else:
        counts, result.seen = _by_blocks(db, selection, last_n, column, edges)
        result.exact = result.seen >= 1.0
    result.extend(zip(edges, edges[1:], counts, strict=False))
    return result


def _edges(start: float, end: float, bins: int, column: str) -> list[float]:
    """Return the edges of equal bins. For integers, the edges are integers too."""
    if end <= start:
        return [start, end]
    if column in WHOLE and bins > 1:
        width = math.ceil((end - start + 1) / bins)
        return [start + width * i for i in range(math.ceil((end - start + 1) / width) + 1)]
    return [start + (end - start) * i / bins for i in range(bins)] + [end]


def _by_ranges(db: Connection, column: str, edges: list[float]) -> list[int]:
    """Count without a filter, reading each bin as one range of the column's index."""
    sql = f"SELECT count(*) FROM rows WHERE {column} >= ? AND {column} < ?"
    counts = [db.all(sql, ends)[0][0] for ends in pairwise(edges)]
    counts[-1] += db.all(f"SELECT count(*) FROM rows WHERE {column} = ?", edges[-1:])[0][0]
    return counts


def _bin(column: str, edges: list[float]) -> str:
    """Return SQL for the bin number. It is null for infinite values."""
    width = (edges[-1] - edges[0]) / (len(edges) - 1) or 1.0
    finite = f"CASE WHEN abs({column}) < {INFINITY} THEN {column} END"
    return f"min({len(edges) - 2}, max(0, CAST(({finite} - {edges[0]!r}) / {width!r} AS INTEGER)))"


def _by_blocks(
    db: Connection, selection: Selection, last_n: int, column: str, edges: list[float]
) -> tuple[list[int], float]:
    """Count blocks of rows spread over the run until all are read or time is up, then scale to the whole run."""
    counts = [0] * (len(edges) - 1)
    blocks = max(1, -(-last_n // BLOCK))
    stride = next(s for s in range(max(1, int(blocks * 0.618)), blocks + 2) if math.gcd(s, blocks) == 1)
    where, params, n = selection.source()
    sql = (
        f"SELECT {_bin('rows.' + column, edges)} AS b, count(rows.{column}) {where} AND {n} > ? AND {n} <= ? GROUP BY b"
    )
    done, deadline = 0, time.monotonic() + SECONDS
    for i in range(blocks):
        left = deadline - time.monotonic()
        if done and left <= 0:
            break
        first = (i * stride % blocks) * BLOCK
        try:
            with db.limit(max(left, 0.02)):
                for b, count in db.all(sql, (*params, first, first + BLOCK)):
                    if b is not None:
                        counts[b] += count
        except OutOfTime:
            break
        done += 1
    seen = done / blocks
    return ([round(c / seen) for c in counts] if 0 < seen < 1 else counts), seen
