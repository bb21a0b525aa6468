"""The database of one run, opened for reading, also if it is damaged, being written, or missing so far.

Queries return the readable rows and add the rest to `problems`. All parts of a reader (`metrics.py`, `rollouts.py`,
`bodies.py`, `groups.py`) query through one `Record`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..connection import Connection
from ..errors import RecordDamaged
from ..labels import Labels
from ..notes import Notes
from ..paths import DATABASE
from ..schema import other_version, version
from .integrity import missing_trajectories


class Record:
    """The database behind a reader. Opening it reads no rows."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.problems: list[str] = []
        """The unreadable parts of this record, in sentences."""
        self.damages = 0
        """Queries that met a damaged part so far."""
        self.notes = Notes(run_dir)
        """The notes of people on its rollouts."""
        self._connection: Connection | None = None
        self._labels: Labels | None = None
        self._open()

    def close(self) -> None:
        """Stop a query in another thread, and close the database."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def db(self) -> Connection | None:
        """The connection; None while there is no database, or none that can be opened."""
        if self._connection is None and not self.problems:
            self._open()  # a run that has just begun
        return self._connection

    def all(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; in a damaged file, those before the damage."""
        db = self.db
        rows: list[tuple[Any, ...]] = []
        if db is None:
            return rows
        try:
            rows.extend(db.each(sql, params))
        except RecordDamaged as error:
            self.damages += 1
            self.tell(str(error))
        return rows

    def scalar(self, sql: str, params: Sequence[Any] = ()) -> Any:
        rows = self.all(sql, params)
        return rows[0][0] if rows else None

    def labels(self) -> Labels | None:
        """Return names of actions, rules, environments …, with those that were recorded meanwhile."""
        db = self.db
        if db is None:
            return None
        if self._labels is None:
            self._labels = Labels(db.db)
        try:
            with db.lock:
                self._labels.refresh()
        except sqlite3.Error as error:
            self.tell(f"{self.run_dir / DATABASE}: names cannot be read ({error})")
        return self._labels

    def extent(self) -> tuple[int, str | None]:
        """Return the number of the last trajectory, and which life of the run the numbers are of (see
        `truncate_after`)."""
        rows = self.all("SELECT (SELECT max(n) FROM rows), (SELECT value FROM meta WHERE key = 'epoch')")
        return (int(rows[0][0] or 0), rows[0][1]) if rows else (0, None)

    def tell(self, message: str) -> None:
        if message not in self.problems:
            self.problems.append(message)

    def _open(self) -> None:
        path = self.run_dir / DATABASE
        if not path.exists():
            if lost := missing_trajectories(self.run_dir, 0):
                self.tell(lost)
            return
        try:
            connection = Connection(path)
            found = version(connection.db)
            if found == 0:  # the writer has made the file but not its tables yet
                connection.close()
                return
            if (problem := other_version(connection.db, path)) is not None:
                connection.close()
                self.tell(problem)
                return
            self._connection = connection
        except (RecordDamaged, sqlite3.Error) as error:
            self.tell(str(error))
            return
        if lost := missing_trajectories(self.run_dir, self.extent()[0]):
            self.tell(f"{lost}; `grpo-tui repair {self.run_dir.name}` saves the readable part")
