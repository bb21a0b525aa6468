"""Findings, most severe first. The finding under the cursor is expanded and opens its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from rich.style import Style

from ...text import wrap
from ..live_data import LiveFinding, Severity, tally
from .pane import Line, Pane, wrapped

_SIGNS: dict[Severity, str] = {"failure": "✗", "warning": "⚠", "asked": "↳", "hint": "·", "good": "✓"}
_LONGEST = 2000
"""Maximum number of characters of a message that are shown."""


class Alerts(Pane):
    """One line per finding. A focused pane expands the current one."""

    name = "alerts"
    title = "Alerts"
    found: Sequence[LiveFinding] = ()
    cursor = 0
    _first_line: Sequence[int] = ()

    def put(self, found: Sequence[LiveFinding]) -> None:
        current = self.current
        self.found = found
        position = next(
            (i for i, f in enumerate(found) if current is not None and f.event.id == current.event.id), self.cursor
        )
        self.cursor = max(0, min(position, len(found) - 1))
        counts = tally(found)
        self.title = f"Alerts ─ {counts}" if counts else "Alerts"
        self.changed()

    @property
    def current(self) -> LiveFinding | None:
        return self.found[self.cursor] if self.cursor < len(self.found) else None

    def scroll_lines(self, by: int) -> None:
        if self.found:
            self.cursor = max(0, min(self.cursor + by, len(self.found) - 1))
            self.changed()
            self.reveal()

    def reveal(self) -> None:
        if not self.lines or self.cursor >= len(self._first_line):
            return
        first = self._first_line[self.cursor]
        after = self._first_line[self.cursor + 1] if self.cursor + 1 < len(self._first_line) else len(self.lines)
        self.scroll_line_to(min(max(self.top, after - self.size.height), first))

    def build(self, width: int, height: int) -> list[Line]:
        findings = [self._finding(width, index, full=True) for index in range(len(self.found))]
        if sum(map(len, findings)) > height:
            findings = [self._finding(width, i, full=self.active and i == self.cursor) for i in range(len(self.found))]
        self._first_line = [*accumulate((len(lines) for lines in findings[:-1]), initial=0)]
        lines = [line for finding in findings for line in finding]
        p = self.palette
        return lines or [Line(p).add("✓ ", p.good).add("nothing to report", p.faint)]

    def _finding(self, width: int, index: int, *, full: bool) -> list[Line]:
        p, found = self.palette, self.found[index]
        selected = self.active and index == self.cursor
        tones: dict[Severity, Style] = {
            "failure": p.bad_bold, "warning": p.warn_bold, "asked": p.accent, "hint": p.muted, "good": p.good,
        }  # fmt: skip
        head = Line(p).add("▸" if selected else " ", p.accent).add(_SIGNS[found.severity] + " ", tones[found.severity])
        where = f"steps {found.first}–{found.last}: " if found.first != found.last else f"step {found.last}: "
        if found.last:
            head.offer(Line(p).add(where, p.muted), width - 12)
        if found.times > 1:
            head.offer(Line(p).add(f"×{found.times} ", p.muted), width - 12)
        ids = found.trajectories
        end = Line(p)
        if ids:
            end.add(f" → {len(ids)} trajector{'y' if len(ids) == 1 else 'ies'}", p.accent)
        room, indent = max(1, width - head.width), min(4, width - 1)
        text_style = p.text if found.severity in ("failure", "warning", "asked") else p.muted
        texts = wrap(found.message, room, _LONGEST) or [""]
        if not full:
            rest = room - end.width
            if rest < 12:
                end, rest = Line(p), room
            head.add(found.message, text_style, most=rest).offer(end, width)
            head.hits = [(0, width, ("alert", index))]
            return [head]
        lines = [head.add(texts[0], text_style)]
        lines += wrapped(p, " ".join(texts[1:]), width, text_style, _LONGEST, after=Line(p).gap(indent))
        if found.suggestion:
            told = f"suggestion: {found.suggestion}"
            lines += wrapped(p, told, width, p.accent, _LONGEST, after=Line(p).gap(indent))
        if ids and not selected:
            lines[-1].offer(end, width)
        elif ids:
            opens = Line(p).gap(indent)
            opens.offer(Line(p).add("enter", p.key).add(f" opens {end.plain.removeprefix(' → ')}", p.muted), width)
            lines.append(opens)
        for line in lines:
            line.hits = [(0, width, ("alert", index))]
        return lines
