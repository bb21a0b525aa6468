"""Dialogs over a screen, as a box around one pane, and a yes-or-no question."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.binding import Binding, BindingType
from textual.screen import ModalScreen, Screen

from ..widgets.frame import Box, Frame
from ..widgets.line import Line, wrapped
from ..widgets.pane import Pane

Answer = TypeVar("Answer")


class Modal(ModalScreen[Answer]):
    """A dialog that closes only once. Otherwise, later keys would also close the screen below."""

    def __init__(self, pane: Pane, widest: int) -> None:
        super().__init__()
        self.frame: Frame
        self._pane, self._widest = pane, widest

    def rows(self, width: int) -> int:
        raise RuntimeError(f"{type(self).__name__} has no height")

    def hints(self, width: int) -> Line:
        raise RuntimeError(f"{type(self).__name__} has no hints")

    def heading(self) -> Line:
        return Line(self._pane.palette)

    def compose(self) -> ComposeResult:
        self.frame = Frame(
            self._pane,
            plan=lambda width, height: [Box(self._pane.name, 0, 0, width, height)],
            header=lambda width: (self.heading(), Line(self._pane.palette)),
            footer=self.hints,
            status=lambda width: Line(self._pane.palette),
        )
        self.on_resize()
        yield self.frame

    def on_resize(self) -> None:
        screen = self.app.size
        width = min(self._widest, screen.width - 4 if screen.width >= 40 else screen.width)
        max_height = screen.height - 2 if screen.height >= 10 else screen.height
        self.frame.styles.width = width
        self.frame.styles.height = max(3, min(self.rows(width - 4) + 2, max_height))

    def repaint(self) -> None:
        self._pane.changed()

    def dismiss(self, result: Answer | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.app.screen is self else AwaitComplete.nothing()


class QuestionPane(Pane):
    """The question above its two answers."""

    def __init__(self, text: str, answers: tuple[str, str]) -> None:
        super().__init__("question")
        self.text, self.answers = text, answers
        self.cursor = 1

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        lines = [*wrapped(p, self.text, width, p.text), Line(p)]
        for index, answer in enumerate(self.answers):
            selected = index == self.cursor
            line = Line(p).add("▸ " if selected else "  ", p.accent)
            line.add(answer, p.strong if selected else p.text, cells=max(1, width - line.width))
            line.hits = [(0, width, index)]
            lines.append(line)
        return lines

    def on_placed(self) -> None:
        line = len(self.lines) - len(self.answers) + self.cursor
        self.scroll_line_to(min(max(self.top, line - self.size.height + 1), line))


class ConfirmDialog(Modal[bool]):
    """Dismissed with True for yes. The cursor starts at no."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "dismiss(False)", show=False),
        Binding("j,down,tab,right,l", "move(1)", show=False),
        Binding("k,up,shift+tab,left,h", "move(-1)", show=False),
        Binding("space,enter", "accept", show=False),
    ]

    def __init__(self, text: str, yes: str, no: str = "No, leave it") -> None:
        self.pane = QuestionPane(text, (yes, no))
        super().__init__(self.pane, widest=68)

    def rows(self, width: int) -> int:
        return len(self.pane.build(width, 0))

    def hints(self, width: int) -> Line:
        p = self.pane.palette
        line, alone = Line(p), Line(p)
        for key, label in (("enter", "choose"), ("esc", "cancel")):
            line.gap(3 if line.width else 0).add(key, p.key).add(f" {label}", p.muted)
            alone.gap(1 if alone.width else 0).add(key, p.key)
        return line if line.width <= width else alone

    def action_move(self, by: int) -> None:
        self.pane.cursor = (self.pane.cursor + by) % len(self.pane.answers)
        self.pane.changed()
        self.pane.on_placed()

    def action_accept(self) -> None:
        self.dismiss(self.pane.cursor == 0)

    def on_key(self, event: events.Key) -> None:
        if event.character in ("y", "n"):
            event.stop()
            self.dismiss(event.character == "y")

    def on_pane_hit(self, message: Pane.Hit) -> None:
        self.pane.cursor = message.what
        self.action_accept()


def confirm(screen: Screen, text: str, yes: str, then: Callable[[], None], no: str = "No, leave it") -> None:
    """Ask a question and call `then` on yes."""

    def answered(agreed: bool | None) -> None:
        if agreed:
            then()

    screen.app.push_screen(ConfirmDialog(text, yes, no), answered)
