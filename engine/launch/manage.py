"""Delete and rename runs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ..runs.control.status import ENDED, look, process_names, process_state
from ..runs.durable import read_json, write_json
from ..runs.paths import RUN_FILE
from ..runs.types import RunInfo
from .errors import LaunchError


def delete_run(run: RunInfo) -> None:
    """Remove a run with everything in its folder, checkpoints too. Raises LaunchError while it is active."""
    path = Path(run.path)
    info = look(path)
    if info.status not in ENDED:
        raise LaunchError(f"run {run.id} is {info.status}: stop it before deleting it")
    for name in process_names(path):  # a process of it may live on when the first has crashed
        state = process_state(path, name)
        if state["alive"] and state.get("status") not in ENDED:
            raise LaunchError(f"the process {name!r} of run {run.id} still lives: stop the run before deleting it")
    hidden = path.with_name(f".deleted-{path.name}")
    try:
        if path.is_symlink():
            path.unlink()
            return
        os.replace(path, hidden)  # gone from every list in one instant, also when removing takes long
        shutil.rmtree(hidden)
    except OSError as error:
        raise LaunchError(f"run {run.id} cannot be deleted: {error.strerror or error}") from error


def rename_run(run: RunInfo, name: str) -> RunInfo:
    """Give a run a name for people. Its id stays. Raises LaunchError for a name that cannot be shown or written."""
    name = " ".join(name.split())
    if len(name) > 100 or not name.isprintable():
        raise LaunchError("a run's name is at most 100 printable characters on one line")
    path = Path(run.path) / RUN_FILE
    try:
        write_json(path, {**read_json(path), "id": run.id, "name": name})
    except OSError as error:
        raise LaunchError(f"run {run.id} cannot be renamed: {error.strerror or error}") from error
    return look(Path(run.path))
