"""The rollouts of a group in columns: as many as fit, and the others on further pages."""

from __future__ import annotations

from collections.abc import Sequence

from ....engine.runs.errors import RecordError
from ....engine.runs.read.reader import RunReader
from ....engine.runs.types import TrajectoryRecord, TrajectoryRow
from ...format import count
from ..bindings import BESIDE
from ..data import Reads
from ..destinations import Stepper
from ..widgets.column_panes import HEAD, MOST, ColumnBodies, Heads, fitting
from ..widgets.frame import Box
from ..widgets.line import Line
from ..widgets.pane import Pane
from .base import PagedScreen

_KEPT = 3 * MOST
"""Rollouts whose texts are kept."""


class SideBySideScreen(PagedScreen):
    """The group of a rollout. The reading thread reads the texts of the columns on screen."""

    view = BESIDE

    def __init__(self, reads: Reads, n: int) -> None:
        super().__init__()
        self.reads, self._begin_at = reads, n
        self.rows: Sequence[TrajectoryRow] = ()
        self.cursor = 0
        self.first = 0
        """The index in the group of the leftmost column."""
        self.records: dict[int, TrajectoryRecord | str] = {}
        self.columns = 1
        self.heads, self.bodies = Heads(), ColumnBodies()

    @property
    def n(self) -> int:
        return self.rows[self.cursor].n if self.rows else 0

    def panes(self) -> list[Pane]:
        return [self.bodies, self.heads]

    def plan(self, width: int, height: int) -> list[Box]:
        if fitting(width) != self.columns:
            self.columns = fitting(width)
            self.call_after_refresh(self._show)
        top = HEAD + 2 if height >= 3 * HEAD else 1
        heads = [Box("heads", 0, 0, width, top)] if top > 1 else []
        return [*heads, Box("bodies", 0, top - 1, width, height - top + 1)]

    def header(self, width: int) -> tuple[Line, Line]:
        p = self.palette
        if not self.rows:
            return self.heading("group", width), Line(p)
        last = min(self.first + self.columns, len(self.rows))
        left = self.heading(f"group {self.rows[0].group}"[: max(8, width // 3)], width)
        every = count(len(self.rows), "rollout")
        return left, Line(p).add(f"{self.first + 1}–{last}", p.strong).add(f" of {every}", p.muted)

    def on_mount(self) -> None:
        self.run_worker(self._start(), group="group")

    async def _start(self) -> None:
        def read(reader: RunReader) -> Sequence[TrajectoryRow]:
            found = reader.rollouts.rows([self._begin_at])
            return reader.rollouts.group(found[0].group) if found else ()

        try:
            self.rows = await self.reads.later(read)
        except RecordError as error:
            self.say(str(error), "error")
        self.cursor = next((i for i, row in enumerate(self.rows) if row.n == self._begin_at), 0)
        self._show()

    def _show(self) -> None:
        if not self.is_attached:
            return
        if not self.first <= self.cursor < self.first + self.columns:
            self.first = self.cursor // self.columns * self.columns
        self.first = max(0, min(self.first, len(self.rows) - self.columns))
        shown = self.rows[self.first : self.first + self.columns]
        for pane in (self.heads, self.bodies):
            pane.put(shown, self.cursor - self.first, self.records)
        self.frame.refresh_lines()
        missing = [row.n for row in shown if row.n not in self.records]
        if missing:
            self.run_worker(self._read(missing), group="texts", exclusive=True)

    async def _read(self, missing: Sequence[int]) -> None:
        for n in missing:
            self.records[n] = await self.reads.later(lambda reader, n=n: _record(reader, n))
        shown = [row.n for row in self.rows[self.first : self.first + self.columns]]
        for n in [n for n in self.records if n not in shown][: max(0, len(self.records) - _KEPT)]:
            del self.records[n]
        self._show()

    def come_back_from(self, n: int) -> None:
        index = next((i for i, row in enumerate(self.rows) if row.n == n), None)
        if index is not None:
            self.cursor = index
            self._show()

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_column(self, by: int) -> None:
        self.cursor = max(0, min(self.cursor + by, len(self.rows) - 1))
        if self.cursor < self.first:
            self.first = self.cursor
        elif self.cursor >= self.first + self.columns:
            self.first = self.cursor - self.columns + 1
        self._show()

    def action_columns(self, by: int) -> None:
        self.first = max(0, min(self.first + by * self.columns, len(self.rows) - self.columns))
        self.action_column(by * self.columns)

    def action_whole_texts(self) -> None:
        self.bodies.whole = not self.bodies.whole
        self.bodies.changed()

    def action_open(self) -> None:
        if self.rows:
            self.shell.open(Stepper(self.reads.path, self.n))

    def on_pane_hit(self, message: Pane.Hit) -> None:
        match message.what:
            case ("rollout", int(n)):
                same = n == self.n
                self.come_back_from(n)
                if same:
                    self.action_open()

    def shown_text(self) -> str:
        return "\n".join((*self.heads.copied, *self.bodies.copied))

    def shown_name(self) -> str:
        return f"group-{self.n}.txt"


def _record(reader: RunReader, n: int) -> TrajectoryRecord | str:
    try:
        return reader.bodies.trajectory(n)
    except (RecordError, LookupError) as error:
        return str(error).strip("'\"")
