"""Move between rollouts: along the list of origin, within the group, and from match to match."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ....engine.runs.errors import RecordError
from ....engine.runs.search.query import Query, needles
from ....engine.runs.types import TrajectoryRow
from ..data import Reads
from ..rollout_cursor import OpenedRollout, RolloutCursor, read_opened
from .base import PagedScreen


class AmongRollouts(PagedScreen):
    """A screen on one rollout. The reading thread reads it and prefetches the next one in the same direction.
    Subclasses display it in `show_rollout`."""

    show_rollout: Callable[[], None]
    show_reading: Callable[[], None]
    find_match: Callable[[int], bool]
    """Moves the cursor to the next (+1) or previous (−1) match."""

    def __init__(self, reads: Reads, query: Query, find: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.reads = reads
        self.list_query = query
        self.find = find
        """The words and phrases searched for."""
        self.cursor = RolloutCursor()
        self.wanted = 0
        """The last requested rollout. It differs from the open one during a read."""
        self._neighbours: dict[tuple[int, int], TrajectoryRow] = {}
        """Prefetched rows, by number and direction."""
        self._direction = 1

    def open_rollout(self, n: int, step: int = 0, find: int = 0) -> None:
        """Open a rollout at a step, at its first match (`find` +1) or its last one (−1)."""
        self.wanted = n
        kept = self.cursor.kept.get(n)
        if kept is None:
            self.run_worker(self._read(n, step, find), group="open", exclusive=True)
        else:
            self.workers.cancel_group(self, "open")
            self._arrive(kept, step, find)

    async def _read(self, n: int, step: int, find: int) -> None:
        with self.patience(self.show_reading):
            opened = await self.reads.later(lambda reader: read_opened(reader, n))
        self._arrive(opened, step, find)

    def _arrive(self, opened: OpenedRollout, step: int, find: int) -> None:
        self.wanted = opened.n
        self.cursor.open(opened, -1 if find < 0 else step)
        if find and self.find:
            self.find_match(find)
        self.show_rollout()
        if opened.n:
            self.call_after_refresh(self._go_ahead, opened.n)

    def _go_ahead(self, n: int) -> None:
        if n == self.wanted:
            self.run_worker(self._read_ahead(n, self._direction), group="ahead", exclusive=True)

    async def _read_ahead(self, n: int, direction: int) -> None:
        try:
            row = await self.reads.later(lambda reader: reader.rollouts.seek(n, direction, self.list_query))
        except RecordError:
            return  # reported when the user goes there
        if row is None:
            return
        self._neighbours[n, direction] = row
        if self.cursor.kept.get(row.n) is None:
            opened = await self.reads.later(lambda reader: read_opened(reader, row.n))
            if opened.record is not None and self.cursor.n == n:
                self.cursor.keep(opened)

    # -- the list and the group ---------------------------------------------------------------------------------

    def action_rollout(self, by: int) -> None:
        self._direction = direction = 1 if by > 0 else -1
        n, query = self.wanted, self.list_query
        none = f"This is the {'last' if by > 0 else 'first'} trajectory of the list."
        row = self._neighbours.get((n, direction))
        if row is None and query.plain:
            row = self.reads.now.rollouts.seek(n, direction, query)
        if row is not None:
            self.open_rollout(row.n)
        elif query.plain:
            self.say(none)
        else:
            self.run_worker(self._seek(n, direction, query, none), exclusive=True, group="seek")

    async def _seek(self, n: int, by: int, query: Query, none: str, find: int = 0) -> None:
        """Open the next or previous rollout of a query. If there is none, show the message `none`."""
        try:
            row = await self.reads.later(lambda reader: reader.rollouts.seek(n, by, query))
        except RecordError as error:
            self.say(str(error), "error")
            return
        if row is None:
            self.say(none)
        else:
            self.open_rollout(row.n, find=find)

    def action_sibling(self, by: int) -> None:
        n = self.cursor.sibling(by)
        if n is not None:
            self.open_rollout(n, self.cursor.step)

    # -- matches ------------------------------------------------------------------------------------------------

    def search_here(self, text: str) -> None:
        self.find = (text,) if text else ()
        step = self.cursor.step
        if text and not self.find_match(1):
            self.cursor.go_to(0)
            if not self.find_match(1):
                self.cursor.go_to(step)
                self.say(f"“{text}” is not in this trajectory. n searches the next ones.")
        self.show_rollout()

    def action_match(self, by: int) -> None:
        if not self.find:
            self.action_rollout(by)
        elif self.find_match(by):
            self.show_rollout()
        else:
            query = self.list_query
            if needles(query.search) != self.find:
                typed = " ".join('"{}"*'.format(word.replace('"', " ")) for word in self.find)
                query = replace(query, search=f"{query.search} {typed}".strip())
            none = f"No match {'after' if by > 0 else 'before'} this one in the list."
            self.run_worker(self._seek(self.wanted, by, query, none, find=by), exclusive=True, group="seek")
