"""Metrics, written: one value a name and step, and means of spans of steps."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence

from ..labels import clean
from ..schema import SPANS

_SPAN = """
INSERT INTO spans SELECT n, w, s, v IS NOT NULL, v, v, v, last
    FROM (SELECT ?1 AS n, ?2 AS w, ?3 AS s, ?4 AS last, ?5 AS v) WHERE true
ON CONFLICT (name, width, start) DO UPDATE SET
    count = count + excluded.count, total = coalesce(total + excluded.total, total, excluded.total),
    low = min(coalesce(low, excluded.low), coalesce(excluded.low, low)),
    high = max(coalesce(high, excluded.high), coalesce(excluded.high, high)), last = max(last, excluded.last)
"""
_SPANS_OF_VALUES = """
INSERT INTO spans SELECT name, ?1, step - step % ?1 AS s, count(value), sum(value), min(value), max(value), max(step)
    FROM metrics WHERE step >= ?2 AND step < ?3 AND (?4 IS NULL OR name = ?4) GROUP BY name, s
"""
_END = 2**62
"""After the last step of any run."""


class MetricTables:
    """Writes metrics inside the transactions of `RecordStore`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self._ids: dict[str, int] = {}

    def forget(self) -> None:
        """Drop the cached names, after a rollback."""
        self._ids.clear()

    def touch(self, step: int) -> None:
        """Note the time of a step, the first time that something of it is recorded."""
        self.db.execute("INSERT OR IGNORE INTO steps VALUES (?, ?)", (step, time.time()))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Add one number a name."""
        self.touch(step)
        rows = [(self._id(name), step, value) for name, value in values.items()]
        self.db.executemany("INSERT INTO metrics (name, step, value) VALUES (?, ?, ?)", rows)
        for width in SPANS:
            start = step - step % width
            self.db.executemany(_SPAN, [(name, width, start, step, value) for name, _, value in rows])

    def replace(self, step: int, values: Mapping[str, float | None]) -> None:
        """Replace the numbers of a step. None removes one."""
        for name in map(self._id, values):
            had = self.db.execute("DELETE FROM metrics WHERE name = ? AND step = ?", (name, step)).rowcount
            for width in SPANS if had else ():
                start = step - step % width
                sql = "DELETE FROM spans WHERE name = ? AND width = ? AND start = ?"
                self.db.execute(sql, (name, width, start))
                self.db.execute(_SPANS_OF_VALUES, (width, start, start + width, name))
        self.add(step, {name: value for name, value in values.items() if value is not None})

    def values_of(self, names: Sequence[str]) -> Iterator[tuple[int, str, float]]:
        """Yield `(step, name, value)` of some metrics in order of steps, without missing values."""
        marks = ",".join("?" * len(names))
        yield from self.db.execute(
            "SELECT step, metric_names.name, value FROM metrics JOIN metric_names ON metric_names.id = metrics.name "
            f"WHERE metric_names.name IN ({marks}) AND value IS NOT NULL ORDER BY step",
            tuple(names),
        )

    def remove_after(self, step: int) -> None:
        """Remove the metrics of later steps."""
        self.db.execute("DELETE FROM metrics WHERE step > ?", (step,))
        for width in SPANS:
            self.db.execute("DELETE FROM spans WHERE width = ? AND start + width > ?", (width, step))
            self.db.execute(_SPANS_OF_VALUES, (width, (step + 1) - (step + 1) % width, _END, None))

    def _id(self, name: str) -> int:
        known = self._ids.get(name)
        if known is None:
            text = clean(name)
            self.db.execute("INSERT OR IGNORE INTO metric_names (name) VALUES (?)", (text,))
            known = int(self.db.execute("SELECT id FROM metric_names WHERE name = ?", (text,)).fetchone()[0])
            self._ids[name] = known
        return known
