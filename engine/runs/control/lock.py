"""Locks between processes. The system releases a lock when its process ends, however it ends."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ....configs.errors import GrpoTuiError
from ..paths import PROCESSES

WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""How a file system that has no locks refuses one."""


class Locked(GrpoTuiError, RuntimeError):
    """Another process holds the lock. The message names the run."""


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold the lock file `path`; yield False if another process holds it.

    A file system without locks grants every lock. Raises OSError if the file cannot be made.
    """
    from filelock import FileLock, Timeout  # here: looking at a run takes no lock

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    free = True
    try:
        lock.acquire(blocking=False)
    except Timeout:
        free = False
    except OSError as problem:
        if problem.errno not in WITHOUT_LOCKS:
            raise
    try:
        yield free
    finally:
        lock.release()


@contextmanager
def hold(run_dir: Path, name: str) -> Iterator[None]:
    """Hold the lock `name` of a run. Raises Locked at once when another process has it."""
    with try_lock(run_dir / PROCESSES / f".{name}.lock") as free:
        if not free:
            raise Locked(f"another process runs the {name} of run {run_dir.name}: stop it first")
        yield
