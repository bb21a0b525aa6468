"""The status of a run: the status files of its processes, checked against the processes that exist.

Each process writes only its own file `processes/<name>.json`, and the launcher only `run.json` and
`processes/<name>.launch.json`. No process overwrites another's file. A file with the status "running" counts only while
a process with that pid and start time lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

from ..durable import overwrite, read_as, read_json, write_json
from ..paths import DATABASE, PROCESSES, RUN_FILE
from ..types import ENDED, Progress, RunInfo, RunStatus

PRIMARY = ("training", "engine")
"""Processes whose status is the run's status, in order of priority."""
HEARTBEAT_SECONDS = 20.0
"""How often a process renews its status, for viewers on other machines that cannot inspect the process."""


def write_state(path: Path, state: Mapping[str, object]) -> None:
    """Replace the status of a process. On a full disk, overwrite the old file in place. Raises OSError."""
    try:
        write_json(path, state)
    except OSError:
        essential = {k: v for k, v in state.items() if k not in ("in_flight", "summary")}
        if not any(overwrite(path, json.dumps(version, default=str).encode()) for version in (state, essential)):
            raise


@cache
def here() -> str:
    """Return this machine and its pid namespace, because pids of another host or container mean nothing here."""
    import platform

    try:
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        space = ""
    return f"{platform.node()} {space}".strip()


def identity(pid: int | None = None) -> dict[str, Any]:
    """Return the identity of a process: pid, start time in seconds since the epoch, and where it runs.

    On Linux it also has `born`, the start in ticks since boot, because setting the clock shifts the start times of all
    processes but not the ticks.
    """
    import psutil

    process = psutil.Process(pid)
    found = {"pid": process.pid, "started": process.create_time(), "where": here()}
    born = _start_time(process.pid)
    return found if born is None else {**found, "born": born}


def _start_time(pid: int) -> str | None:
    """Return `<boot> <ticks>` of a process on Linux; None elsewhere or if the process does not exist."""
    try:
        ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {ticks}"
    except (OSError, IndexError):
        return None


def is_alive(pid: int | None, started: float | None, born: object = None) -> bool:
    """Return whether exactly this process exists here and is not a zombie.

    Without a start time the result is False, because the pid may now belong to another process.
    """
    if not pid or (started is None and born is None):
        return False
    import psutil  # local import: a list of ended runs does not need it

    try:
        process = psutil.Process(pid)
        now = None if born is None else _start_time(pid)
        if now is not None and now != born:
            return False
        if now is None and (started is None or abs(process.create_time() - started) > 1.5):
            return False
        return process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        return False


def is_elsewhere(state: Mapping[str, object]) -> bool:
    """Return whether a process runs on another machine that shares the folder of runs."""
    return state.get("where") not in (None, here())


def process_state(run_dir: Path, name: str) -> dict[str, Any]:
    """Return the state of one process of a run: the launcher's file, overridden by its own file, plus `alive`."""
    state = _read_state(run_dir, name)
    if not state["alive"] and state.get("status") not in ENDED:
        state = _read_state(run_dir, name)  # it may have written its end and exited after the first read
    return state


def _read_state(run_dir: Path, name: str) -> dict[str, Any]:
    launched = read_json(run_dir / PROCESSES / f"{name}.launch.json")
    state = read_json(run_dir / PROCESSES / f"{name}.json")
    same = state.get("born") is not None and state.get("born") == launched.get("born")
    if not same and (number(state.get("time")) or 0) < (number(launched.get("time")) or 0):
        state = {}  # the file of the process before a resume
    launcher_alive = _is_alive(launched)
    return {
        **launched,
        **state,
        "alive": _is_alive(state) if state else launcher_alive,
        "launcher_alive": launcher_alive and not is_elsewhere(launched),
    }


def _is_alive(state: Mapping[str, object]) -> bool:
    """Return whether the process lives. On another machine, it counts as alive for 90 seconds after a new status."""
    if not is_elsewhere(state):
        pid = number(state.get("pid"))
        return is_alive(None if pid is None else int(pid), number(state.get("started")), state.get("born"))
    return abs(time.time() - (number(state.get("time")) or 0)) < 90.0


def process_names(run_dir: Path) -> list[str]:
    """Return the names of all processes of a run, including ended ones."""
    try:
        files = os.listdir(run_dir / PROCESSES)
    except OSError:
        return []
    return sorted({f.removesuffix(".json").removesuffix(".launch") for f in files if f.endswith(".json")})


def look(run_dir: Path) -> RunInfo:
    """Inspect the processes of the run in a folder. Return facts and status. Never raises for a damaged file."""
    run = read_json(run_dir / RUN_FILE)
    names = process_names(run_dir)
    primary = next((name for name in PRIMARY if name in names), names[0] if names else None)
    state = process_state(run_dir, primary) if primary else {}
    status, error = _status(run, state)
    kept = run.get("facts")
    facts = {
        **(kept if isinstance(kept, dict) else {}),
        **{k: state[k] for k in ("summary", "dropped", "trouble", "log", "in_flight") if k in state},
    }
    if len(names) > 1:
        others = {name: state if name == primary else process_state(run_dir, name) for name in names}
        facts["processes"] = {
            name: {k: other.get(k) for k in ("status", "pid", "alive", "error")} for name, other in others.items()
        }
        if troubles := [other["trouble"] for other in others.values() if other.get("trouble")]:
            facts["trouble"] = troubles[0]
        dead = [n for n, other in others.items() if not other["alive"] and other.get("status") not in ENDED]
        if status not in ENDED and dead:
            error = error or f"the process {dead[0]!r} is gone; its log is logs/{dead[0]}.log"
    total = number(state.get("total_steps") or run.get("total_steps"))
    step = number(state.get("step")) or number(run.get("step"))
    if step is None and status == "crashed":
        step = _recorded_step(run_dir)
    pid, code = number(state.get("pid")), number(state.get("exit_code"))
    ended = number(state.get("ended")) or (number(state.get("time")) if status == "crashed" else None)
    return RunInfo(
        id=run_dir.name,
        path=str(run_dir),
        mode=str(run.get("mode") or ""),
        status=status,
        name=str(run.get("name") or ""),
        environment=str(run.get("environment") or ""),
        model=str(run.get("model") or ""),
        created=number(run.get("created")) or _folder_time(run_dir),
        ended=ended,
        step=int(step or 0),
        total_steps=None if total is None else int(total),
        pid=None if pid is None else int(pid),
        exit_code=None if code is None else int(code),
        error=None if error is None else str(error),
        progress=read_as(Progress, state.get("progress")) if status not in ENDED else None,
        heard=number(state.get("heard")),
        facts=facts,
    )


def number(value: object) -> float | None:
    """Return a value from an untrusted file if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) < 1e18 else None  # also false for NaN


def _status(run: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[RunStatus, str | None]:
    if run.get("mode") == "dump":  # another framework wrote it, so there is no process of ours
        return "finished", None
    status = state.get("status")
    if status not in get_args(RunStatus):
        status = "starting" if run else "crashed"
    error = state.get("error")
    if status in ENDED:
        return cast(RunStatus, status), error
    if state.get("alive") or state.get("launcher_alive"):
        return cast(RunStatus, status), error
    if state.get("stop_requested") and status == "starting":
        return "stopped", error  # it was stopped while loading
    if not state.get("pid") and abs(time.time() - (number(run.get("created")) or 0)) < 60.0:
        return "starting", error  # launched, without a process yet
    return "crashed", error or (_ending(state.get("exit_code")) if state.get("pid") else "the process never started")


def _ending(exit_code: object) -> str:
    """Describe the end of a process that wrote no status. Only the parent process knows the exit code."""
    if not isinstance(exit_code, int):
        return "the process is gone"
    if exit_code >= 0:
        return f"the process is gone (exit code {exit_code})"
    try:
        return f"the process is gone ({signal.Signals(-exit_code).name})"
    except ValueError:
        return f"the process is gone (signal {-exit_code})"


def _recorded_step(run_dir: Path) -> int | None:
    """Return the last step in the record of a run whose process wrote no status; None if there is none."""
    import sqlite3  # local import: a list of runs with intact status files opens no record

    try:
        with contextlib.closing(sqlite3.connect(f"{(run_dir / DATABASE).absolute().as_uri()}?mode=ro", uri=True)) as db:
            return db.execute("SELECT max(step) FROM steps").fetchone()[0]
    except (sqlite3.Error, UnicodeDecodeError):
        return None


def _folder_time(run_dir: Path) -> float:
    try:
        return run_dir.stat().st_mtime
    except OSError:
        return 0.0
