"""Metrics over steps, read for drawing: a long series costs as much as the points that are drawn of it."""

from __future__ import annotations

import math
from typing import NamedTuple

from .connection import Connection


class Band(NamedTuple):
    """A span of steps of one metric: its last step, and mean, minimum and maximum of the values in it."""

    step: int
    mean: float
    low: float
    high: float


def names(db: Connection) -> list[str]:
    """All metric names in order of first appearance."""
    return [name for (name,) in db.all("SELECT name FROM metric_names ORDER BY id")]


def points(db: Connection, name: str, after_step: int, max_points: int | None) -> list[tuple[int, float]]:
    """The values of a metric by step; means of spans when there are more than `max_points` steps."""
    id_ = _id(db, name)
    if id_ is None:
        return []
    if max_points is not None:
        span = _span(db, id_, after_step, max_points)
        if span[2] > 1:
            return [(b.step, b.mean) for b in _bands(db, id_, *span)]
    rows = db.all("SELECT step, value FROM metrics WHERE name = ? AND step > ? ORDER BY step", (id_, after_step))
    return [(step, _value(value)) for step, value in rows]


def band(db: Connection, name: str, after_step: int, max_points: int) -> list[Band]:
    """Mean, minimum and maximum of a metric in at most `max_points` equal spans of steps."""
    id_ = _id(db, name)
    return [] if id_ is None else _bands(db, id_, *_span(db, id_, after_step, max_points))


def since(db: Connection, rowid: int, limit: int) -> tuple[int, dict[str, list[tuple[int, float]]]]:
    """Points recorded after a row id, by name, and the new last row id."""
    known = dict(db.all("SELECT id, name FROM metric_names"))
    found: dict[str, list[tuple[int, float]]] = {}
    sql = "SELECT id, name, step, value FROM metrics WHERE id > ? ORDER BY id LIMIT ?"
    for id_, name, step, value in db.all(sql, (rowid, limit)):
        rowid = id_
        if name in known:
            found.setdefault(known[name], []).append((step, _value(value)))
    return rowid, found


def latest(db: Connection) -> dict[str, float]:
    """The last value of every metric: one seek each."""
    rows = db.all(
        "SELECT name, (SELECT value FROM metrics WHERE metrics.name = metric_names.id ORDER BY step DESC LIMIT 1) "
        "FROM metric_names ORDER BY id"
    )
    return {name: _value(value) for name, value in rows}


def _id(db: Connection, name: str) -> int | None:
    row = db.one("SELECT id FROM metric_names WHERE name = ?", (name,))
    return None if row is None else int(row[0])


def _span(db: Connection, id_: int, after_step: int, max_points: int) -> tuple[int, int, int]:
    """First step, last step, and steps to a span."""
    ends = db.one("SELECT min(step), max(step) FROM metrics WHERE name = ? AND step > ?", (id_, after_step))
    if ends is None or ends[0] is None:
        return 0, -1, 1
    first, last = int(ends[0]), int(ends[1])
    return first, last, max(1, math.ceil((last - first + 1) / max(1, max_points)))


def _bands(db: Connection, id_: int, first: int, last: int, span: int) -> list[Band]:
    # One range of the covering index per span: SQLite adds up where Python would fetch every point.
    sql = "SELECT max(step), avg(value), min(value), max(value) FROM metrics WHERE name = ? AND step >= ? AND step < ?"
    bands: list[Band] = []
    for start in range(first, last + 1, span):
        row = db.one(sql, (id_, start, start + span))
        if row is not None and row[0] is not None:
            bands.append(Band(row[0], _value(row[1]), _value(row[2]), _value(row[3])))
    return bands


def _value(value: float | None) -> float:
    return math.nan if value is None else value
