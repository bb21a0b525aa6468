"""Read the metrics of a run for drawing. A long series costs only as much as its drawn points."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..schema import LAST_STEP, SPANS
from .record import Record

Points = list[tuple[int, float]]
"""`[(step, value)]` in order of steps."""


class Metrics:
    """Reads values and their means. All results are empty if nothing is recorded."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def names(self) -> list[str]:
        return [name for (name,) in self._record.all("SELECT name FROM metric_names ORDER BY id")]

    def by_step(self, keep: Callable[[str, float], bool] = lambda *_: True) -> dict[int, dict[str, float]]:
        """Return the values to `keep` by step and name."""
        found: dict[int, dict[str, float]] = {}
        for name in self.names():
            for step, value in self.points(name):
                if keep(name, value):
                    found.setdefault(step, {})[name] = value
        return dict(sorted(found.items()))

    def points(
        self, name: str, *, after_step: int = -1, until_step: int | None = None, max_points: int | None = None
    ) -> Points:
        """Return the values by step. With `max_points`, return means of equal spans, each at the span's last step."""
        id_ = self._record.scalar("SELECT id FROM metric_names WHERE name = ?", (name,))
        if id_ is None:
            return []
        until = LAST_STEP if until_step is None else min(until_step, LAST_STEP)
        if max_points is not None and (width := self._width(id_, after_step, until, max_points)) > 1:
            return self._means(id_, after_step, until, width)
        sql = "SELECT step, value FROM metrics WHERE name = ? AND step > ? AND step <= ? ORDER BY step"
        return self._read(sql, (id_, after_step, until))

    def since(self, rowid: int, limit: int = 20_000) -> tuple[int, dict[str, Points]]:
        """Return at most `limit` values after a row id: the new last id, and the points by name."""
        known = dict(self._record.all("SELECT id, name FROM metric_names"))
        found: dict[str, Points] = {}
        sql = "SELECT id, name, step, value FROM metrics WHERE id > ? ORDER BY id LIMIT ?"
        for id_, name, step, value in self._record.all(sql, (rowid, limit)):
            rowid = id_
            if name in known:
                found.setdefault(known[name], []).append((step, _value(value)))
        return rowid, found

    def latest(self) -> dict[str, float]:
        return {name: value for name, (_, value) in self.latest_points().items()}

    def latest_points(self) -> dict[str, tuple[int, float]]:
        """Return the last value of every metric with its step, at the cost of one seek each."""
        rows = self._record.all(
            "SELECT metric_names.name, metrics.step, metrics.value FROM metric_names JOIN metrics ON metrics.id = "
            "(SELECT id FROM metrics WHERE metrics.name = metric_names.id ORDER BY step DESC LIMIT 1) "
            "ORDER BY metric_names.id"
        )
        return {name: (step, _value(value)) for name, step, value in rows}

    def last_step(self) -> int:
        return int(self._record.scalar("SELECT max(step) FROM steps") or 0)

    def step_times(self, max_points: int = 400) -> Points:
        """Return `[(step, seconds since the epoch)]` of the first record of about `max_points` steps."""
        every = max(1, self.last_step() // max(1, max_points))
        sql = "SELECT step, time FROM steps WHERE step % ? = 0 OR step = (SELECT max(step) FROM steps) ORDER BY step"
        return [(int(step), float(time)) for step, time in self._record.all(sql, (every,))]

    def _width(self, id_: int, after: int, until: int, max_points: int) -> int:
        """Return the smallest power of two as span width, in steps, that gives at most `max_points` spans."""
        first = self._record.scalar("SELECT min(step) FROM metrics WHERE name = ? AND step > ?", (id_, after))
        last = self._record.scalar("SELECT max(step) FROM metrics WHERE name = ? AND step <= ?", (id_, until))
        width = 1
        while first is not None and last is not None and last // width - first // width + 1 > max(1, max_points):
            width *= 2
        return width

    def _means(self, id_: int, after: int, until: int, width: int) -> Points:
        """Return last step and mean of each span of `width` steps in (after, until].

        Whole spans use the recorded means. Spans cut by either end use the values.
        """
        kept = max((w for w in SPANS if w <= width), default=None)
        start, stop = (after // width + 1) * width, (until + 1) // width * width
        if kept is None or stop <= start:
            return self._of_values(id_, after, until, width)
        sql = (
            "SELECT max(last), sum(total) / sum(count) FROM spans "
            "WHERE name = ? AND width = ? AND start >= ? AND start < ? GROUP BY start / ? ORDER BY start"
        )
        complete = self._read(sql, (id_, kept, start, stop, width))
        before, behind = self._of_values(id_, after, start - 1, width), self._of_values(id_, stop - 1, until, width)
        return [*before, *complete, *behind]

    def _of_values(self, id_: int, after: int, until: int, width: int) -> Points:
        sql = (
            "SELECT max(step), avg(value) FROM metrics "
            "WHERE name = ? AND step > ? AND step <= ? GROUP BY step / ? ORDER BY step"
        )
        return self._read(sql, (id_, after, until, width)) if until > after else []

    def _read(self, sql: str, params: tuple[object, ...]) -> Points:
        return [(step, _value(value)) for step, value in self._record.all(sql, params)]


def _value(value: float | None) -> float:
    return math.nan if value is None else value
