"""The metrics of a run: every recorded number by name and step."""

from __future__ import annotations

from . import series
from .record import Record
from .series import Points


class Metrics:
    """Reads `[(step, value)]` and means of them; empty where nothing is recorded."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def names(self) -> list[str]:
        """All names, in order of first appearance."""
        db = self._record.db
        return [] if db is None else series.names(db)

    def points(
        self, name: str, *, after_step: int = -1, until_step: int | None = None, max_points: int | None = None
    ) -> Points:
        """`[(step, value)]` in order of steps. With `max_points`, means of equal spans, each at its last step."""
        db = self._record.db
        return [] if db is None else series.points(db, name, after_step, max_points, until_step)

    def since(self, rowid: int, limit: int = 20_000) -> tuple[int, dict[str, Points]]:
        """What was recorded after a row id: the new last id, and points by name; at most `limit` of them a call."""
        db = self._record.db
        return (rowid, {}) if db is None else series.since(db, rowid, limit)

    def latest(self) -> dict[str, float]:
        """The last value of every metric."""
        return {name: value for name, (_, value) in self.latest_points().items()}

    def latest_points(self) -> dict[str, tuple[int, float]]:
        """The last value of every metric, with its step."""
        db = self._record.db
        return {} if db is None else series.latest(db)

    def last_step(self) -> int:
        """The last step of which anything is recorded; 0 before."""
        return int(self._record.scalar("SELECT max(step) FROM steps") or 0)

    def step_times(self, max_points: int = 400) -> Points:
        """`[(step, seconds since the epoch)]`: when the first thing of a step was recorded; of some steps of many."""
        db = self._record.db
        return [] if db is None else series.times(db, max_points)
