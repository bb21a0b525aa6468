"""One line of a pane, built from left to right. Text becomes literal when it is added."""

from __future__ import annotations

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

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
