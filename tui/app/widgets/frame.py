"""A frame: boxes that share border lines, with titles in the lines, as in the sketch of the screens.

The frame draws all borders itself (the boxes determine corners and junctions), and paints one pane into each box.
The screen's `plan` decides which boxes exist at a size. Panes without a box are hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from rich.segment import Segment
from textual import events
from textual.filter import Monochrome, NoColor
from textual.geometry import Offset, Region
from textual.strip import Strip

from ..theme import Palette
from .pane import Line, Pane, PaneHost

_UP, _RIGHT, _DOWN, _LEFT = 1, 2, 4, 8
_GLYPHS = {
    0: " ", _UP | _DOWN: "│", _LEFT | _RIGHT: "─", _DOWN | _RIGHT: "╭", _DOWN | _LEFT: "╮", _UP | _RIGHT: "╰",
    _UP | _LEFT: "╯", _UP | _DOWN | _RIGHT: "├", _UP | _DOWN | _LEFT: "┤", _LEFT | _RIGHT | _DOWN: "┬",
    _LEFT | _RIGHT | _UP: "┴", 15: "┼", _UP: "│", _DOWN: "│", _LEFT: "─", _RIGHT: "─",
}  # fmt: skip


@dataclass(frozen=True)
class Box:
    """A rectangle with its border, in cells of the frame. Neighbours share a border line."""

    name: str
    x: int
    y: int
    width: int
    height: int

    def inner(self, pad: int = 0) -> Region:
        return Region(self.x + 1 + pad, self.y + 1, max(0, self.width - 2 - 2 * pad), max(0, self.height - 2))


@dataclass(frozen=True)
class SplitPart:
    """A part of a split. It gets at least `least` cells with borders, and the share `grow` of the rest."""

    least: int
    grow: float = 1.0
    most: int | None = None


def split(total: int, parts: Sequence[SplitPart]) -> list[tuple[int, int]]:
    """Return the starts and sizes of parts that fill `total` cells and share borders."""
    room = total + len(parts) - 1
    sizes = [p.least for p in parts]
    extra = room - sum(sizes)
    if extra < 0:
        sizes = [max(3, s * room // sum(sizes)) for s in sizes]
        while sum(sizes) > room and max(sizes) > 3:
            sizes[sizes.index(max(sizes))] -= 1
        extra = room - sum(sizes)
    open_parts = [i for i, p in enumerate(parts) if p.grow > 0]
    while extra > 0 and open_parts:
        left, weight = extra, sum(parts[i].grow for i in open_parts)
        for i in open_parts[:]:
            share = min(extra, max(1, int(left * parts[i].grow / weight)))
            limit = parts[i].most
            if limit is not None and sizes[i] + share >= limit:
                share = max(0, limit - sizes[i])
                open_parts.remove(i)
            sizes[i] += share
            extra -= share
    sizes[-1] += max(0, extra)
    return list(zip(accumulate((size - 1 for size in sizes[:-1]), initial=0), sizes, strict=True))


class Frame(PaneHost):
    """Borders, titles, header, key hints, and the panes between them."""

    ALLOW_SELECT = False

    def __init__(
        self,
        *panes: Pane,
        plan: Callable[[int, int], list[Box]],
        header: Callable[[int], tuple[Line, Line]],
        footer: Callable[[int], Line],
        status: Callable[[int], Line],
    ) -> None:
        super().__init__(id="frame")
        self.panes = {pane.name: pane for pane in panes}
        for pane in panes:
            pane.frame = self
        self._plan = plan
        self._header = header
        self._footer = footer
        self._status = status
        self._boxes: list[Box] = []
        self._boxes_for = (-1, -1)
        self._grid: list[list[int]] = []
        self._rows: list[list[Pane]] = []
        self._hits: dict[int, list[tuple[int, int, object]]] = {}
        self._drawn: dict[tuple[int, int, int], str] = {}
        self._pressed = Offset()

    @property
    def palette(self) -> Palette:
        return self.app.palette  # type: ignore[attr-defined]

    @property
    def boxes(self) -> list[Box]:
        width, height = self.size
        if self._boxes_for != (width, height):
            self._boxes_for = (width, height)
            self._boxes = [b for b in self._plan(width, height) if b.name in self.panes]
            self._drawn.clear()
            self._grid = _junctions(self._boxes, width, height)
            where = {box.name: box for box in self._boxes}
            for name, pane in self.panes.items():
                box = where.get(name)
                pane.placed(box.inner(pane.pad if width >= 80 else 0) if box is not None else Region())
            self._rows = [
                sorted((p for p in self.panes.values() if p.region.y <= y < p.region.bottom), key=lambda p: p.region.x)
                for y in range(height)
            ]
        return self._boxes

    def replan(self) -> None:
        self._boxes_for = (-1, -1)
        self.refresh()

    def on_resize(self) -> None:
        self.boxes  # noqa: B018  places them
        self.refresh()

    def refresh_lines(self) -> None:
        width, height = self.size
        if width:
            lines = {0, height - 1} | {box.y for box in self.boxes}
            self.refresh(*(Region(0, y, width, 1) for y in sorted(lines)))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Render a region without Textual's styling pass, which nothing here needs."""
        strips = [self.render_line(y) for y in crop.line_range]
        # panes use no dim text and no ANSI colours, and checking for them would cost as much as the painting
        filters = [f for f in self.get_line_filters() if isinstance(f, (NoColor, Monochrome))]
        if filters:
            background = self.background_colors[1]
            for line_filter in filters:
                strips = [strip.apply_filter(line_filter, background) for strip in strips]
        if crop.column_span != (0, self.size.width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        boxes = self.boxes
        width, height = self.size
        p = self.palette
        if y >= len(self._grid) or not boxes:
            return Strip.blank(width, p.base)
        panes = self._rows[y]
        if not panes:
            return self._border_line(y, width, height)
        over = self._titles(y)
        segments: list[Segment] = []
        column = 0
        for pane in panes:
            region = pane.region
            segments += [*self._gap(y, column, region.x, over), *pane.line_at(y - region.y)]
            column = region.right
        return Strip([*segments, *self._gap(y, column, width, over)], width)

    def _gap(self, y: int, start: int, end: int, over: list[tuple[int, Line]]) -> list[Segment]:
        """Return the border between two columns, with the texts in it."""
        segments, column = [], start
        for x, line in over:
            if start <= x and x + line.width <= end:
                segments += [self._border(y, column, x), *line.segments]
                column = x + line.width
        return [*segments, self._border(y, column, end)] if column < end else segments

    def _border(self, y: int, start: int, end: int) -> Segment:
        text = self._drawn.get((y, start, end))
        if text is None:
            text = self._drawn[y, start, end] = "".join(_GLYPHS[m] for m in self._grid[y][start:end])
        return Segment(text, self.palette.base + self.palette.border)

    def _titles(self, y: int) -> list[tuple[int, Line]]:
        p, found = self.palette, []
        for box in self._boxes:
            pane = self.panes[box.name]
            if box.y != y or not pane.title:
                continue
            room, title = max(1, box.width - 8), pane.title
            while len(title) > room and len(shorter := title.rpartition(" · ")[0]) > room // 3:
                title = shorter
            line = Line(p).add("▪ " if pane.active else "", p.accent)
            line.add(title, p.key if pane.active else p.title, most=room)
            if line.width + 4 <= box.width:
                found.append((box.x + 2, _spaced(p, line)))
        return found

    def _border_line(self, y: int, width: int, height: int) -> Strip:
        p = self.palette
        over: list[tuple[int, Line]] = []
        headed = False
        if y == 0:
            left, right = self._header(width)
            headed = bool(left.width or right.width)
            room = width - 6 - (right.width + 3 if right.width else 0)
            if right.width and min(left.width, 8) + right.width + 8 > width:
                right, room = Line(p), width - 6
            if left.width > room:
                left = left.cropped(max(8, room))
            if left.width:
                over.append((2, _spaced(p, left)))
            if right.width and left.width + right.width + 8 <= width:
                over.append((width - right.width - 4, _spaced(p, right)))
        elif y == height - 1:
            room = width - 6
            status = self._status(room)
            hints = self._footer(room - status.width - 4 if status.width else room)
            if status.width and not hints.width:  # the keys that leave the screen matter more than the position
                status, hints = Line(p), self._footer(room)
            if status.width:
                over.append((width - status.width - 4, _spaced(p, status)))
            if hints.width:
                over.append((2, _spaced(p, hints)))
        if not headed:
            over += self._titles(y)
        over.sort(key=lambda item: item[0])
        self._hits[y] = [(a + x, b + x, what) for x, line in over for a, b, what in line.hits]
        return Strip(self._gap(y, 0, width, over), width)

    def pane_at(self, x: int, y: int) -> Pane | None:
        return next((p for p in self.panes.values() if p.region.contains(x, y)), None)

    def on_mouse_down(self, event: events.MouseDown) -> None:
        self._pressed = event.offset

    def on_click(self, event: events.Click) -> None:
        if sum(map(abs, event.offset - self._pressed)) > 1:  # the end of a drag
            return
        pane = self.pane_at(event.x, event.y)
        if pane is not None:
            event.stop()
            pane.clicked(event.x - pane.region.x, event.y - pane.region.y)
            return
        for start, end, what in self._hits.get(event.y, ()):
            if start <= event.x < end and isinstance(what, str):
                event.stop()
                self.call_later(self.screen.run_action, what)
                return

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._wheel(event, 3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._wheel(event, -3)

    def _wheel(self, event: events.MouseEvent, by: int) -> None:
        pane = self.pane_at(event.x, event.y)
        if pane is not None:
            event.stop()
            pane.scroll_lines(by)


def _spaced(palette: Palette, line: Line) -> Line:
    return Line(palette).gap().extend(line).gap()


def _junctions(boxes: list[Box], width: int, height: int) -> list[list[int]]:
    grid = [[0] * width for _ in range(height)]
    for b in boxes:
        right, bottom = min(width, b.x + b.width) - 1, min(height, b.y + b.height) - 1
        for x in range(b.x, right):
            for y in (b.y, bottom):
                grid[y][x] |= _RIGHT
                grid[y][x + 1] |= _LEFT
        for y in range(b.y, bottom):
            for x in (b.x, right):
                grid[y][x] |= _DOWN
                grid[y + 1][x] |= _UP
    return grid
