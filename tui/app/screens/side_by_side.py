"""The rollouts of a group in columns, their steps row by row: as many as fit, and the others on later pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest

from rich.style import Style

from ....engine.runs.errors import RecordError
from ....engine.runs.read.reader import RunReader
from ....engine.runs.types import TrajectoryRecord, TrajectoryRow
from ...format import count, fixed, mark, whole
from ...text import wrap
from ..data import Reads
from ..destinations import Stepper
from ..rollout_columns import route
from ..rollout_fields import COMPARED, call_text, field_text
from ..widgets.frame import Box
from ..widgets.pane import Line, Pane
from ..widgets.text_layout import Flow, FlowPane, FlowPart
from .base import PagedScreen

MOST = 8
"""Maximum number of columns."""
_LINES = {"thought": 3, "call": 5, "answered": 5, "reward": 2}
"""Lines of a text that are shown. Whole texts get ten times as many."""
_CHARACTERS = 20_000
HEAD = 3
"""Lines per head."""


def fitting(width: int) -> int:
    """Return how many columns of 28 cells fit into a frame of this width."""
    return max(1, min(MOST, (width - 4) // 28))


class ColumnsPane(FlowPane):
    """A part of each shown rollout. `shown_rows`: rows of the group on screen. `cursor`: the index of one of them.
    A record is None until it is read, or a sentence if it cannot be read."""

    long = True
    shown_rows: Sequence[TrajectoryRow] = ()
    cursor = 0
    records: Mapping[int, TrajectoryRecord | str] = {}

    def put(self, rows: Sequence[TrajectoryRow], cursor: int, records: Mapping[int, TrajectoryRecord | str]) -> None:
        same = [r.n for r in rows] == [r.n for r in self.shown_rows]
        self.shown_rows, self.cursor, self.records = rows, cursor, dict(records)
        self.changed(keep_scroll=same)

    def cells(self, width: int) -> int:
        return max(4, (width - 3 * (len(self.shown_rows) - 1)) // max(1, len(self.shown_rows)))

    def beside(self, columns: Sequence[Sequence[Line]], width: int) -> list[Line]:
        """Join columns of lines side by side. A click opens the rollout of its column."""
        p, cells, lines = self.palette, self.cells(width), []
        for parts in zip_longest(*columns):
            line = Line(p)
            for index, (row, part) in enumerate(zip(self.shown_rows, parts, strict=True)):
                if index:
                    line.to(index * (cells + 3) - 2).add("│ ", p.border)
                line.extend((part or Line(p)).cropped(cells))
                line.hits.append((index * (cells + 3), index * (cells + 3) + cells, ("rollout", row.n)))
            lines.append(line)
        return lines


class Heads(ColumnsPane):
    """Outcome, reward, advantage, size and route of each column."""

    name = "heads"

    def build(self, width: int, height: int) -> Flow:
        heads = [self._head(index, row, self.cells(width)) for index, row in enumerate(self.shown_rows)]
        return Flow([FlowPart(self.beside(heads, width))])

    def _head(self, index: int, row: TrajectoryRow, cells: int) -> list[Line]:
        p, selected = self.palette, index == self.cursor
        line = Line(p).add("▸" if selected else " ", p.accent).add(f"{row.n} ", p.title if selected else p.text)
        line.add(f"{mark(row.correct)} ", p.outcome(row.correct)).whole(fixed(row.reward), p.strong, cells - line.width)
        if row.advantage is not None:
            line.whole(f"  A {fixed(row.advantage, signed=True)}", p.sign(row.advantage), cells - line.width)
        facts = [
            f"{whole(row.turns, 6)} turn{'' if row.turns == 1 else 's'}",
            *([f"{whole(row.tokens, 7)} tokens"] if row.tokens is not None else []),
        ]
        facts += [f"✗{row.penalties}"] if row.penalties else []
        facts += [row.stop_reason] if row.stop_reason else []
        second = Line(p).gap()
        for fact in facts:
            second.offer(Line(p).add(f"{fact}  ", p.muted), cells)
        text = route(row.actions) if row.words is None else " ".join(row.words.split())
        return [line, second, Line(p).gap().add(text, p.faint, cells=max(1, cells - 1))]


class ColumnBodies(ColumnsPane):
    """The steps of each column. ≠ marks a call that most columns do not make in this step."""

    name = "bodies"
    whole = False

    def build(self, width: int, height: int) -> Flow:
        records = [self.records.get(row.n) for row in self.shown_rows]
        steps = max((len(r.trajectory.steps) for r in records if isinstance(r, TrajectoryRecord)), default=0)
        parts = [FlowPart(partial(self._step, step, records, width), 8, (step,)) for step in range(steps)]
        return Flow([*parts, FlowPart(partial(self._end, records, width), 2)])

    def _step(self, step: int, records: Sequence[TrajectoryRecord | str | None], width: int) -> list[Line]:
        p, calls = self.palette, []
        for record in records:
            steps = record.trajectory.steps if isinstance(record, TrajectoryRecord) else ()
            calls.append(call_text(steps[step]) if step < len(steps) else None)
        usual, times = Counter(c for c in calls if c is not None).most_common(1)[0]
        usual = usual if times > 1 or len(records) == 2 else None
        line = Line(p).add(f"step {step + 1} ", p.muted)
        columns = [
            self._lines(record, step, usual is not None and call not in (usual, None), self.cells(width))
            for record, call in zip(records, calls, strict=True)
        ]
        return [line.add("─" * max(0, width - line.width), p.border), *self.beside(columns, width)]

    def _lines(self, record: TrajectoryRecord | str | None, position: int, other: bool, cells: int) -> list[Line]:
        p = self.palette
        if not isinstance(record, TrajectoryRecord) or position >= len(record.trajectory.steps):
            return []
        lines: list[Line] = []
        step = record.trajectory.steps[position]
        styles: dict[str, Style] = {"call": p.accent, "thought": p.muted, "answered": p.text, "reward": p.muted}
        for name in COMPARED:
            text = field_text(record, step, name)
            head = Line(p).add("≠ ", p.warn_bold) if other and name == "call" else Line(p).gap(2)
            lines += self._folded(text, styles[name], _LINES[name], cells, head) if text else []
        return lines

    def _folded(self, text: str, style: Style, max_lines: int, cells: int, head: Line) -> list[Line]:
        p, max_lines = self.palette, max_lines * (10 if self.whole else 1)
        parts = wrap(text[:_CHARACTERS].strip("\n"), max(4, cells - 2), min(_CHARACTERS, (max_lines + 1) * cells * 2))
        lines = [(head if not i else Line(p).gap(2)).add(part, style) for i, part in enumerate(parts[:max_lines])]
        if len(parts) > max_lines or len(text) > _CHARACTERS:
            lines.append(Line(p).gap(2).add("✂ more", p.faint))
        return lines

    def _end(self, records: Sequence[TrajectoryRecord | str | None], width: int) -> list[Line]:
        p, cells, columns = self.palette, self.cells(width), []
        for record in records:
            if record is None:
                columns.append([Line(p).add("reading…", p.faint)])
            elif isinstance(record, str):
                columns.append(self._folded(record, p.bad, 6, cells, Line(p).gap(2)))
            else:
                t = record.trajectory
                text = t.answer if t.answer is not None else f"no answer, ended by {t.stop_reason}"
                columns.append(self._folded(text, p.outcome(t.correct), 5, cells, Line(p).add(f"{mark(t.correct)} ")))
        return [Line(p).add("═" * width, p.border), *self.beside(columns, width)]


_KEPT = 3 * MOST
"""Rollouts whose texts are kept."""


class SideBySideScreen(PagedScreen):
    """The group of a rollout. The reading thread reads the texts of the columns on screen."""

    view = "side by side"

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
