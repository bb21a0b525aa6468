"""The last lines of the run's log."""

from __future__ import annotations

from collections.abc import Sequence

from .line import Line
from .pane import Pane


class LogPanel(Pane):
    """Shows the end; the whole log opens with `o`."""

    title = "Log"

    def __init__(self, name: str = "log") -> None:
        super().__init__(name)
        self.tail: Sequence[str] = ()

    def put(self, tail: Sequence[str]) -> None:
        """The last lines, newest last."""
        if list(tail) != list(self.tail):
            self.tail = list(tail)
            self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        """One line each, cut visibly."""
        p = self.palette
        return [Line(p).add(text, p.muted, cells=width) for text in self.tail[-height:]] or [
            Line(p).add("the log is empty", p.faint)
        ]
