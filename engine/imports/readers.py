"""Readers of runs and dumps. The rows of a dump are in the cached index, and its bodies in the user's files."""

from __future__ import annotations

import os
import subprocess
from functools import cached_property
from pathlib import Path

from ..runs.durable import read_json, try_lock
from ..runs.paths import RUN_FILE
from ..runs.read.bodies import Bodies
from ..runs.read.reader import RunReader
from ..runs.read.rollouts import Rollouts
from ..runs.search.query import EVERYTHING, Query, Selection
from .background import start
from .coverage import SHARE_INDEXED, ask_for_text, reason_stopped
from .options import Options


def start_following(run_dir: Path) -> subprocess.Popen[bytes] | None:
    """Start the process that continues the index of a dump while this process lives. Return None for a run, or if
    another process already does so."""
    if read_json(run_dir / RUN_FILE).get("mode") != "dump":
        return None
    with try_lock(run_dir / ".lock") as free:
        pass
    return start([str(run_dir), str(os.getpid())]) if free else None


def open_reader(run_dir: Path | str) -> RunReader:
    """Return a reader for one of our own runs or for the index of a dump."""
    if read_json(Path(run_dir) / RUN_FILE).get("mode") != "dump":
        return RunReader(run_dir)
    from .cache import dump_of

    found = dump_of(Path(run_dir))
    return RunReader(run_dir) if found is None else DumpReader(run_dir, *found)


class DumpReader(RunReader):
    """A `RunReader` whose trajectories are in another framework's files."""

    rollouts: DumpRollouts

    def __init__(self, run_dir: Path | str, dump: Path, options: Options) -> None:
        super().__init__(run_dir)
        self.rollouts = DumpRollouts(self._record)
        self._source = dump, options

    @cached_property
    def bodies(self) -> Bodies:
        from .bodies import DumpBodies

        return DumpBodies(self._record, *self._source)

    def pending(self, query: Query = EVERYTHING) -> str:
        """Describe the missing part of the index in a few words; empty if it is complete for `query`."""
        share = self._record.scalar(SHARE_INDEXED)
        if share < 1.0:
            reason = reason_stopped(self._record.run_dir)
            return f"indexing stopped at {share:.0%}: {reason}" if reason else f"indexing {share:.0%}"
        reached, rollouts = self.rollouts.searchable(), self.rollouts.total()
        if self.rollouts.reads_text(query) and reached < rollouts:
            return f"texts searched: {reached:,} of {rollouts:,}"
        return ""


class DumpRollouts(Rollouts):
    """The lists of a dump. A search requests the texts, and its view starts over when more texts are searchable."""

    def searchable(self) -> int:
        return int(self._record.scalar("SELECT value FROM meta WHERE key = 'searchable'") or 0)

    def reads_text(self, query: Query) -> bool:
        return self._selection(query).reads_text

    def covered(self, selection: Selection) -> int:
        """Return the number of rollouts whose texts are searchable; 0 for a selection that reads no text."""
        if not selection.reads_text:
            return 0
        reached = self.searchable()
        if reached < self.total():
            ask_for_text(self._record.run_dir)
        return reached
