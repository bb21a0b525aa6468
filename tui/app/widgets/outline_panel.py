"""The steps of the open rollout, one line each, with the open one in view; a click goes to a step."""

from __future__ import annotations

from functools import partial

from ...format import fixed
from ..outline import Entry, OutlineOf
from .flow import Flow, Part
from .line import Line
from .pane import Pane


class OutlinePanel(Pane):
    """Number, sign, call, size, reward or advantage of each step. Further calls are branches."""

    title = "steps"

    def __init__(self) -> None:
        super().__init__("steps")
        self.of: OutlineOf | None = None
        self.step = 0

    def put(self, of: OutlineOf | None, step: int) -> None:
        same = of is self.of and self._built is not None
        before, self.of, self.step = self.step, of, step
        self.title = "steps"
        if of is not None and of.filter:
            self.title = f"{len(of.listed)} of {len(of.entries)} steps · {of.filter}"
        if not same:
            self.changed(keep_scroll=False)
        elif before != step and isinstance(self.lines, Flow):
            for part in self.lines.parts:
                if part.key[0] in (before, step):
                    part.lines = None
            self._strips.clear()
            self.refresh()
        self._follow()

    def on_placed(self) -> None:
        self._follow()

    def _follow(self) -> None:
        if not self.shown or not isinstance(self.lines, Flow):
            return
        flow, height = self.lines, self.size.height
        at = next((i for i, part in enumerate(flow.parts) if part.key[0] >= self.step), None)
        if at is None:
            return
        line, end = flow.starts[at], flow.starts[at + 1]
        if not self.top <= line or end > self.top + height:
            self.scroll_line_to(line - height // 3)

    def build(self, width: int, height: int) -> Flow:
        if self.of is None:
            return Flow([])
        digits = len(str(len(self.of.entries)))
        parts = []
        for at in self.of.listed:
            entry = self.of.entries[at]
            parts.append(Part(partial(self._lines, at, entry, digits, width), entry.rows, (at,)))
        if not parts and self.of.filter:
            parts.append(Part([Line(self.palette).add("no step matches", self.palette.faint, cells=width)], key=(-1,)))
        return Flow(parts)

    def _lines(self, at: int, entry: Entry, digits: int, width: int) -> list[Line]:
        p, here = self.palette, at == self.step
        right = self._numbers(entry, width)
        lines = []
        for index, (worked, call) in enumerate(entry.branches):
            line = Line(p).add("▸" if here and not index else " ", p.accent)
            last = index == len(entry.branches) - 1
            number = str(at + 1) if not index else "└" if last else "├"
            line.add(number, p.text if here else p.faint, cells=digits + 1, align=">").gap()
            line.add({True: "✓", False: "✗", None: "·"}[worked], p.outcome(worked)).gap()
            room = width - line.width - (right.width + 1 if not index and right.width else 0)
            line.add(call.fitted(room), p.strong if here else p.text, cells=max(1, room))
            if not index:
                line.right(right, width)
            line.hits = [(0, width, ("step", at))]
            lines.append(line)
        return lines

    def _numbers(self, entry: Entry, width: int) -> Line:
        p, line = self.palette, Line(self.palette)
        if width >= 34:
            line.add(_short(entry.size), p.faint, cells=5, align=">")
        if entry.penalised:
            line.add(" ✗", p.bad)
        value = entry.advantage if entry.reward is None else entry.reward.total
        if value is not None:
            line.add("" if entry.reward is not None else " A", p.faint)
            line.add(fixed(value, signed=True), p.sign(value), cells=6, align=">")
        return line


def _short(size: int) -> str:
    """Format a count of characters as `940`, `3.1k`, `2.0M`."""
    if size < 1000:
        return str(size)
    return f"{size / 1e3:.1f}k" if size < 99_950 else f"{size / 1e6:.1f}M"
