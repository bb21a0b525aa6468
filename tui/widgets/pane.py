"""A pane: lines of styled text, painted directly, scrolled by whole lines.

Textual lays out and composes; a pane only answers "which segments stand on line y". Lines are built once per content
and size and then served from a cache, so a key press costs the repaint of what changed and no layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rich.segment import Segment
from textual import events
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from .line import Line

if TYPE_CHECKING:
    from ..theme import Palette


class Pane(Widget):
    """Paints what `build` returns. Subclasses hold their data and call `changed` when it does."""

    DEFAULT_CSS = "Pane { width: 1fr; height: 1fr; }"
    ALLOW_SELECT: ClassVar[bool] = False

    class Hit(Message):
        """A click on something that means something."""

        def __init__(self, pane: Pane, what: Any) -> None:
            self.pane = pane
            self.what = what
            super().__init__()

        @property
        def control(self) -> Pane:
            """The pane that was clicked."""
            return self.pane

    pad: ClassVar[int] = 1
    """Blank cells between the text and the borders left and right."""
    title = ""
    """What stands in the frame's line above the pane."""

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.top = 0
        self.active = False
        self._built: list[Line] | None = None
        self._built_for = (-1, -1)
        self._strips: dict[int, Strip] = {}

    @property
    def palette(self) -> Palette:
        """The styles of the current theme."""
        return self.app.palette  # type: ignore[attr-defined]

    def build(self, width: int, height: int) -> list[Line]:
        """All lines of the content at this width; more than `height` of them scroll."""
        raise RuntimeError(f"{type(self).__name__} does not say what it shows")

    def changed(self, keep_scroll: bool = True) -> None:
        """The content is another one: build and paint it again."""
        if not keep_scroll:
            self.top = 0
        self._built = None
        self._strips.clear()
        if self.is_attached:
            self.refresh()

    @property
    def lines(self) -> list[Line]:
        """The built lines for the present size."""
        width, height = self.size
        if self._built is None or self._built_for != (width, height):
            self._strips.clear()
            self._built = self.build(width, height)
            if len(self._built) > height and width > 4:
                self._built = self.build(width - 1, height)
            self._built_for = (width, height)
            self.top = max(0, min(self.top, len(self._built) - height))
        return self._built

    @property
    def overflow(self) -> int:
        """Lines that do not fit."""
        return max(0, len(self.lines) - self.size.height)

    def scroll_lines(self, by: int) -> None:
        """Move the view by whole lines."""
        self.scroll_line_to(self.top + by)

    def scroll_line_to(self, top: int) -> None:
        """Put line `top` first; the ends hold."""
        top = max(0, min(top, self.overflow))
        if top != self.top:
            self.top = top
            self._strips.clear()
            self.refresh()

    def render_line(self, y: int) -> Strip:
        """Line `y` of what is visible."""
        made = self._strips.get(y)
        if made is None:
            made = self._strips[y] = self._make(y)
        return made

    def _make(self, y: int) -> Strip:
        lines = self.lines
        width, height = self.size
        index = self.top + y
        line = lines[index] if index < len(lines) else Line(self.palette)
        if len(lines) <= height or width <= 4:
            return line.strip(width)
        body = line.strip(width - 1)
        size = max(1, height * height // len(lines))
        start = round(self.top * (height - size) / max(1, len(lines) - height))
        inside = start <= y < start + size
        style = self.palette.base + (self.palette.muted if inside else self.palette.border)
        return Strip([*body, Segment("┃" if inside else "│", style)], width)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll three lines down."""
        event.stop()
        self.scroll_lines(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll three lines up."""
        event.stop()
        self.scroll_lines(-3)

    def on_click(self, event: events.Click) -> None:
        """Say what was clicked, if it means something."""
        index = self.top + event.y
        if 0 <= index < len(self.lines):
            for start, end, what in self.lines[index].hits:
                if start <= event.x < end:
                    event.stop()
                    self.post_message(self.Hit(self, what))
                    return
