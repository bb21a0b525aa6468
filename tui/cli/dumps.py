"""The runs and dumps that a person names on the command line, opened for reading."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from ...engine.imports import cache
from ...engine.imports.background import OpenedDump, is_path_of_dump
from ...engine.imports.options import Options
from ...engine.imports.readers import open_reader
from ...engine.launch.find import find_run
from ...engine.runs.errors import FilterError, RecordError
from ...engine.runs.read.reader import RunReader
from ...engine.runs.remote.address import is_address
from ...engine.runs.search.query import Query
from ...engine.runs.types import RunInfo, TrajectoryRow
from ..text import literal
from .common import ExitCode, fail, warn
from .output import own_importers


def run_or_dump(
    reference: str, home: Path, maps: Sequence[str] | None = None, importers: Sequence[str] | None = None
) -> RunInfo:
    """Return the run, or the indexed dump, that a person named to a command. Prints which parts of a dump were
    skipped."""
    if not (maps or importers or is_path_of_dump(reference, home)):
        return named_run(reference, home)
    info, dump = opened_dump(reference, maps, importers, whole=True)
    for text in dump_notes(dump.summary):
        if not text.startswith("not in "):
            warn(text)
    return info


def opened_dump(
    reference: str,
    maps: Sequence[str] | None,
    importers: Sequence[str] | None,
    *,
    whole: bool,
    searchable: bool = False,
) -> tuple[RunInfo, OpenedDump]:
    """Open a dump as a run. If it cannot be opened, the command ends with one line."""
    from ...engine.imports.opening import open_dump

    options = options_of(maps, importers)
    try:
        opened = open_dump(reference, options, whole=whole, searchable=searchable)
    except PermissionError as error:
        fail(f"{reference} cannot be read: {error.strerror}")
    return info_of(opened.folder), opened


def info_of(folder: Path) -> RunInfo:
    """Return the facts of a dump whose index is in this folder."""
    with open_reader(folder) as reader:
        return reader.info()


def options_of(maps: Sequence[str] | None, importers: Sequence[str] | None) -> Options:
    """Return how to read a dump. A wrong option ends the command with one line."""
    return Options.of(maps or (), (*(importers or ()), *own_importers()))


def dump_notes(summary: Mapping[str, Any]) -> list[str]:
    """Return lines about a dump: the recognised formats, the skipped parts, and the numbers that these formats lack."""
    if not summary:
        return []
    formats = {name: n for name, n in summary["formats"].items() if name != "(unknown)"}
    files = summary["files"]
    n, what = summary["rollouts"], "rollout"
    if not n and summary["metrics"]:
        n, what = summary["metrics"], "metric"
    lines = [
        f"{n:,} {what}{'s' * (n != 1)} in {files:,} file{'s' * (files != 1)}: "
        + ", ".join(f"{name} ({n:,} document{'s' * (n != 1)})" for name, n in formats.items())
    ]
    if note := cache.note():
        lines.append(note)
    skipped = summary["skipped"]
    for item in skipped[:5]:
        line = f", line {item['line']}" if item["line"] else ""
        lines.append(f"skipped: {item['file']}{line}: {item['why']}")
    if summary["skipped_in_all"] > 5:
        lines.append(f"… {summary['skipped_in_all'] - 5:,} more were skipped")
    low = (summary.get("coverage") or {}).get("low") or {}
    for name, share in list(low.items())[:5]:
        lines.append(f"{name}: {share:.0%} of the measured words reached a message; the rest has an unknown form")
    for name, reasons in summary["not_recorded"].items():
        if reasons:
            lines.append(f"not in {name}: " + "; ".join(f"{what} ({reason})" for what, reason in reasons.items()))
    return [literal(text) for text in lines]


def argument_of(info: RunInfo) -> str:
    """Return the arguments that name this run or dump to another command."""
    options = info.facts.get("options") or {}
    maps = [f"--map={role}={key}" for role, key in (options.get("keys") or {}).items()]
    importers = [f"--importer={path}" for path in options.get("importers") or ()]
    dump = info.facts.get("dump")
    return " ".join([quote(str(dump)) if dump else info.reference, *map(quote, (*maps, *importers))])


def named_run(reference: str, home: Path) -> RunInfo:
    """Return the run that a person named. Ends the command where a path was meant that is not there."""

    path = Path(reference).expanduser()
    named = os.path.basename(reference) != reference and not is_address(reference)
    if named and not path.exists() and not (home / reference).exists():
        fail(f"there is no file or folder {reference}", ExitCode.NOT_FOUND)
    if os.path.exists(path) and not (path.is_file() or path.is_dir() or (home / reference).is_dir()):
        fail(f"{reference} is a pipe or a device: pipe its text into `grpo-tui … -`", ExitCode.USAGE)
    return find_run(home, reference)


PAGE = 500
"""Rows read at a time."""


@contextmanager
def opened(info: RunInfo) -> Iterator[RunReader]:
    """Return a reader on a run's record. An unreadable record ends the command with one line."""

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
