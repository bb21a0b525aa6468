"""The last lines of the run's log."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from .line import Line, wrapped
from .pane import Pane

_LOGGED = re.compile(
    r"\d{4}-\d\d-\d\d[ T](?P<time>\d\d:\d\d:\d\d)[,.]?\d* (?P<level>[A-Z]+) [\w.]+: ?(?P<message>.*)", re.DOTALL
)

_WARNED = re.compile(r"(?P<file>\S+\.py):(?P<line>\d+): (?P<what>\w*Warning: .*)", re.DOTALL)
"""A line of Python's `warnings`, which precedes an indented source line."""
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3[.\d]*)[/\\]")
_BAR = re.compile(r"(?P<share>\d+)%\|.*\|")


def telling(lines: Sequence[str]) -> list[str]:
    """Drop warnings of libraries and finished progress bars from a log."""
    kept: list[str] = []
    source = False
    for at, text in enumerate(lines):
        follows, source = source and text.startswith("  "), False
        warned = _WARNED.fullmatch(text)
        bar = _BAR.search(text)
        if warned is not None:
            source = True
            if not _LIBRARY.search(warned["file"]):
                kept.append(f"{warned['what']} ({os.path.basename(warned['file'])}:{warned['line']})")
        elif bar is not None:
            if at == len(lines) - 1 and bar["share"] != "100":
                kept.append(text)
        elif text.strip() and not follows:
            kept.append(text)
    return kept


class LogPanel(Pane):
    """The end of the useful part of the log. `o` opens all of it."""

    title = "Log"

    def __init__(self) -> None:
        super().__init__("log")
        self.tail: Sequence[str] = ()

    def put(self, tail: Sequence[str]) -> None:
        tail = telling(tail)
        if tail != self.tail:
            self.tail = tail
            self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        lines = [line for text in self.tail[-height:] for line in self._lines(text, width)]
        return lines[-height:] or [Line(self.palette).add("the log is empty", self.palette.faint)]

    def _lines(self, text: str, width: int) -> list[Line]:
        p = self.palette
        found = _LOGGED.match(text)
        if found is None:
            return [Line(p).add(text, p.muted, cells=width)]
        level, message = found["level"], found["message"]
        sign, tone = {"WARNING": ("⚠ ", p.warn), "ERROR": ("✗ ", p.bad), "CRITICAL": ("✗ ", p.bad)}.get(
            level, ("", p.text)
        )
        line = Line(p)
        line.offer(Line(p).add(found["time"], p.faint).gap(), width - 12)
        left = line.width
        first, *more = wrapped(p, sign + message, max(1, width - left), tone) or [Line(p)]
        if len(more) > 1:  # a message takes two lines
            more = [more[0].cropped(width - left - 1).add("…", p.muted)]
        return [line.extend(first), *(Line(p).gap(left).extend(rest) for rest in more)]
