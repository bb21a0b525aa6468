"""Stop a run after it has saved; delete and rename runs."""

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
from .children import unreaped

ASK_SECONDS = 3.0
"""Seconds between the stop request and SIGTERM, for a process that does not read requests."""


def stop_run(run: RunInfo, timeout: float = 120.0, *, force: bool = False) -> RunInfo:
    """Ask a run to finish its step, save and exit. Wait for it and return its status.

    If the returned run is still active, it needs more time. A run on another machine gets a request, but no signal.
    `force` kills remaining processes after the timeout; the committed record and checkpoints stay. Raises LaunchError
    if the processes belong to another user, or if the user's own script records the run.
    """
    run_dir = Path(run.path)
    if run.mode == "recorded" and run.active:
        raise LaunchError(f"run {run.id} is recorded by another script (pid {run.pid}): stop that script")
    if look(run_dir).status in ENDED and not living(run_dir):
        return look(run_dir)
    _mark(run_dir)
    with contextlib.suppress(OSError):  # a full disk: the signal below has the same effect
        control.request(run_dir, "stop")
    wait_until_gone(run_dir, min(ASK_SECONDS, timeout))
    # On Windows, a process cannot handle SIGTERM, so it only gets the request.
    for name, pid in _pids(run_dir, own=True) if os.name == "posix" else ():
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            continue
        except PermissionError:
            raise LaunchError(f"the process {name!r} of run {run.id} (pid {pid}) belongs to another user") from None
    wait_until_gone(run_dir, max(0.0, timeout - ASK_SECONDS))
    if force:
        for _, pid in _pids(run_dir):
            _kill(pid)
        wait_until_gone(run_dir, 10.0)
    return look(run_dir)


def living(run_dir: Path) -> list[str]:
    """Return the names of a run's live processes, here or on another machine."""
    names = [name for name in process_names(run_dir) if _is_alive(run_dir, name, process_state(run_dir, name))]
    # A child that has just ended looks dead before its exit code can be read. It counts until the code is recorded.
    return sorted({*names, *unreaped(run_dir)})


def wait_until_gone(run_dir: Path, seconds: float = 60.0) -> list[str]:
    """Wait for the processes of a run to exit. Returns the names of those that are still alive."""
    deadline = time.monotonic() + seconds
    while (names := living(run_dir)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return names


def _outlives_run(run_dir: Path, name: str, state: Mapping[str, object]) -> bool:
    """Return whether a process outlives its run: the user's own script or notebook that recorded a run which has ended,
    not a process that was launched for the run."""
    return state.get("status") in ENDED and not (run_dir / PROCESSES / f"{name}.launch.json").exists()


def _is_alive(run_dir: Path, name: str, state: Mapping[str, object]) -> bool:
    """Return whether to wait for a process. A process on another machine whose status is an end does not
    count, even while that status is fresh."""
    ended_on_another_machine = is_elsewhere(state) and state.get("status") in ENDED
    alive = state["alive"] and not ended_on_another_machine and not _outlives_run(run_dir, name, state)
    return bool(alive or state["launcher_alive"])


def _pids(run_dir: Path, *, own: bool = False) -> list[tuple[str, int]]:
    """Return the processes that can be signalled from here. own: only the process itself, not its launcher."""
    found: list[tuple[str, int]] = []
    for name in process_names(run_dir):
        if _outlives_run(run_dir, name, process_state(run_dir, name)):
            continue
        states = [process_state(run_dir, name), read_json(run_dir / PROCESSES / f"{name}.launch.json")]
        known = [(s.get("pid"), s.get("started"), s.get("born")) for s in states if not is_elsewhere(s)]
        # Without a start time, nothing proves that the pid still belongs to that process, so it is never signalled.
        alive = list(dict.fromkeys(int(pid) for pid, *start in known if pid and is_alive(pid, *start)))
        found.extend((name, pid) for pid in (alive[:1] if own else alive))
    return found


def _mark(run_dir: Path) -> None:
    """Record that the stop was requested, so that a process stopped while loading does not count as crashed."""
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
        if os.name == "posix" and os.getpgid(pid) == pid:  # it leads its session: also kill orphans
            os.killpg(pid, signal.SIGKILL)
        for victim in (process, *children):
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()


def delete_run(run: RunInfo) -> None:
    """Delete a run's folder, including checkpoints. Raises LaunchError while the run is active."""
    path = Path(run.path)
    info = look(path)
    if info.status not in ENDED:
        raise LaunchError(f"run {run.id} is {info.status}: stop it before deleting it")
    for name in process_names(path):  # other processes may outlive a crashed first one
        state = process_state(path, name)
        if state["alive"] and state.get("status") not in ENDED:
            raise LaunchError(f"the process {name!r} of run {run.id} is still alive: stop the run before deleting it")
    hidden = path.with_name(f".deleted-{path.name}")
    try:
        if path.is_symlink():
            path.unlink()
            return
        os.replace(path, hidden)  # it leaves every list at once, even if removing it takes long
        shutil.rmtree(hidden)
    except OSError as error:
        raise LaunchError(f"run {run.id} cannot be deleted: {error.strerror or error}") from error


def rename_run(run: RunInfo, name: str) -> RunInfo:
    """Give a run a readable name; its id stays. Raises LaunchError for a name that cannot be shown or written."""
    name = " ".join(name.split())
    if len(name) > 100 or not name.isprintable():
        raise LaunchError("a run's name must be at most 100 printable characters on one line")
    path = Path(run.path) / RUN_FILE
    try:
        write_json(path, {**read_json(path), "id": run.id, "name": name})
    except OSError as error:
        raise LaunchError(f"run {run.id} cannot be renamed: {error.strerror or error}") from error
    return look(Path(run.path))
