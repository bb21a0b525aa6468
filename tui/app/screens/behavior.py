"""Behaviour from step to step: one row per action, end or component, one column per step or span of steps."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from rich.style import Style

from ....engine.runs.errors import RecordError
from ....engine.runs.read.behavior import SECTIONS, Span, SpanBehavior, spans, trained
from ....engine.runs.read.reader import RunReader
from ....engine.runs.search.filters import term
from ....engine.runs.search.query import EVERYTHING, Query
from ...format import MINUS, count, fitted, percent_number, whole
from ..data import Reads
from ..destinations import Trajectories
from ..live_charts import ChartView
from ..widgets.frame import Box
from ..widgets.pane import Line, Pane
from ..widgets.prompt_bar import ask
from ..widgets.table import Table, TableColumn
from .base import GrowingScreen
from .chart_keys import WindowKeys

_NAME, _CELLS, _MOST = 24, 9, 14
"""Cells of a row's name and of a value, and the most columns."""
_SHARES = ("actions", "ended by", "share of the advantage")
_FILTERS = {"actions": "action", "ended by": "stop"}
_STEPS = re.compile(r"\s*(\d{1,15})\s*(\.\.|–|-)\s*(\d{1,15})\s*|[\d\s,]{1,200}")


@dataclass(frozen=True)
class BehaviorRow:
    """One line: a value per column, or the title of a section."""

    section: str
    name: str
    values: Sequence[float | None] = ()

    @property
    def share(self) -> bool:
        return self.section in _SHARES or self.name == "right"


def rows_of(found: Sequence[SpanBehavior]) -> list[BehaviorRow]:
    """Return the rows by section, largest values in the last columns first."""
    table = [BehaviorRow("", "rollouts", [float(b.rollouts) for b in found])]
    sections: dict[str, dict[str, list[float | None]]] = {}
    for section, name in dict.fromkeys(key for b in reversed(found) for key in b.values):
        sections.setdefault(section, {})[name] = [b.values.get((section, name)) for b in found]
    for section, rows in sorted(sections.items(), key=lambda item: SECTIONS.index(item[0])):
        table += [BehaviorRow(section, "")] if section else []
        absent = 0.0 if section in ("actions", "ended by") else None  # a missing action or end did not occur
        for name, values in rows.items():
            table.append(BehaviorRow(section, name, [absent if v is None else v for v in values]))
    return table


class BehaviorScreen(WindowKeys, GrowingScreen):
    """Columns divide the visible steps. The last column is the change from the first of them to the last."""

    view = "behavior"

    def __init__(self, reads: Reads, query: Query = EVERYTHING) -> None:
        super().__init__()
        self.reads, self.list_query = reads, query
        self.chart_view = ChartView()
        """Its window holds the visible steps."""
        self.chosen: tuple[int, ...] = ()
        """Single steps that the user typed. If empty, all steps of the window."""
        self.steps: Sequence[int] = ()
        self.found: Sequence[SpanBehavior] = ()
        self.rows: Sequence[BehaviorRow] = ()
        self.problem = "reading…"
        self._max_columns = 0
        self.table = Table("table", self._columns, lambda: [self.problem])

    def panes(self) -> list[Pane]:
        return [self.table]

    def plan(self, width: int, height: int) -> list[Box]:
        fitting = max(2, min(_MOST, (width - 6 - _NAME) // (_CELLS + 1) - 1))
        if fitting != self._max_columns:
            self._max_columns = fitting
            self.call_after_refresh(self.reread)
        return super().plan(width, height)

    def header(self, width: int) -> tuple[Line, Line]:
        shown = [b.span for b in self.found if b.span is not None]
        several = "single steps" if self.chosen else f"{len(shown)} columns"
        right = f"{several} of {count(len(self.steps))} steps" if len(self.steps) > 1 else ""
        return self.heading("behaviour", width), Line(self.palette).add(right, self.palette.muted)

    async def read(self) -> None:
        query, window, chosen, max_columns = self.list_query, self.chart_view.window, self.chosen, self._max_columns

        def found(reader: RunReader) -> tuple[Sequence[int], Sequence[SpanBehavior]]:
            steps = list(reader.rollouts.per_step(replace(query, filter=trained(query.filter))))
            shown = [s for s in steps if window is None or window[0] <= s <= window[1]]
            every = spans(shown, max_columns) if shown or not steps else ()
            selected: Sequence[Span] = [(step, step) for step in chosen[:max_columns]] or every
            return steps, reader.rollouts.behavior(query, selected)

        try:
            self.steps, self.found = await self.reads.later(found)
            missing = "None of these steps was recorded. 0 shows all." if self.steps else "Nothing is recorded yet."
            self.problem = "No rollout to show." if self.found else missing
        except RecordError as error:
            self.found, self.problem = (), str(error)
        self.rows = rows_of(self.found) if any(b.rollouts for b in self.found) else ()
        self.table.put(self.rows, self.table.cursor)

    def _columns(self, table: Table) -> Sequence[TableColumn]:
        p = self.palette

        def value(at: int) -> Callable[[BehaviorRow], tuple[str, Style]]:
            return lambda row: (_text(row, row.values[at]) if row.values else "", p.text)

        def change(row: BehaviorRow) -> tuple[str, Style]:
            ends = (row.values[0], row.values[-1]) if row.values and row.name != "rollouts" else (None, None)
            if ends[0] is None or ends[1] is None:
                return "", p.faint
            return _text(row, ends[1] - ends[0], signed=True), p.strong

        def name(row: BehaviorRow) -> tuple[str, Style]:
            return (row.name, p.text) if row.values else (row.section, p.title)

        columns = [TableColumn("", "", _NAME, name, grow=1.0)]
        for at, behavior in enumerate(self.found):
            columns.append(TableColumn("", _head(behavior.span), _CELLS, value(at), ">"))
        return (*columns, *([TableColumn("", "change", _CELLS, change, ">")] if len(self.found) > 1 else ()))

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_open(self) -> None:
        row, shown = self.table.wanted(self.action_open), [b.span for b in self.found if b.span is not None]
        if row is None:
            return
        terms = [f"({self.list_query.filter})"] if self.list_query.filter else []
        if row.values and row.section in _FILTERS:
            terms.append(term(_FILTERS[row.section], row.name))
        if self.chosen:
            terms.append(f"({' or '.join(f'step={a}' for a, _ in shown)})")
        elif shown and self.chart_view.window is not None:
            terms.append(f"step:{shown[0][0]}..{shown[-1][1]}")
        self.shell.open(Trajectories(self.reads.path, Query(" and ".join(terms), self.list_query.search)))

    def action_steps(self) -> Awaitable[None] | None:
        hint = "10 200 300: these steps · 10..200: a range · empty: all steps"

        def wrong(text: str) -> str:
            return "" if not text or _STEPS.fullmatch(text) else hint

        return ask(self, "Steps", "", self._typed, wrong, hint)

    def _typed(self, text: str) -> None:
        found = _STEPS.fullmatch(text)
        if found is not None and found[1]:
            self.look_at(replace(self.chart_view, window=tuple(sorted((float(found[1]), float(found[3]))))))
        else:
            self.look_at(replace(self.chart_view, window=None), tuple(int(n) for n in re.findall(r"\d{1,15}", text)))

    def look_at(self, view: ChartView, chosen: tuple[int, ...] = ()) -> None:
        self.chart_view, self.chosen = view, chosen
        self.reread()

    def ends(self) -> tuple[float, float]:
        return (float(self.steps[0]), float(self.steps[-1])) if self.steps else (1.0, 1.0)


def _head(span: Span) -> str:
    if span is None:
        return "all"
    first, last = span
    text = whole(first, _CELLS) if first == last else f"{first}–{last}"
    return text if len(text) <= _CELLS else f"{whole(first, 4)}–{whole(last, 4)}"


def _text(row: BehaviorRow, value: float | None, signed: bool = False) -> str:
    if value is None:
        return "–"
    if row.share:  # differences of shares are in percentage points
        sign = MINUS if round(100 * value) < 0 else "+" if signed and round(100 * value) > 0 else ""
        return f"{sign}{percent_number(abs(value))} {'pp' if signed else '%'}"
    # SQLite before 3.43 sums with larger rounding errors, which would decide halves differently.
    return fitted(round(value, 12), _CELLS, 0 if row.name == "rollouts" else 2, signed)
