"""One process of a kind in a run: a lock that goes with the process that holds it, however that ends."""

from __future__ import annotations

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...configs.errors import GrpoTuiError
from .paths import PROCESSES


class Locked(GrpoTuiError, RuntimeError):
    """Another process holds the lock; the message says which run."""


@contextmanager
def hold(run_dir: Path, name: str) -> Iterator[None]:
    """Hold the lock `name` of a run. Raises Locked at once when another process has it.

    A file system without locks gives none: then nothing is held and nothing is refused.
    """
    folder = run_dir / PROCESSES
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / f".{name}.lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            if problem.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise Locked(f"another process runs the {name} of run {run_dir.name}: stop it first") from None
        yield
