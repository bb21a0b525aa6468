"""Open the record of a run for reading."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ..control.status import look
from ..durable import json_object
from ..notes import Notes
from ..search.query import EVERYTHING, Query
from ..types import Event, RunInfo
from .bodies import Bodies
from .metrics import Metrics
from .record import Record
from .rollouts import Rollouts


class RunReader:
    """The record of one run. Opening reads no rows.

    `rollouts` lists trajectories, `bodies` opens one, `metrics` holds the curves. Several threads may share a reader,
    but their queries wait for each other, so give a search its own reader. `problems` describes the unreadable parts of
    the record in sentences. Methods return the readable rest.
    """

    def __init__(self, run_dir: Path | str) -> None:
        self.run_dir = Path(run_dir)
        self._record = Record(self.run_dir)
        self.metrics = Metrics(self._record)
        self.rollouts = Rollouts(self._record)

    @cached_property
    def bodies(self) -> Bodies:
        return Bodies(self._record)

    @property
    def problems(self) -> list[str]:
        return self._record.problems

    def close(self) -> None:
        self._record.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def info(self) -> RunInfo:
        """Return facts and status of the run. The status comes from its processes. The step also uses the record."""
        info = look(self.run_dir)
        return replace(info, step=max(info.step, self.metrics.last_step()))

    @property
    def notes(self) -> Notes:
        return self._record.notes

    def pending(self, query: Query = EVERYTHING) -> str:
        """Describe in a few words the data that a query cannot see yet; empty if there is none."""
        return ""

    def timeline(self, step: int) -> dict[str, list[tuple[float, float]]]:
        """Return the time spans of a step's parts by name, in seconds since the epoch; empty if not recorded."""
        if not self._record.all("SELECT 1 FROM sqlite_master WHERE name = 'timeline'"):
            return {}
        found = self._record.all("SELECT data FROM timeline WHERE step = ?", (step,))
        spans = json_object(str(found[0][0])) if found else {}
        return {str(name): [(float(start), float(ended)) for start, ended in some] for name, some in spans.items()}

    def events(self, kinds: Iterable[str] | None = None, *, after_id: int = 0, limit: int = 200) -> list[Event]:
        """Return the last `limit` events after an id, oldest first."""
        names = list(kinds) if kinds is not None else None
        where = f"AND kind IN ({','.join('?' * len(names))})" if names is not None else ""
        rows = self._record.all(
            f"SELECT kind, message, step, data, time, id FROM events WHERE id > ? {where} ORDER BY id DESC LIMIT ?",
            (after_id, *(names or ()), limit),
        )
        return [Event(kind, message, step, json_object(data), *rest) for kind, message, step, data, *rest in rows[::-1]]
