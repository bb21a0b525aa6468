"""An index of ended runs: a list of thousands makes two system calls a run and reads one file.

A run counts as unchanged while its folder and its folder of processes keep their modification times. Renaming, resuming
and ending a run all replace a file in one of them.
"""

from __future__ import annotations

import os
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import orjson

from ..runs.columns import SCHEMA_VERSION
from ..runs.control.status import look
from ..runs.durable import replace_file
from ..runs.paths import CONFIG_FILE, DATABASE, PROCESSES, RUN_FILE
from ..runs.types import ENDED, RunInfo

INDEX = ".ended-runs.json"
NEWS = 32
"""How many runs that are not in the file make it worth writing again."""
SETTLED_NS = 2_000_000_000
"""A folder that changed later than this ago may change again within the same tick of its clock."""
_FIELDS = [field.name for field in fields(RunInfo) if field.name not in ("path", "progress")]

Times = tuple[int, int]


class RunIndex:
    """The ended runs of one folder, by name."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._kept: dict[str, tuple[Times, RunInfo]] = {}
        self._written = 0
        try:
            found = orjson.loads((runs_dir / INDEX).read_bytes())
            if found["version"] == SCHEMA_VERSION:
                for name, (run, processes, values) in found["runs"].items():
                    self._kept[name] = (run, processes), self._info(name, values)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self._kept = {}
        self._written = len(self._kept)

    def look(self, name: str) -> RunInfo | None:
        """Return facts and status of a run, as `status.look` gives them, or None for a folder that holds no run."""
        folder = self.runs_dir / name
        times = _times(folder)
        kept = self._kept.get(name)
        if kept is not None and kept[0] == times:
            return kept[1]
        if not is_run(folder):
            return None
        info = look(folder)
        self._kept.pop(name, None)
        if info.status in ENDED and max(times) < time.time_ns() - SETTLED_NS:
            self._kept[name] = times, info
        return info

    def keep(self, names: set[str]) -> None:
        """Forget runs that are gone, and write the index when it has grown."""
        for name in self._kept.keys() - names:
            del self._kept[name]
        if len(self._kept) < self._written + NEWS:
            return
        self._written = len(self._kept)
        runs = {name: (*times, self._values(info)) for name, (times, info) in self._kept.items()}
        try:
            data = orjson.dumps({"version": SCHEMA_VERSION, "runs": runs}, default=str)
            replace_file(self.runs_dir / INDEX, data, wait=False)
        except (OSError, TypeError):
            pass  # a folder of somebody else's: it is read anew each time

    def _info(self, name: str, values: list[Any]) -> RunInfo:
        return RunInfo(path=str(self.runs_dir / name), **dict(zip(_FIELDS, values, strict=True)))

    @staticmethod
    def _values(info: RunInfo) -> list[Any]:
        return [getattr(info, name) for name in _FIELDS]


def is_run(path: Path) -> bool:
    """Return whether a folder holds a run."""
    return any((path / name).is_file() for name in (RUN_FILE, DATABASE, CONFIG_FILE))


def _times(folder: Path) -> Times:
    """Return when the run's folder and its folder of processes changed, in ns; 0 for a missing one."""
    found = []
    for path in (folder, folder / PROCESSES):
        try:
            found.append(os.stat(path).st_mtime_ns)
        except OSError:
            found.append(0)
    return found[0], found[1]
