"""The last lines of the run's log."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .line import Line
from .pane import Pane

_LOGGED = re.compile(
    r"\d{4}-\d\d-\d\d[ T](?P<time>\d\d:\d\d:\d\d)[,.]?\d* (?P<level>[A-Z]+) [\w.]+: ?(?P<message>.*)", re.DOTALL
)


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
        return [self._line(text, width) for text in self.tail[-height:]] or [
            Line(self.palette).add("the log is empty", self.palette.faint)
        ]

    def _line(self, text: str, width: int) -> Line:
        """Time and message of a line of the log; date, level and module would push the message off the screen."""
        p = self.palette
        found = _LOGGED.match(text)
        if found is None:
            return Line(p).add(text, p.muted, cells=width)
        level, message = found["level"], found["message"]
        sign, tone = {"WARNING": ("⚠ ", p.warn), "ERROR": ("✗ ", p.bad), "CRITICAL": ("✗ ", p.bad)}.get(
            level, ("", p.text)
        )
        line = Line(p).add(found["time"], p.faint).gap()
        return line.add(sign + message, tone, cells=max(1, width - line.width))
