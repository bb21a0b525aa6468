"""Metrics over steps, read for drawing: a long series costs as much as the points that are drawn of it."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

from .connection import Connection
from .schema import SPANS


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
    if max_points is not None and (width := _width(db, id_, after_step, max_points)) > 1:
        return [(b.step, b.mean) for b in _bands(db, id_, after_step, width)]
    rows = db.all("SELECT step, value FROM metrics WHERE name = ? AND step > ? ORDER BY step", (id_, after_step))
    return [(step, _value(value)) for step, value in rows]


def band(db: Connection, name: str, after_step: int, max_points: int) -> list[Band]:
    """Mean, minimum and maximum of a metric in at most `max_points` equal spans of steps."""
    id_ = _id(db, name)
    return [] if id_ is None else _bands(db, id_, after_step, _width(db, id_, after_step, max_points))


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


def _width(db: Connection, id_: int, after_step: int, max_points: int) -> int:
    """The least power of two of steps to a span that leaves at most `max_points` spans."""
    first = db.one("SELECT min(step) FROM metrics WHERE name = ? AND step > ?", (id_, after_step))
    last = db.one("SELECT max(step) FROM metrics WHERE name = ?", (id_,))
    width = 1
    if first is not None and last is not None and first[0] is not None:
        while last[0] // width - first[0] // width + 1 > max(1, max_points):
            width *= 2
    return width


def _bands(db: Connection, id_: int, after_step: int, width: int) -> list[Band]:
    kept = max((w for w in SPANS if w <= width), default=None)
    if kept is None or after_step >= 0:  # short, or cut in the middle of a span: from the values themselves
        sql = (
            "SELECT step, value IS NOT NULL, value, value, value, step FROM metrics "
            "WHERE name = ? AND step > ? ORDER BY step"
        )
        rows = db.all(sql, (id_, after_step))
    else:
        sql = "SELECT start, count, total, low, high, last FROM spans WHERE name = ? AND width = ? ORDER BY start"
        rows = db.all(sql, (id_, kept))
    bands: list[Band] = []
    for _, group in itertools.groupby(rows, key=lambda row: row[0] // width):
        spans = list(group)
        number = sum(count for _, count, *_ in spans)
        total = sum(t for _, _, t, *_ in spans if t is not None)
        low = min((v for *_, v, _, _ in spans if v is not None), default=math.nan)
        high = max((v for *_, v, _ in spans if v is not None), default=math.nan)
        bands.append(Band(max(last for *_, last in spans), total / number if number else math.nan, low, high))
    return bands


def _value(value: float | None) -> float:
    return math.nan if value is None else value
