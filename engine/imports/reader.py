"""Reading a dump as the app reads a run: rows from the index in the cache, bodies from the user's files."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from ..runs.read.bodies import Bodies
from ..runs.read.reader import RunReader
from ..runs.read.rollouts import Rollouts
from ..runs.search.query import EVERYTHING, Query, Selection
from . import ended_early
from .coverage import SOURCES, Coverage, ask_for_text
from .options import Options


class DumpReader(RunReader):
    """A `RunReader` whose trajectories lie in the files of another framework."""

    rollouts: DumpRollouts

    def __init__(self, run_dir: Path | str, dump: Path, options: Options) -> None:
        super().__init__(run_dir)
        self.rollouts = DumpRollouts(self._record)
        self._of = dump, options

    @cached_property
    def bodies(self) -> Bodies:
        """Rollouts, read from the writer's files. What reads them is loaded with the first."""
        from .bodies import DumpBodies

        return DumpBodies(self._record, *self._of)

    def pending(self, query: Query = EVERYTHING) -> str:
        """What the index has not come to yet, in a few words; empty when it is whole as far as `query` sees it."""
        reached = self.rollouts.searchable()
        found = Coverage.of(self._record.all(SOURCES), reached, self.rollouts.total())
        if found.share < 1.0:
            why = ended_early.why(self._record.run_dir)
            return f"indexing stopped at {found.share:.0%}: {why}" if why else f"indexing {found.share:.0%}"
        if self.rollouts.reads_text(query) and reached < found.rollouts:
            return f"texts searched: {reached:,} of {found.rollouts:,}"
        return ""


class DumpRollouts(Rollouts):
    """Lists of a dump. Texts become searchable behind the rows: a search asks for them, and its view begins anew
    when more are there."""

    def searchable(self) -> int:
        """The number of the last rollout whose text is in the full-text index."""
        return int(self._record.scalar("SELECT value FROM meta WHERE key = 'searchable'") or 0)

    def reads_text(self, query: Query) -> bool:
        """Whether a query looks into texts."""
        selection = self._selection(query)
        return selection is not None and selection.reads_text

    def covered(self, selection: Selection) -> int:
        """How far the texts go that a search sees."""
        if not selection.reads_text:
            return 0
        reached = self.searchable()
        if reached < self.total():
            ask_for_text(self._record.run_dir)
        return reached
