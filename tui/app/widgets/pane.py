"""A pane: lines of styled text in one box of a frame, painted directly and scrolled by whole lines.

A pane is not a Textual widget. One widget, the frame, paints a whole screen, because composing eight overlapping
widgets takes three times the budget of a key press. Lines are built once per content and size, and cached. A line is
built from left to right. Text becomes literal when it is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from ... import text as literally
from ..theme import Palette

Hit = tuple[int, int, object]
"""`[start, end)` in cells and the target of a click there."""


class Line:
    """A line under construction. All text enters through `add`, which makes it literal."""

    __slots__ = ("hits", "palette", "segments", "width")

    def __init__(self, palette: Palette, text: object = "", style: Style | None = None) -> None:
        self.palette = palette
        self.segments: list[Segment] = []
        self.hits: list[Hit] = []
        self.width = 0
        if text != "":
            self.add(text, style)

    def add(
        self,
        text: object,
        style: Style | None = None,
        cells: int | None = None,
        align: str = "<",
        click: object = None,
        most: int | None = None,
    ) -> Line:
        """Append `text`, cut to `most` cells, or cut or padded to `cells` (`align` `<`, `>` or `^`)."""
        raw = text if isinstance(text, str) else str(text)
        room = most if cells is None else cells
        if room is not None and room <= 0:
            return self
        shown = literally.literal(raw) if room is None else literally.line(raw, room)
        size = literally.width(shown)
        if cells is not None and size < cells:
            gap = cells - size
            left = {"<": 0, ">": gap, "^": gap // 2}[align]
            shown, size = " " * left + shown + " " * (gap - left), cells
        if size:
            base = self.palette.base
            self.segments.append(Segment(shown, base if style is None else base + style))
            if click is not None:
                self.hits.append((self.width, self.width + size, click))
            self.width += size
        return self

    def whole(self, text: object, style: Style | None = None, room: int = 0) -> Line:
        """Append `text` only if it fits into `room` cells, because numbers are whole or absent."""
        return self.add(text, style) if literally.width(literally.literal(str(text))) <= room else self

    def gap(self, cells: int = 1) -> Line:
        if cells > 0:
            self.segments.append(Segment(" " * cells, self.palette.base))
            self.width += cells
        return self

    def to(self, column: int) -> Line:
        return self.gap(column - self.width)

    def extend(self, other: Line) -> Line:
        self.hits += [(a + self.width, b + self.width, what) for a, b, what in other.hits]
        self.segments += other.segments
        self.width += other.width
        return self

    def right(self, other: Line, width: int) -> Line:
        """Append another line so that it ends at `width`, if there is room."""
        if other.width + 1 <= width - self.width:
            self.to(width - other.width)
            self.extend(other)
        return self

    def offer(self, other: Line, width: int) -> bool:
        """Append another line only if it fits into `width`. Returns whether it did."""
        fits = self.width + other.width <= width
        if fits:
            self.extend(other)
        return fits

    def cells(self, width: int, style: Style | None = None) -> list[Segment]:
        segments = self.segments
        if self.width < width:
            segments = [*segments, Segment(" " * (width - self.width), self.palette.base)]
        if style is not None:
            segments = [Segment(s.text, (s.style or self.palette.base) + style) for s in segments]
        if self.width > width:
            return list(Strip(self.cropped(width).cells(width, style), width))
        return segments

    def cropped(self, width: int) -> Line:
        """Cut the line to `width` cells with an ellipsis. Numbers are never cut in two."""
        if self.width <= width:
            return self
        line = Line(self.palette)
        if width <= 0:
            return line
        text = self.plain
        fitting = literally.fitting(text, width - 1)
        line.width = literally.width(text[: literally.before_number(text, fitting)])
        line.segments = list(Strip(self.segments, self.width).crop(0, line.width))
        line.hits = [(a, min(b, line.width), what) for a, b, what in self.hits if a < line.width]
        return line.add("…", self.palette.muted)

    @property
    def plain(self) -> str:
        return "".join(s.text for s in self.segments)


def wrapped(
    p: Palette, text: str, width: int, style: Style, limit: int = literally.FIELD_LIMIT, after: Line | None = None
) -> list[Line]:
    """Wrap at most `limit` characters into lines of `width` cells: the first one to the right of `after`, the others
    below it. An empty text has none."""
    head = after or Line(p)
    indent = head.width
    parts = literally.wrap(text, width - indent, limit) if text else []
    return [(Line(p).gap(indent) if i else head).add(part, style) for i, part in enumerate(parts)]


class PaneHost(Widget):
    """Paints panes and the border lines around them."""

    def refresh_lines(self) -> None:
        """Paint the border lines again, as every change of a pane does."""
        self.refresh()


class Pane:
    """A widget that paints the lines of `build`. Subclasses hold data and call `changed` after a change."""

    @dataclass
    class Hit(Message):
        """A click on a target."""

        what: Any

    pad: ClassVar[int] = 1
    """Blank cells between the text and the borders left and right."""
    build: Callable[[int, int], Sequence[Line]]
    """Returns all lines for a width and a height. More lines than the height scroll."""
    long = False
    """Whether there are always more lines than fit. Then they are built only once, next to a scrollbar."""
    name = ""
    title = ""
    """The title in the border above the pane."""

    def __init__(self, name: str = "") -> None:
        self.name = name or self.name
        self.frame: PaneHost | None = None
        self.region = Region()
        self.top = 0
        self.active = False
        self._built: Sequence[Line] | None = None
        self._built_for = (-1, -1)
        self._strips: dict[int, list[Segment]] = {}

    @property
    def app(self) -> Any:
        assert self.frame is not None
        return self.frame.app

    @property
    def palette(self) -> Palette:
        return self.app.palette

    @property
    def size(self) -> Size:
        return self.region.size

    @property
    def shown(self) -> bool:
        return self.frame is not None and self.region.area > 0

    def placed(self, region: Region) -> None:
        """Set the pane's box; an empty one hides it."""
        if region != self.region:
            self.region = region
            self._strips.clear()
            if region.area:
                self.on_placed()

    def on_placed(self) -> None:
        """Handle a new size or place of the pane."""

    def refresh(self, *regions: Region) -> None:
        """Paint parts of the pane again, and the border lines: titles, header and hints may have changed."""
        if self.frame is not None:
            if self.shown:
                parts = [r.translate(self.region.offset) for r in regions] if regions else [self.region]
                self.frame.refresh(*parts)
            self.frame.refresh_lines()

    def repaint(self) -> None:
        self._strips.clear()
        self.refresh()

    def post_message(self, message: Message) -> None:
        if self.frame is not None:
            self.frame.post_message(message)

    def changed(self, keep_scroll: bool = True) -> None:
        if not keep_scroll:
            self.top = 0
        before, self._strips = self._strips, {}
        self._built = None
        if not self.shown or not before:
            self.refresh()
            return
        # compose only lines that differ: comparing costs a third of composing
        width, height = self.size
        other = [y for y in range(height) if before.get(y) != self.line_at(y)]
        if other:
            self.refresh(*(Region(0, y, width, 1) for y in other))
        elif self.frame is not None:
            self.frame.refresh_lines()

    @property
    def lines(self) -> Sequence[Line]:
        width, height = self.size
        if self._built is None or self._built_for != (width, height):
            self._strips.clear()
            self._built = self.build(width - self.long, height)
            # a flow knows its height once its first lines are laid out
            if not self.long and width > 4 and len([*islice(self._built, height + 1)]) > height:
                self._built = self.build(width - 1, height)
            self._built_for = (width, height)
            self.top = max(0, min(self.top, len(self._built) - height))
        return self._built

    @property
    def copied(self) -> Sequence[str]:
        return [line.plain.rstrip() for line in self.lines]

    @property
    def overflow(self) -> int:
        return max(0, len(self.lines) - self.size.height)

    def scroll_lines(self, by: int) -> None:
        self.scroll_line_to(self.top + by)

    def move_by(self, by: int) -> None:
        """Handle a key that moves by lines: scroll, or move a cursor."""
        self.scroll_lines(by)

    def scroll_line_to(self, top: int) -> None:
        top = max(0, min(top, self.overflow))
        if top != self.top:
            self.top = top
            self.repaint()

    def line_at(self, y: int) -> list[Segment]:
        strip = self._strips.get(y)
        if strip is None:
            strip = self._strips[y] = self._make(y)
        return strip

    def _make(self, y: int) -> list[Segment]:
        lines = self.lines
        width, height = self.size
        index = self.top + y
        line = lines[index] if index < len(lines) else Line(self.palette)
        if len(lines) <= height or width <= 4:
            return line.cells(width)
        body = line.cells(width - 1)
        size = max(1, height * height // len(lines))
        start = round(self.top * (height - size) / max(1, len(lines) - height))
        inside = start <= y < start + size
        style = self.palette.base + (self.palette.muted if inside else self.palette.border)
        return [*body, Segment("┃" if inside else "│", style)]

    def clicked(self, x: int, y: int) -> None:
        index = self.top + y
        hits = self.lines[index].hits if 0 <= index < len(self.lines) else ()
        hit = next((what for start, end, what in hits if start <= x < end), None)
        if hit is not None:
            self.post_message(self.Hit(hit))
