"""Find runs by id, by a unique part of it, by name, by path, or the latest, and list them all."""

from __future__ import annotations

import difflib
import os
from functools import cache
from pathlib import Path

from ..runs.control.status import look
from ..runs.durable import read_json
from ..runs.errors import RunNotFound
from ..runs.paths import RUN_FILE
from ..runs.types import RunInfo
from .children import reap
from .run_index import RunIndex, is_run


def list_runs(runs_dir: Path) -> list[RunInfo]:
    """Return all runs of a folder, newest first; none if there is no such folder. Reads small files of active runs."""
    reap()
    index = _index(runs_dir, os.getcwd())
    runs = {name: run for name in _folders(runs_dir) if (run := index.look(name)) is not None}
    index.keep(set(runs))
    return sorted(runs.values(), key=lambda r: (r.created, r.id), reverse=True)


@cache
def _index(runs_dir: Path, here: str) -> RunIndex:
    return RunIndex(runs_dir)


def find_run(runs_dir: Path, ref: str | os.PathLike[str]) -> RunInfo:
    """Return the run that a person means: `latest`, an id, a unique beginning or end of one, a unique name, or a path.

    Raises RunNotFound with the nearest ids.
    """
    reap()
    text = os.fspath(ref)
    if text == "latest":
        runs = list_runs(runs_dir)
        if not runs:
            raise RunNotFound(f"there is no run in {runs_dir} yet: start one with `grpo-tui train`")
        return runs[0]
    path = Path(text).expanduser()
    if (os.sep in text or text in (".", "..")) and is_run(path):
        return look(path.absolute())
    names = [name for name in _folders(runs_dir) if is_run(runs_dir / name)]
    if text in names:
        return look(runs_dir / text)
    found = [n for n in names if n.startswith(text)] or [n for n in names if text and n.endswith(text)]
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
