"""Read the record of a run: only what is on screen, at any size, while it is being written or after a crash."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from .bodies import Bodies
from .metrics import Metrics
from .notes import Notes
from .query import EVERYTHING, Query
from .record import Record
from .rollouts import Rollouts
from .status import look
from .types import Event, RunInfo


class RunReader:
    """The record of one run, opened for reading. Opening reads no rows.

    `rollouts` lists trajectories, `bodies` opens one, `metrics` holds the curves. Several threads may use one reader;
    their queries wait for each other, so a search belongs in a reader of its own. `problems` says in sentences what of
    this record cannot be read; methods then give what they can.
    """

    def __init__(self, run_dir: Path | str) -> None:
        self.run_dir = Path(run_dir)
        self._record = Record(self.run_dir)
        self.metrics = Metrics(self._record)
        self.rollouts = Rollouts(self._record)

    @cached_property
    def bodies(self) -> Bodies:
        """Whole trajectories."""
        return Bodies(self._record)

    @property
    def problems(self) -> list[str]:
        """What of this record cannot be read, in sentences."""
        return self._record.problems

    def close(self) -> None:
        """Close the database; a query in another thread is stopped."""
        self._record.close()

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def info(self) -> RunInfo:
        """Facts and status of the run, found by looking at its processes; the step, by looking into the record."""
        info = look(self.run_dir)
        return replace(info, step=max(info.step, self.metrics.last_step()))

    @property
    def notes(self) -> Notes:
        """What people said of its rollouts."""
        return self._record.notes

    def pending(self, query: Query = EVERYTHING) -> str:
        """What of the record is not there to be read yet, in a few words; empty: all that a query sees is."""
        return ""

    def events(self, kinds: Iterable[str] | None = None, *, after_id: int = 0, limit: int = 200) -> list[Event]:
        """The last `limit` events after an id, oldest first."""
        wanted = list(kinds) if kinds is not None else None
        where = f"AND kind IN ({','.join('?' * len(wanted))})" if wanted is not None else ""
        rows = self._record.all(
            f"SELECT id, kind, time, step, message, data FROM events WHERE id > ? {where} ORDER BY id DESC LIMIT ?",
            (after_id, *(wanted or ()), limit),
        )
        return [Event(kind=k, message=m, step=s, data=_json(d), time=t, id=i) for i, k, t, s, m, d in reversed(rows)]


def _json(text: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
