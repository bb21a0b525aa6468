"""Which reader a run's folder needs. Loads nothing of the importers for runs of our own."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ..runs.control.lock import try_lock
from ..runs.durable import read_json
from ..runs.paths import RUN_FILE
from ..runs.read.reader import RunReader
from .behind import start


def start_following(run_dir: Path) -> subprocess.Popen[bytes] | None:
    """The process that indexes a dump on, and follows what grows, while this one lives; None for a run of our own, and
    where another process does it already."""
    if read_json(run_dir / RUN_FILE).get("mode") != "dump":
        return None
    with try_lock(run_dir / ".lock") as free:
        if not free:
            return None
    return start([str(run_dir), str(os.getpid())])


def open_reader(run_dir: Path | str) -> RunReader:
    """A reader for a run of our own, or for the index of a dump."""
    if read_json(Path(run_dir) / RUN_FILE).get("mode") != "dump":
        return RunReader(run_dir)
    from .cache import dump_of
    from .reader import DumpReader

    found = dump_of(Path(run_dir))
    return RunReader(run_dir) if found is None else DumpReader(run_dir, *found)
