"""The child processes of this process. Each has its own log and its own session, which outlives the terminal.

Starting, finding and stopping runs all call `reap`, so an ended child is recorded once and never stays a zombie.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..runs.control.status import identity
from ..runs.durable import read_json, write_json
from ..runs.masking import mask_command
from ..runs.paths import LOGS, PROCESSES
from .outcome import safe_path

if TYPE_CHECKING:
    import subprocess  # imported lazily: listing runs imports this module and starts nothing

CPU_SETTINGS = {
    # How long a waiting OpenMP thread spins before it sleeps. With the default (almost forever), a step takes ten times
    # as long on a busy machine; without spinning, it takes 1.5 times as long on an idle one.
    "GOMP_SPINCOUNT": "20000",
    # Allocate large tensors on huge pages. Otherwise a new 40 MB tensor costs 10,000 page faults, as much as using it.
    "THP_MEM_ALLOC_ENABLE": "1",
    # Reuse the freed memory of tensors of up to 32 MiB (glibc's limit). Decoding allocates and frees megabytes per
    # token, and each new page is a fault.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    # On some processors, the last bit of an MKL product depends on where its operands lie in memory. A seed would then
    # not reproduce the weights bit by bit. Only float32 products of one row take longer with this (1.6 times). Serving
    # has many of them: see `repeatable` of `spawn`.
    "MKL_CBWR": "AUTO,STRICT",
}
"""Environment variables that libraries read at process start. The user's own values take precedence."""

_children: dict[tuple[str, str], subprocess.Popen[bytes]] = {}
_codes: dict[int, int] = {}


def spawn(
    run_dir: Path,
    name: str,
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    stdin: int | IO[bytes] | None = None,
    stdout: int | IO[bytes] | None = None,
    repeatable: bool = True,
) -> subprocess.Popen[bytes]:
    """Start one process of a run in its own session, log to `logs/<name>.log`, and record its pid and start time.

    repeatable: the same seed gives bit-identical products.
    """
    import subprocess

    before = time.time()
    log = run_dir / LOGS / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    env = {
        **{name: value for name, value in CPU_SETTINGS.items() if repeatable or name != "MKL_CBWR"},
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        **safe_path(),
        **(environment or {}),
    }
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=output if stdout is None else stdout,
            stderr=output,
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # Windows' equivalent
            env=env,
        )
    _children[str(run_dir), name] = child
    facts = {**identity(child.pid), "time": before, "command": mask_command(command), "log": f"{LOGS}/{name}.log"}
    write_json(run_dir / PROCESSES / f"{name}.launch.json", facts)
    return child


def reap() -> None:
    """Record the exit of this process's ended children, so that none stays a zombie."""
    for key, child in list(_children.items()):
        code = child.poll()
        if code is None or _children.pop(key, None) is None:  # None: another thread has recorded it
            continue
        _codes[child.pid] = code
        path = Path(key[0]) / PROCESSES / f"{key[1]}.launch.json"
        facts = read_json(path)
        if facts.get("pid") == child.pid:
            with suppress(OSError):
                write_json(path, {**facts, "exit_code": code, "ended": time.time()})


def unreaped(run_dir: Path) -> list[str]:
    """Return the names of this process's children for a run whose exit has not been recorded."""
    reap()
    return [name for directory, name in list(_children) if directory == str(run_dir)]


def exit_code(pid: int) -> int | None:
    """Return the exit code of a child process, even if the run's folder is gone; None if unknown.

    Waits for up to 5 s, because a process whose main thread has ended looks like a zombie until its other threads end.
    """
    from subprocess import TimeoutExpired

    for child in [c for c in _children.values() if c.pid == pid]:
        with suppress(TimeoutExpired):
            child.wait(5.0)
    reap()
    return _codes.get(pid)
