"""A table over any number of rows, which requests and paints only those on screen and caches few pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.message import Message

from .pane import Line, Pane

PAGE = 128
"""Rows per request."""
Fetch = Callable[[int, int], Awaitable[Sequence[object] | None]]


@dataclass(frozen=True)
class TableColumn:
    """One column. `cell` returns text and style of a row, or a line of several styles. Narrow screens drop the column
    with the highest `drop` first."""

    name: str
    title: str
    width: int
    cell: Callable[[Any], tuple[object, Style | None]]
    align: str = "<"
    grow: float = 0.0
    drop: int = 0


class Table(Pane):
    """Rows with a cursor. `fetch(offset, limit)` reads a page (None: it cannot be read). `put` shows rows that are in
    memory."""

    pad = 0

    class Selected(Message):
        """A second click on a row."""

    class Moved(Message):
        """The cursor moved to another row."""

    def __init__(
        self,
        name: str,
        columns: Callable[[Any], Sequence[TableColumn]],
        empty: Callable[[], list[str]],
        fetch: Fetch | None = None,
    ) -> None:
        super().__init__(name)
        self._columns_of = columns
        self._fetch = fetch
        self._empty = empty
        self.total = 0
        self.cursor = 0
        self.sort: tuple[str, bool] = ("", False)
        self._pages: dict[int, Sequence[object]] = {}
        self._requested: set[int] = set()
        self._columns: tuple[int, list[tuple[TableColumn, int]]] = (-1, [])
        self.marked: Callable[[Any], str] = lambda row: " "
        self._waiting: Callable[[], None] | None = None
        self._known = False
        """Whether the number of rows was read."""

    def wanted(self, again: Callable[[], None]) -> Any | None:
        """Return the current row. While it is being read, call `again` once it is there, unless the cursor moves or the
        user leaves the screen first."""
        row = self.current
        if row is None and (self.total or not self._known):
            self._waiting = again
        return row

    def reset(self, total: int, cursor: int = 0) -> None:
        self.total, self._known = total, True
        self._waiting = self._waiting if total else None
        self._pages.clear()
        self._requested = set()
        self.cursor = max(0, min(cursor, total - 1))
        self.top = max(0, min(self.top, total - self.body_height))
        self._reveal()
        self.repaint()

    def put(self, rows: Sequence[object], cursor: int = 0) -> None:
        self.reset(len(rows), cursor)
        self._pages = {start // PAGE: rows[start : start + PAGE] for start in range(0, len(rows), PAGE)}
        self._answer_wanted()

    def grow_to(self, total: int) -> None:
        if total != self.total:
            last = self.total // PAGE
            self.total = total
            self._pages.pop(last, None)
            self._requested.discard(last)
            self.repaint()

    def deliver(self, offset: int, rows: Sequence[object]) -> None:
        page = offset // PAGE
        self._requested.discard(page)
        self._pages[page] = rows
        while len(self._pages) > 12:
            current = (self.top + self.body_height // 2) // PAGE
            del self._pages[max(self._pages, key=lambda p: abs(p - current))]
        self.repaint()
        if page * PAGE <= self.cursor < (page + 1) * PAGE:
            self.post_message(self.Moved())
            self._answer_wanted()

    def _answer_wanted(self) -> None:
        if self._waiting is not None and self.frame is not None and self.app.screen is self.frame.screen:
            self.app.call_later(self._waiting)
        self._waiting = None

    def repaint(self) -> None:
        self._columns = (-1, [])
        super().repaint()

    def changed(self, keep_scroll: bool = True) -> None:
        self.repaint()

    @property
    def lines(self) -> list[Line]:
        return []

    @property
    def overflow(self) -> int:
        return max(0, self.total - self.body_height)

    @property
    def body_height(self) -> int:
        return max(1, self.size.height - 1)

    def row(self, index: int) -> Any | None:
        if not 0 <= index < self.total:
            return None
        page, offset = divmod(index, PAGE)
        rows = self._pages.get(page)
        if rows is None and page not in self._requested and self._fetch is not None and self.frame is not None:
            self._requested.add(page)
            self.frame.run_worker(self._read(page * PAGE, self._fetch, self._requested), group="pages")
        return rows[offset] if rows is not None and offset < len(rows) else None

    async def _read(self, offset: int, fetch: Fetch, requested: set[int]) -> None:
        rows = await fetch(offset, PAGE)
        if rows is not None and requested is self._requested:  # not reset meanwhile
            self.deliver(offset, rows)

    def near(self) -> list[Any]:
        return [row for page in self._pages.values() for row in page]

    @property
    def current(self) -> Any | None:
        return self.row(self.cursor)

    def move_by(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def move_to(self, index: int) -> None:
        index = max(0, min(index, self.total - 1))
        if index == self.cursor:
            return
        before, old_top = self.cursor, self.top
        self.cursor, self._waiting = index, None
        self._reveal()
        if self.top != old_top:
            super().repaint()
        else:
            for row in (before, index):
                y = row - self.top + 1
                self._strips.pop(y, None)
                self.refresh(Region(0, y, self.size.width, 1))
        ahead = index + (self.body_height if index > before else -self.body_height)
        self.row(max(0, min(ahead, self.total - 1)))
        self.post_message(self.Moved())

    def _reveal(self) -> None:
        self.top = min(max(self.top, self.cursor - self.body_height + 1), self.cursor)

    def scroll_line_to(self, top: int) -> None:
        top = max(0, min(top, self.overflow))
        if top != self.top:
            self.top = top
            self.cursor = max(top, min(self.cursor, top + self.body_height - 1))
            super().repaint()
            self.post_message(self.Moved())

    def on_placed(self) -> None:
        self._reveal()
        self.top = max(0, min(self.top, self.overflow))
        self.repaint()

    def layout_columns(self, width: int) -> list[tuple[TableColumn, int]]:
        if self._columns[0] == width:
            return self._columns[1]
        columns = list(self._columns_of(self))
        room = width - 2
        while len(columns) > 1 and sum(c.width + 1 for c in columns) - 1 > room:
            worst = max(range(len(columns)), key=lambda i: (columns[i].drop, i))
            columns.pop(worst)
        extra = max(0, room - (sum(c.width + 1 for c in columns) - 1))
        weight = sum(c.grow for c in columns)
        columns_with_widths = [(c, c.width + (int(extra * c.grow / weight) if weight else 0)) for c in columns]
        self._columns = (width, columns_with_widths)
        return columns_with_widths

    def _make(self, y: int) -> list[Segment]:
        width = self.size.width
        p = self.palette
        if not self.total:
            texts = self._empty()
            i = y - max(0, (self.size.height - len(texts)) // 3)
            if 0 <= i < len(texts):
                return Line(p).add(texts[i], p.title if i == 0 else p.muted, cells=width, align="^").cells(width)
            return Line(p).cells(width)
        columns = self.layout_columns(width)
        line = Line(p)
        if y == 0:
            line.gap(2)
            name, descending = self.sort
            for index, (column, size) in enumerate(columns):
                line.gap(int(index > 0))
                arrow = ("▼" if descending else "▲") if column.name and name == column.name else ""
                line.add(column.title + arrow, p.accent if arrow else p.muted, cells=size, align=column.align)
            return line.cells(width)
        index = self.top + y - 1
        if index >= self.total:
            return Line(p).cells(width)
        row = self.row(index)
        selected = index == self.cursor
        line.add("▸" if selected else " ", p.accent)
        if row is None:
            line.add(" …", p.faint)
            return line.cells(width, p.cursor if selected else None)
        line.add(self.marked(row), p.warn_bold, cells=1)
        for number, (column, size) in enumerate(columns):
            value, style = column.cell(row)
            line.gap(int(number > 0))
            if isinstance(value, Line):
                line.extend(value.cropped(size)).to(line.width + size - min(size, value.width))
            else:
                line.add(value, style, cells=size, align=column.align)
        return line.cells(width, p.cursor if selected else None)

    def clicked(self, x: int, y: int) -> None:
        index = self.top + y - 1
        if y == 0 and self.total:
            start = 2
            for column, size in self.layout_columns(self.size.width):
                if start <= x < start + size and column.name:
                    self.post_message(self.Hit(("sort", column.name)))
                start += size + 1
        elif index == self.cursor and self.total:
            self.post_message(self.Selected())
        elif index < self.total:
            self.move_to(index)
