"""A frame: boxes that share their border lines, with titles in the lines, as in the sketch of the screens.

The frame draws all borders itself (corners and junctions follow from the boxes), and places one pane in each box. Which
boxes there are at a size is decided by the screen's `plan`; panes without a box are not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.geometry import NULL_OFFSET, Region, Size, Spacing
from textual.layout import ArrangeResult, Layout, WidgetPlacement
from textual.strip import Strip
from textual.widget import Widget

from .line import Line
from .pane import Pane

if TYPE_CHECKING:
    from ..theme import Palette

_UP, _RIGHT, _DOWN, _LEFT = 1, 2, 4, 8
_GLYPHS = {
    0: " ", _UP | _DOWN: "│", _LEFT | _RIGHT: "─", _DOWN | _RIGHT: "╭", _DOWN | _LEFT: "╮", _UP | _RIGHT: "╰",
    _UP | _LEFT: "╯", _UP | _DOWN | _RIGHT: "├", _UP | _DOWN | _LEFT: "┤", _LEFT | _RIGHT | _DOWN: "┬",
    _LEFT | _RIGHT | _UP: "┴", 15: "┼", _UP: "│", _DOWN: "│", _LEFT: "─", _RIGHT: "─",
}  # fmt: skip


@dataclass(frozen=True)
class Box:
    """A rectangle with its border, in cells of the frame. Neighbours overlap by their shared line."""

    name: str
    x: int
    y: int
    width: int
    height: int

    def inner(self, pad: int = 0) -> Region:
        """Where the pane goes, `pad` cells from the borders left and right."""
        return Region(self.x + 1 + pad, self.y + 1, max(0, self.width - 2 - 2 * pad), max(0, self.height - 2))


@dataclass(frozen=True)
class Part:
    """One part of a split: at least `least` cells with both borders, more by `grow`."""

    least: int
    grow: float = 1.0
    most: int | None = None


def split(total: int, parts: Sequence[Part]) -> list[tuple[int, int]]:
    """Starts and sizes of parts that fill `total` cells and share one border line with each neighbour."""
    room = total + len(parts) - 1
    sizes = [p.least for p in parts]
    extra = room - sum(sizes)
    if extra < 0:
        sizes = [max(3, round(s * room / sum(sizes))) for s in sizes]
        sizes[-1] += room - sum(sizes)
        extra = 0
    open_parts = [i for i, p in enumerate(parts) if p.grow > 0]
    while extra > 0 and open_parts:
        weight = sum(parts[i].grow for i in open_parts)
        given = 0
        full = []
        for i in open_parts:
            share = max(1, int(extra * parts[i].grow / weight))
            share = min(share, extra - given)
            most = parts[i].most
            if most is not None and sizes[i] + share >= most:
                share = max(0, most - sizes[i])
                full.append(i)
            sizes[i] += share
            given += share
            if given >= extra:
                break
        extra -= given
        open_parts = [i for i in open_parts if i not in full]
        if not given and not full:
            break
    if extra > 0:
        sizes[-1] += extra
    out, at = [], 0
    for size in sizes:
        out.append((at, size))
        at += size - 1
    return out


Plan = Callable[[int, int], list[Box]]


class _BoxLayout(Layout):
    """Places the children of a frame into its boxes."""

    name = "boxes"

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> ArrangeResult:
        """One placement per child that has a box at this size."""
        assert isinstance(parent, Frame)
        where = {box.name: box for box in parent.boxes(size.width, size.height)}
        nothing = Spacing()
        made: ArrangeResult = []
        for child in children:
            box = where.get(child.id or "")
            if box is not None:
                region = box.inner(getattr(child, "pad", 0) if size.width >= 80 else 0)
                if region.area > 0:
                    made.append(WidgetPlacement(region, NULL_OFFSET, nothing, child))
        return made


class Frame(Widget):
    """Borders, titles, a header in the first line and key hints in the last."""

    DEFAULT_CSS = "Frame { width: 1fr; height: 1fr; }"
    ALLOW_SELECT = False

    def __init__(
        self,
        *panes: Widget,
        plan: Plan,
        header: Callable[[int], tuple[Line, Line]],
        footer: Callable[[int], Line],
        status: Callable[[int], Line],
        id: str = "frame",
    ) -> None:
        super().__init__(*panes, id=id)
        self._plan = plan
        self._header = header
        self._footer = footer
        self._status = status
        self._boxes: list[Box] = []
        self._boxes_for = (-1, -1)
        self._grid: list[list[int]] = []
        self._hits: dict[int, list[tuple[int, int, object]]] = {}
        self._box_layout = _BoxLayout()

    @property
    def layout(self) -> Layout:
        """Boxes, whatever the style sheet says."""
        return self._box_layout

    @property
    def palette(self) -> Palette:
        """The styles of the current theme."""
        return self.app.palette  # type: ignore[attr-defined]

    def boxes(self, width: int, height: int) -> list[Box]:
        """The boxes at this size."""
        if self._boxes_for != (width, height):
            self._boxes = self._plan(width, height)
            self._boxes_for = (width, height)
            self._grid = _junctions(self._boxes, width, height)
        return self._boxes

    def replan(self) -> None:
        """Other boxes are wanted at the same size."""
        self._boxes_for = (-1, -1)
        self.refresh(layout=True)

    def has_box(self, name: str) -> bool:
        """Whether a pane is on screen at the present size."""
        return any(b.name == name for b in self.boxes(*self.size))

    def refresh_header(self) -> None:
        """Paint the first line again."""
        self.refresh(Region(0, 0, self.size.width, 1))

    def refresh_status(self) -> None:
        """Paint the last line again."""
        self.refresh(Region(0, self.size.height - 1, self.size.width, 1))

    def refresh_lines(self) -> None:
        """Paint borders, titles, header and hints again."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """The border line `y`; panes lie over the rest."""
        width, height = self.size
        boxes = self.boxes(width, height)
        p = self.palette
        if y >= len(self._grid):
            return Strip.blank(width, p.base)
        over: list[tuple[int, Line]] = []
        if y == 0:
            left, right = self._header(width)
            if left.width:
                over.append((2, _spaced(p, left)))
            if right.width and left.width + right.width + 8 <= width:
                over.append((width - right.width - 4, _spaced(p, right)))
        elif y == height - 1:
            status = self._status(width - 6)
            room = width - 6
            if status.width:
                over.append((width - status.width - 4, _spaced(p, status)))
                room -= status.width + 4
            hints = self._footer(room)
            if hints.width:
                over.append((2, _spaced(p, hints)))
        for box in boxes:
            if box.y == y and (y > 0 or not over):
                title = self._title(box)
                if title is not None and title.width + 4 <= box.width:
                    over.append((box.x + 2, _spaced(p, title)))
        return self._paint(y, width, over)

    def _title(self, box: Box) -> Line | None:
        pane = next((c for c in self.children if c.id == box.name), None)
        if not isinstance(pane, Pane) or not pane.title:
            return None
        p = self.palette
        line = Line(p)
        if pane.active:
            line.add("▪ ", p.accent)
        return line.add(
            pane.title, p.key if pane.active else p.title, cells=min(len(pane.title), max(1, box.width - 8))
        )

    def _paint(self, y: int, width: int, over: list[tuple[int, Line]]) -> Strip:
        p = self.palette
        style = p.base + p.border
        row = self._grid[y]
        segments: list[Segment] = []
        hits: list[tuple[int, int, object]] = []
        at = 0
        for x, line in sorted(over, key=lambda item: item[0]):
            if x < at:
                continue
            segments.append(Segment("".join(_GLYPHS[m] for m in row[at:x]), style))
            segments += line.segments
            hits += [(a + x, b + x, what) for a, b, what in line.hits]
            at = x + line.width
        segments.append(Segment("".join(_GLYPHS[m] for m in row[at:width]), style))
        self._hits[y] = hits
        return Strip(segments).crop_extend(0, width, Style.null() + p.base)

    def on_click(self, event: events.Click) -> None:
        """A click on a hint does what its key does."""
        for start, end, what in self._hits.get(event.y, ()):
            if start <= event.x < end and isinstance(what, str):
                event.stop()
                self.call_later(self.screen.run_action, what)
                return


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
