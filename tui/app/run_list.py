"""The runs of a folder as a list: read, filtered and sorted. Nothing here draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ...engine.runs.control.status import look
from ...engine.runs.errors import RecordError
from ...engine.runs.health import headline
from ...engine.runs.health.headline import Headline
from ...engine.runs.types import RunInfo

SORTS = ("created", "status", "success", "reward", "step", "mode", "environment", "model", "id")
DUMPS = 50
"""Maximum number of dumps that are listed with the runs."""
LARGEST_FIRST = ("created", "success", "reward", "step")
"""Columns that sort from the largest value on."""
_STATUS = ("running", "starting", "paused", "stopping", "crashed", "stopped", "finished")
NOTHING = Headline()


@dataclass(frozen=True)
class RunRow:
    """One run of the list. `known`: its headline was read. The record is read only if the status file lacks one."""

    info: RunInfo
    headline: Headline = NOTHING
    known: bool = False

    @property
    def dump(self) -> bool:
        return self.info.mode == "dump"


def is_branch(info: RunInfo) -> bool:
    """Return whether a run holds continuations of a step (`start_branch` names its folder)."""
    return info.mode == "eval" and info.id.startswith("branch-")


def load(folder: Path, before: Mapping[str, RunRow]) -> dict[str, RunRow]:
    """Return the runs of a folder and recent dumps by path. Values read from a record are reused until the run
    advances. Raises OSError if the folder cannot be read."""
    from ...engine.imports.cache import recent  # imported here to keep the first paint fast
    from ...engine.launch.find import list_runs

    rows = {}
    for info in (*list_runs(folder), *map(look, recent()[:DUMPS])):
        said, old = headline.of_status(info), before.get(info.path)
        if said is not None:
            rows[info.path] = RunRow(info, said, known=True)
        elif old is not None and (old.info.step, old.info.status) == (info.step, info.status):
            rows[info.path] = replace(old, info=info)
        else:
            rows[info.path] = RunRow(info, old.headline if old is not None else NOTHING)
    return rows


def looked_into(row: RunRow) -> RunRow:
    """Return the row with the headline from its record. A damaged record has none."""
    from ...engine.imports.readers import open_reader  # imported here: most lists need none

    try:
        with open_reader(Path(row.info.path)) as reader:
            return replace(row, headline=headline.of_record(reader), known=True)
    except (RecordError, OSError):
        return replace(row, known=True)


def arranged(rows: Iterable[RunRow], text: str, column: str, descending: bool) -> list[RunRow]:
    """Return the rows that contain every word of `text`, sorted by a column, then by age. Dumps follow runs."""
    words = text.casefold().split()

    def matches(row: RunRow) -> bool:
        i = row.info
        held = f"{i.id} {i.name} {'' if row.dump else i.status} {i.mode} {i.environment} {i.model}".casefold()
        return all(word in held for word in words)

    found = [row for row in rows if matches(row)]
    found.sort(key=lambda row: (_key(row, column), row.info.created), reverse=descending)
    return sorted(found, key=lambda row: row.dump)


def _key(row: RunRow, column: str) -> object:
    if column in ("success", "reward"):
        value = getattr(row.headline, column)
        return (value is not None, value or 0.0)
    if column == "status":
        return _STATUS.index(row.info.status)
    return getattr(row.info, column)
