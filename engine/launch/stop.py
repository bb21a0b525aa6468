"""Stop a run so that it saves first. Delete and rename runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from ..runs.control import requests as control
from ..runs.control.status import ENDED, is_alive, is_elsewhere, look, process_names, process_state
from ..runs.durable import read_json, write_json
from ..runs.paths import PROCESSES, RUN_FILE
from ..runs.types import RunInfo
from . import LaunchError
from .children import reap

ASK_SECONDS = 3.0
"""Seconds before SIGTERM follows the request, for a process that does not read requests."""


def stop_run(run: RunInfo, timeout: float = 120.0, *, force: bool = False) -> RunInfo:
    """Ask a run to finish its step, save and end. Wait for it, and return its status.

    A run that is still active in the result needs more time. A run on another machine is only asked, not signalled.
    `force` kills the rest after the timeout; commits to the record and checkpoints stay. Raises LaunchError if its
    processes belong to another user, or the run is recorded by a script of the user.
    """
    run_dir = Path(run.path)
    if run.mode == "recorded" and run.active:
        raise LaunchError(f"run {run.id} is recorded by a script of its own (pid {run.pid}): stop it where it runs")
    if look(run_dir).status in ENDED and not living(run_dir):
        return look(run_dir)
    _mark(run_dir)
    with contextlib.suppress(OSError):  # a full disk: the signal below says the same
        control.request(run_dir, "stop")
    _wait(run_dir, min(ASK_SECONDS, timeout))
    # Windows has no SIGTERM that a process can answer: the request alone asks there.
    for name, pid in _pids(run_dir, own=True) if os.name == "posix" else ():
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
        except PermissionError:
            raise LaunchError(f"the process {name!r} of run {run.id} (pid {pid}) belongs to another user") from None
    _wait(run_dir, max(0.0, timeout - ASK_SECONDS))
    if force:
        for _, pid in _pids(run_dir):
            _kill(pid)
        _wait(run_dir, 10.0)
    return look(run_dir)


def living(run_dir: Path) -> list[str]:
    """Return names of the processes of a run that live, here or on another machine."""
    reap()
    return [name for name in process_names(run_dir) if _lives(run_dir, name, process_state(run_dir, name))]


def wait_until_gone(run_dir: Path, seconds: float = 60.0) -> list[str]:
    """Wait for the processes of a run that has ended. Returns the names of those that still live."""
    _wait(run_dir, seconds)
    return living(run_dir)


def _goes_on(run_dir: Path, name: str, state: Mapping[str, object]) -> bool:
    """Return whether a process that has announced the end of the run has a life of its own: somebody's script or
    notebook that recorded a run, and not one that was started for it."""
    return state.get("status") in ENDED and not (run_dir / PROCESSES / f"{name}.launch.json").exists()


def _lives(run_dir: Path, name: str, state: Mapping[str, object]) -> bool:
    """Return whether to wait for a process: not for one on another machine that announced its end, whose status is
    still fresh."""
    ended_elsewhere = is_elsewhere(state) and state.get("status") in ENDED
    alive = state["alive"] and not ended_elsewhere and not _goes_on(run_dir, name, state)
    return bool(alive or state["launcher_alive"])


def _pids(run_dir: Path, *, own: bool = False) -> list[tuple[str, int]]:
    """Return the processes that can be signalled from here. With `own`, the one that trains rather than its
    launcher."""
    found: list[tuple[str, int]] = []
    for name in process_names(run_dir):
        if _goes_on(run_dir, name, process_state(run_dir, name)):
            continue
        states = [process_state(run_dir, name), read_json(run_dir / PROCESSES / f"{name}.launch.json")]
        known = [(s.get("pid"), s.get("started"), s.get("born")) for s in states if not is_elsewhere(s)]
        # Without its start nothing proves that a pid is still that process: such a one is never signalled.
        alive = list(dict.fromkeys(int(pid) for pid, *start in known if pid and is_alive(pid, *start)))
        found.extend((name, pid) for pid in (alive[:1] if own else alive))
    return found


def _wait(run_dir: Path, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while living(run_dir) and time.monotonic() < deadline:
        time.sleep(0.05)


def _mark(run_dir: Path) -> None:
    """Note that the end was wished: a process that is stopped while it still loads has not crashed."""
    for name in process_names(run_dir):
        path = run_dir / PROCESSES / f"{name}.launch.json"
        if facts := read_json(path):
            with contextlib.suppress(OSError):
                write_json(path, {**facts, "stop_requested": time.time()})


def _kill(pid: int) -> None:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
        process = psutil.Process(pid)
        children = process.children(recursive=True)
        if os.name == "posix" and os.getpgid(pid) == pid:  # the leader of its session, orphans included
            os.killpg(pid, signal.SIGKILL)
        for each in (process, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()


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
