"""The processes that this one has started: each a session of its own that outlives the terminal, with a log of its own.

Starting, finding and stopping runs all look here, so that an ended child is noted once and never stays a zombie.
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
    import subprocess  # a list of runs starts nothing, and looks here too

CPU_SETTINGS = {
    # How long a waiting OpenMP thread spins before it sleeps. The default (for ever, nearly) makes a step take ten
    # times as long on a busy machine, and not spinning at all half as long again on an idle one.
    "GOMP_SPINCOUNT": "20000",
    # Large tensors on huge pages: a fresh one of 40 MB costs ten thousand page faults otherwise, as much as using it.
    "THP_MEM_ALLOC_ENABLE": "1",
    # Freed memory of tensors of up to 32 MiB (glibc's limit) is used again. Decoding makes and frees megabytes for each
    # token, and each new page is a fault.
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    # On some processors a product of MKL differs in its last bit with where its operands lie in memory, so a seed would
    # not give the same weights again, bit by bit. This takes no longer, except for products of one row in float32 (1.6
    # times), of which serving has many: see `spawn`.
    "MKL_CBWR": "AUTO,STRICT",
}
"""Environment variables that libraries read when a process starts. The user's own values win."""

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
    """Start one process of a run in its own session, its output in `logs/<name>.log`, and note its pid and start.

    repeatable: products have the same bits with the same seed.
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
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # the same on Windows
            env=env,
        )
    _children[str(run_dir), name] = child
    facts = {**identity(child.pid), "time": before, "command": mask_command(command), "log": f"{LOGS}/{name}.log"}
    write_json(run_dir / PROCESSES / f"{name}.launch.json", facts)
    return child


def reap() -> None:
    """Take note of children of this process that have ended, so that none stays a zombie."""
    for key, child in list(_children.items()):
        code = child.poll()
        if code is None or _children.pop(key, None) is None:  # None: another thread took note of it
            continue
        _codes[child.pid] = code
        path = Path(key[0]) / PROCESSES / f"{key[1]}.launch.json"
        facts = read_json(path)
        if facts.get("pid") == child.pid:
            with suppress(OSError):
                write_json(path, {**facts, "exit_code": code, "ended": time.time()})


def exit_code(pid: int) -> int | None:
    """Return the exit code of a child process, also if the run's folder is gone; None if it is not known.

    Waits for the process. If its first thread has ended, it looks like a zombie while other threads still end.
    """
    from subprocess import TimeoutExpired

    for child in [c for c in _children.values() if c.pid == pid]:
        with suppress(TimeoutExpired):
            child.wait(5.0)
    reap()
    return _codes.get(pid)
