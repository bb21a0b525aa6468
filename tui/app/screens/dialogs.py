"""Small questions over a screen: yes or no, and a choice from a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from ...text import wrap
from ..widgets.frame import Box, Frame
from ..widgets.line import Line
from ..widgets.pane import Pane
from .modal import Modal


class DialogPane(Pane):
    """The text of a dialog."""

    def __init__(self, text: str, choices: Sequence[str]) -> None:
        super().__init__("dialog")
        self.text, self.choices = text, list(choices)
        self.cursor = 0
        self.checked: set[int] | None = None

    def rows(self, width: int) -> int:
        """Lines that the dialog would like."""
        return len(wrap(self.text, max(10, width))) + 1 + max(1, len(self.choices))

    def build(self, width: int, height: int) -> list[Line]:
        """The question, then the choices."""
        p = self.palette
        lines = [Line(p).add(text, p.text) for text in wrap(self.text, width)] + [Line(p)]
        for index, choice in enumerate(self.choices):
            here = index == self.cursor
            line = Line(p).add("▸ " if here else "  ", p.accent)
            if self.checked is not None:
                line.add("[x] " if index in self.checked else "[ ] ", p.accent if index in self.checked else p.faint)
            line.add(choice, p.strong if here else p.text, cells=max(1, width - line.width))
            line.hits = [(0, width, index)]
            lines.append(line)
        return lines

    def on_placed(self) -> None:
        """At another size the cursor is elsewhere."""
        self._reveal()

    def move(self, by: int) -> None:
        """Move the cursor and keep it in view."""
        self.cursor = (self.cursor + by) % max(1, len(self.choices))
        self.changed()
        self._reveal()

    def _reveal(self) -> None:
        at = len(self.lines) - len(self.choices) + self.cursor
        if at < self.top:
            self.scroll_line_to(at)
        elif at >= self.top + self.size.height:
            self.scroll_line_to(at - self.size.height + 1)


class Dialog(Modal[object]):
    """Dismissed with the index of the choice, the set of checked ones, or None for esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(None)", show=False),
        Binding("j,down,tab,right,l", "move(1)", show=False),
        Binding("k,up,shift+tab,left,h", "move(-1)", show=False),
        Binding("space", "check", show=False),
        Binding("enter", "accept", show=False),
    ]

    def __init__(
        self, text: str, choices: Sequence[str], *, keys: str = "", checked: set[int] | None = None, cursor: int = 0
    ) -> None:
        super().__init__()
        self.pane = DialogPane(text, choices)
        self.pane.cursor = cursor
        self.pane.checked = checked
        self._keys = keys

    def compose(self) -> ComposeResult:
        """The box, as high as its text where the screen is."""
        self.frame = Frame(
            self.pane,
            plan=lambda w, h: [Box("dialog", 0, 0, w, h)],
            header=lambda w: (Line(self.pane.palette), Line(self.pane.palette)),
            footer=self._hints,
            status=lambda w: Line(self.pane.palette),
        )
        self._fit()
        yield self.frame

    def _fit(self) -> None:
        screen = self.app.size
        width = min(68, screen.width - 4 if screen.width >= 40 else screen.width)
        self.frame.styles.width = width
        high = screen.height - 2 if screen.height >= 10 else screen.height
        self.frame.styles.height = max(3, min(self.pane.rows(width - 4) + 2, high))

    def on_resize(self) -> None:
        """The terminal has another size."""
        self._fit()

    def _hints(self, width: int) -> Line:
        p = self.pane.palette
        keys = [("enter", "choose"), ("space", "check"), ("esc", "cancel")]
        line, alone = Line(p), Line(p)
        for key, label in keys if self.pane.checked is not None else keys[::2]:
            line.gap(3 if line.width else 0).add(key, p.key).add(f" {label}", p.muted)
            alone.gap(1 if alone.width else 0).add(key, p.key)
        return line if line.width <= width else alone

    def repaint(self) -> None:
        """Paint again in another theme."""
        self.pane.changed()

    def action_move(self, by: int) -> None:
        """Another choice."""
        self.pane.move(by)

    def action_check(self) -> None:
        """Check or uncheck the choice; without boxes, accept it."""
        if self.pane.checked is None:
            self.action_accept()
            return
        self.pane.checked ^= {self.pane.cursor}
        self.pane.changed()

    def action_accept(self) -> None:
        """Answer."""
        checked = self.pane.checked
        self.dismiss((checked or {self.pane.cursor}) if checked is not None else self.pane.cursor)

    def on_key(self, event: events.Key) -> None:
        """The first letters of the choices answer too."""
        if event.character and event.character in self._keys:
            event.stop()
            self.dismiss(self._keys.index(event.character))

    def on_pane_hit(self, message: Pane.Hit) -> None:
        """A click chooses."""
        if isinstance(message.what, int):
            self.pane.cursor = message.what
            self.action_check()


def confirm(text: str, yes: str, no: str = "No, leave it") -> Dialog:
    """Answers 0 for yes; the cursor starts on no."""
    return Dialog(text, [yes, no], keys="yn", cursor=1)
