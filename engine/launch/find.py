"""Find a run by id, by a unique beginning or end of the id, by name, by path, or as the latest; list all runs."""

from __future__ import annotations

import difflib
import errno
import os
import time
from contextlib import suppress
from dataclasses import fields
from functools import cache
from pathlib import Path

import orjson

from ..runs.columns import SCHEMA_VERSION
from ..runs.control.status import look
from ..runs.durable import read_json, replace_file
from ..runs.errors import RunNotFound
from ..runs.masking import mask_text
from ..runs.paths import CONFIG_FILE, DATABASE, PROCESSES, RUN_FILE
from ..runs.remote.address import is_address
from ..runs.types import ENDED, RunInfo
from .children import reap

INDEX = ".ended-runs.json"
NEWS = 32
"""The index file is rewritten after this many new runs."""
_FIELDS = [field.name for field in fields(RunInfo) if field.name not in ("path", "progress")]

Times = tuple[int, int]


class RunIndex:
    """A persistent cache of the ended runs in one folder, by name."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir
        self._kept: dict[str, tuple[Times, RunInfo]] = {}
        try:
            found = orjson.loads((runs_dir / INDEX).read_bytes())
            if found["version"] == SCHEMA_VERSION:
                for name, (run, processes, values) in found["runs"].items():
                    facts = dict(zip(_FIELDS, values, strict=True))
                    self._kept[name] = (run, processes), RunInfo(path=str(runs_dir / name), **facts)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            self._kept = {}
        self._written = len(self._kept)

    def look(self, name: str) -> RunInfo | None:
        """Return a run's facts and status as `status.look` does; None if the folder holds no run."""
        folder = self.runs_dir / name
        times = _times(folder)
        kept = self._kept.get(name)
        if kept is not None and kept[0] == times:
            return kept[1]
        if not is_run(folder):
            return None
        info = look(folder)
        self._kept.pop(name, None)
        # A folder that changed within two seconds may change again within the same tick of its clock.
        if info.status in ENDED and max(times) < time.time_ns() - 2_000_000_000:
            self._kept[name] = times, info
        return info

    def keep(self, names: set[str]) -> None:
        """Forget runs that are gone, and write the index when it has grown."""
        for name in self._kept.keys() - names:
            del self._kept[name]
        if len(self._kept) < self._written + NEWS:
            return
        self._written = len(self._kept)
        runs = {
            name: (*times, [getattr(info, field) for field in _FIELDS]) for name, (times, info) in self._kept.items()
        }
        try:
            data = orjson.dumps({"version": SCHEMA_VERSION, "runs": runs}, default=str)
            replace_file(self.runs_dir / INDEX, data, wait=False)
        except (OSError, TypeError):
            pass  # the folder belongs to another user: read it again each time


def is_run(path: Path) -> bool:
    """Return whether a folder holds a run."""
    return any(os.path.isfile(path / name) for name in (RUN_FILE, DATABASE, CONFIG_FILE))


def _times(folder: Path) -> Times:
    """Return the mtimes of the run's folder and its process folder, in ns; 0 for a missing folder."""
    found = []
    for path in (folder, folder / PROCESSES):
        try:
            found.append(os.stat(path).st_mtime_ns)
        except OSError:
            found.append(0)
    return found[0], found[1]


def list_runs(runs_dir: Path) -> list[RunInfo]:
    """Return all runs in a folder, newest first; empty if the folder is missing. Reads small files of active runs."""
    reap()
    index = _index(runs_dir, os.getcwd())
    runs = {name: run for name in _folders(runs_dir) if (run := index.look(name)) is not None}
    index.keep(set(runs))
    return sorted(runs.values(), key=lambda r: (r.created, r.id), reverse=True)


def check_readable(runs_dir: Path) -> None:
    """Raise PermissionError if the folder, or a folder in it that may be a run, cannot be read."""
    with suppress(FileNotFoundError):
        os.listdir(runs_dir)
    for name in _folders(runs_dir):
        with suppress(FileNotFoundError):
            os.stat(runs_dir / name / RUN_FILE)


@cache
def _index(runs_dir: Path, here: str) -> RunIndex:
    return RunIndex(runs_dir)


def find_run(runs_dir: Path, ref: str | os.PathLike[str]) -> RunInfo:
    """Find the run that the user named: `latest`, an id, a unique beginning or end of an id, a unique name, a path, or
    an address.

    Raises AddressError, and RunNotFound with the nearest ids.
    """
    reap()
    text = os.fspath(ref)
    if text == "latest":
        runs = list_runs(runs_dir)
        if not runs:
            check_readable(runs_dir)
            raise RunNotFound(f"there is no run in {runs_dir} yet: start one with `grpo-tui train`")
        return runs[0]
    if is_address(text):
        from ..runs.remote.mirror import mirrored

        if (folder := mirrored(text)) is None:
            raise RunNotFound(f"there is no run at {mask_text(text)}")
        return look(folder)
    path = Path(text).expanduser()
    if (os.sep in text or text in (".", "..")) and is_run(path):
        return look(path.absolute())
    names = [name for name in _folders(runs_dir) if is_run(runs_dir / name)]
    if text in names:
        return look(runs_dir / text)
    found = [n for n in names if n.startswith(text)] or [n for n in names if n.endswith(text)] if text else []
    if text in _folders(runs_dir) and not os.access(runs_dir / text, os.X_OK):
        raise RunNotFound(f"{runs_dir / text} cannot be read: {os.strerror(errno.EACCES)}")
    if not found:
        found = [n for n in names if text and read_json(runs_dir / n / RUN_FILE).get("name") == text]
    if len(found) == 1:
        return look(runs_dir / found[0])
    if found:
        shown = ", ".join(sorted(found, reverse=True)[:5])
        raise RunNotFound(f"{len(found)} runs match {text!r}: {shown}; give more of the id")
    if not names:
        raise RunNotFound(
            f"no run {text!r}: there is no run in {runs_dir} yet (--runs-dir or GRPO_TUI_HOME sets the folder)"
        )
    near = difflib.get_close_matches(text, names, 3, 0.3) or sorted(names, reverse=True)[:3]
    raise RunNotFound(f"no run {text!r} in {runs_dir}; nearest: {', '.join(near)}")


def _folders(runs_dir: Path) -> list[str]:
    try:
        with os.scandir(runs_dir) as entries:
            return [e.name for e in entries if not e.name.startswith(".") and e.is_dir()]
    except OSError:
        return []
