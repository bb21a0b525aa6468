"""Metrics over steps, read for drawing: a long series costs as much as the points that are drawn of it."""

from __future__ import annotations

import math

from .connection import Connection
from .schema import SPANS

_FOREVER = 2**62
"""After the last step of any run."""


Points = list[tuple[int, float]]
"""`[(step, value)]` in order of steps."""


def names(db: Connection) -> list[str]:
    """All metric names in order of first appearance."""
    return [name for (name,) in db.all("SELECT name FROM metric_names ORDER BY id")]


def points(db: Connection, name: str, after_step: int, max_points: int | None, until_step: int | None = None) -> Points:
    """The values of a metric by step; means of spans when there are more than `max_points` steps."""
    id_ = _id(db, name)
    if id_ is None:
        return []
    until = _FOREVER if until_step is None else until_step
    if max_points is not None and (width := _width(db, id_, after_step, until, max_points)) > 1:
        return _means(db, id_, after_step, until, width)
    sql = "SELECT step, value FROM metrics WHERE name = ? AND step > ? AND step <= ? ORDER BY step"
    return [(step, _value(value)) for step, value in db.all(sql, (id_, after_step, until))]


def since(db: Connection, rowid: int, limit: int) -> tuple[int, dict[str, Points]]:
    """Points recorded after a row id, by name, and the new last row id."""
    known = dict(db.all("SELECT id, name FROM metric_names"))
    found: dict[str, Points] = {}
    sql = "SELECT id, name, step, value FROM metrics WHERE id > ? ORDER BY id LIMIT ?"
    for id_, name, step, value in db.all(sql, (rowid, limit)):
        rowid = id_
        if name in known:
            found.setdefault(known[name], []).append((step, _value(value)))
    return rowid, found


def latest(db: Connection) -> dict[str, tuple[int, float]]:
    """The last step and value of every metric: one seek each."""
    rows = db.all(
        "SELECT metric_names.name, metrics.step, metrics.value FROM metric_names JOIN metrics ON metrics.id = "
        "(SELECT id FROM metrics WHERE metrics.name = metric_names.id ORDER BY step DESC LIMIT 1) "
        "ORDER BY metric_names.id"
    )
    return {name: (step, _value(value)) for name, step, value in rows}


def times(db: Connection, max_points: int) -> Points:
    """`[(step, seconds since the epoch)]` of at most about `max_points` steps over the run, and of the last."""
    last = db.one("SELECT max(step) FROM steps")
    if last is None or last[0] is None:
        return []
    every = max(1, last[0] // max(1, max_points))
    sql = "SELECT step, time FROM steps WHERE step % ? = 0 OR step = ? ORDER BY step"
    return [(int(step), float(time)) for step, time in db.all(sql, (every, last[0]))]


def _id(db: Connection, name: str) -> int | None:
    row = db.one("SELECT id FROM metric_names WHERE name = ?", (name,))
    return None if row is None else int(row[0])


def _width(db: Connection, id_: int, after: int, until: int, max_points: int) -> int:
    """The least power of two of steps to a span that leaves at most `max_points` spans."""
    first = db.one("SELECT min(step) FROM metrics WHERE name = ? AND step > ?", (id_, after))
    last = db.one("SELECT max(step) FROM metrics WHERE name = ? AND step <= ?", (id_, until))
    width = 1
    if first is not None and last is not None and first[0] is not None and last[0] is not None:
        while last[0] // width - first[0] // width + 1 > max(1, max_points):
            width *= 2
    return width


def _means(db: Connection, id_: int, after: int, until: int, width: int) -> Points:
    """The last step and the mean of each span of `width` steps in (after, until]: from the means that are kept, but of
    spans that either end cuts from the values."""
    kept = max((w for w in SPANS if w <= width), default=None)
    start, stop = (after // width + 1) * width, (until + 1) // width * width
    if kept is None or stop <= start:
        return _of_values(db, id_, after, until, width)
    sql = (
        "SELECT max(last), sum(total) / sum(count) FROM spans "
        "WHERE name = ? AND width = ? AND start >= ? AND start < ? GROUP BY start / ? ORDER BY start"
    )
    whole = [(step, _value(mean)) for step, mean in db.all(sql, (id_, kept, start, stop, width))]
    return [*_of_values(db, id_, after, start - 1, width), *whole, *_of_values(db, id_, stop - 1, until, width)]


def _of_values(db: Connection, id_: int, after: int, until: int, width: int) -> Points:
    if until <= after:
        return []
    sql = (
        "SELECT max(step), avg(value) FROM metrics "
        "WHERE name = ? AND step > ? AND step <= ? GROUP BY step / ? ORDER BY step"
    )
    return [(step, _value(mean)) for step, mean in db.all(sql, (id_, after, until, width))]


def _value(value: float | None) -> float:
    return math.nan if value is None else value
