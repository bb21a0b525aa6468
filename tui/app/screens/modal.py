"""A dialog over a screen, as a box around one pane: a question, the metric picker."""

from __future__ import annotations

from typing import TypeVar

from textual.app import ComposeResult
from textual.await_complete import AwaitComplete
from textual.screen import ModalScreen

from ..widgets.frame import Box, Frame
from ..widgets.line import Line
from ..widgets.pane import Pane

Answer = TypeVar("Answer")


class Modal(ModalScreen[Answer]):
    """A dialog that closes once. Later keys would also close the screen below."""

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
        most = screen.height - 2 if screen.height >= 10 else screen.height
        self.frame.styles.width = width
        self.frame.styles.height = max(3, min(self.rows(width - 4) + 2, most))

    def repaint(self) -> None:
        self._pane.changed()

    def dismiss(self, result: Answer | None = None) -> AwaitComplete:
        return super().dismiss(result) if self.app.screen is self else AwaitComplete.nothing()
