"""The folders of recorded runs: `NAME`, `NAME-2`, `NAME-3`, … for one name."""

from __future__ import annotations

import os
from pathlib import Path

from grpo_tui.engine.runs.control.status import look
from grpo_tui.engine.runs.durable import read_json
from grpo_tui.engine.runs.paths import RUN_FILE, new_run_id
from grpo_tui.engine.runs.paths import runs_dir as resolve_runs_dir
from grpo_tui.engine.runs.types import ENDED


def run_folder(run: str | os.PathLike[str] | None, runs_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of a run by its name or path. Raises ValueError for a name that cannot be a folder."""
    home = resolve_runs_dir(runs_dir)
    if run is None:
        return home / new_run_id(home)
    name = os.fspath(run)
    if not name.strip() or name in (".", "..") or "\0" in name:
        raise ValueError(f"{name!r} is not a valid name of a run; expected a name such as my-run, or a path")
    return home / name if os.path.basename(name) == name else Path(name).expanduser().absolute()


def runs_named(first: Path) -> list[Path]:
    """Return the runs `NAME`, `NAME-2`, `NAME-3`, … of one name, newest first."""
    found, folder = [], first
    while os.path.exists(folder / RUN_FILE):
        found.insert(0, folder)
        folder = first.with_name(f"{first.name}-{len(found) + 1}")
    return found


def next_run(first: Path, *, joins: bool = False) -> Path:
    """Return the folder of a new run of this name.

    If other processes have already created the newest run and the first process has not joined it, that run is
    returned. joins: for the other processes, which join the newest run unless it has ended.
    """
    runs = runs_named(first)
    if runs and (look(runs[0]).status not in ENDED if joins else not read_json(runs[0] / RUN_FILE).get("mode")):
        return runs[0]
    return first.with_name(f"{first.name}-{len(runs) + 1}") if runs else first
