"""Read records for commands."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ...engine.runs.search.query import Query
from ...engine.runs.types import RunInfo, TrajectoryRow
from .common import ExitCode, fail, warn

if TYPE_CHECKING:
    from ...engine.runs.read.reader import RunReader

PAGE = 500
"""Rows read at a time."""


@contextmanager
def opened(info: RunInfo) -> Iterator[RunReader]:
    """Return a reader on a run's record. An unreadable record ends the command with one line."""
    from ...engine.imports.readers import open_reader
    from ...engine.runs.errors import FilterError, RecordError

    try:
        reader = open_reader(Path(info.path))
        try:
            yield reader
        finally:
            for problem in reader.problems:
                warn(problem)
            reader.close()
    except FilterError as error:
        fail(f"--filter: {error}", ExitCode.USAGE)
    except RecordError as error:
        fail(f"the record of run {info.id} cannot be read: {error}")


def matching(reader: RunReader, filter_: str, search: str, limit: int | None) -> Iterator[TrajectoryRow]:
    """Yield the rows that match, in order of recording, a page at a time."""
    for note in reader.rollouts.filter_notes(filter_):
        warn(f"--filter: {note}")
    done = 0
    while limit is None or done < limit:
        size = PAGE if limit is None else min(PAGE, limit - done)
        rows = reader.rollouts.page(Query(filter_, search), offset=done, limit=size)
        yield from rows
        done += len(rows)
        if len(rows) < size:
            return
