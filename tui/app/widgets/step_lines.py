"""A rollout's fields as lines: name and text beside each other, what was searched for marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.style import Style

from ....engine.runs.types import Step, Trajectory
from ...format import duration
from ...text import FIELD_LIMIT, cut, width, wrap
from ..needles import JOINT, Span, spans
from ..rollout_fields import Field, fields_at
from ..rollout_search import Match
from ..theme import Palette
from .line import Later, Line

_NARROW = 44
"""Cells under which a name stands above its text."""


@dataclass
class Sought:
    """A match that is looked for while fields are laid out: characters `start` to `end` of the field of this name and
    text. `above` counts the lines before what is laid out next, and `line` is where the match stands."""

    name: str
    text: str
    start: int
    end: int
    above: int = 0
    line: int | None = None


def sought(trajectory: Trajectory, match: Match | None) -> Sought | None:
    """What a match is in, to be looked for."""
    fields = fields_at(trajectory, match.step) if match is not None else []
    if match is None or match.field >= len(fields):
        return None
    field = fields[match.field]
    return Sought(field.name, field.text, match.start, match.end)


@dataclass(frozen=True)
class StepLines:
    """Lays out fields `width` cells wide, at most `limit` characters of each; what was searched for is marked.

    The lines of a field are made when they are looked at, so all methods give what `Lines` takes.
    """

    palette: Palette
    width: int
    find: Sequence[str] = ()
    limit: int = FIELD_LIMIT

    def fields(self, fields: Sequence[Field], sought: Sought | None = None) -> list[Line | Later]:
        """One under the other; what is sought is told where it stands."""
        lines: list[Line | Later] = []
        for field in fields:
            around = None
            if sought is not None and sought.line is None and field.name == sought.name and field.text == sought.text:
                around = sought.start
                sought.line = sought.above + len(lines) + self.line_of(field, around, sought.end)
            lines += self.field(field, around)
        if sought is not None:
            sought.above += len(lines)
        return lines

    def field(self, field: Field, around: int | None = None) -> list[Line | Later]:
        """One field; of a long one, the part around a character that is to be seen."""
        p, limit = self.palette, self.limit if field.limit is None else field.limit
        style: Style = getattr(p, field.tone)
        start = self._start(around, limit)
        parts = wrap(field.text[start:] if start else field.text, self._room, limit, field.more)
        if start:
            parts.insert(0, cut(f"✂ {start:,} characters before · {field.more}", self._room))
        named, indent = self.width >= _NARROW, 13 if self.width >= _NARROW else 1
        texts: list[Line | Later] = [
            partial(self._line, field.name if named and not index else "", indent, parts, index, style)
            for index in range(len(parts))
        ]
        return texts if named else [Line(p).add(field.name, p.faint), *texts]

    def line_of(self, field: Field, around: int, end: int) -> int:
        """On which line of `field(field, around)` the characters up to `end` stand: those before it fill the others."""
        start = self._start(around, self.limit if field.limit is None else field.limit)
        while end < len(field.text) and not field.text[end].isspace() and end - around < self._room:
            end += 1
        before = wrap(field.text[start:end], self._room, end - start)
        return len(before) - 1 + bool(start) + (self.width < _NARROW)

    def notes(self, step: Step, note: str = "") -> list[Line | Later]:
        """How long a step took and what ended it, and another remark."""
        notes = []
        if step.seconds >= 0.05:
            notes.append(f"took {duration(step.seconds) if step.seconds >= 1 else f'{step.seconds * 1000:.0f} ms'}")
        if step.stop_reason not in ("stop", ""):
            notes.append(f"ended by {step.stop_reason}")
        if note:
            notes.append(note)
        return [Line(self.palette).add(" · ".join(notes), self.palette.faint, cells=self.width)] if notes else []

    @property
    def _room(self) -> int:
        return self.width - 1 if self.width < _NARROW else self.width - 13

    @staticmethod
    def _start(around: int | None, limit: int) -> int:
        return 0 if around is None or around < limit * 3 // 4 else around - limit // 2

    def _line(self, name: str, indent: int, parts: Sequence[str], index: int, style: Style) -> Line:
        line = Line(self.palette)
        if name:
            line.add(name, self.palette.faint, cells=indent - 1)
        line.to(indent)
        text, at = parts[index], 0
        for start, end in self._found(parts, index):
            if end > at:  # what is found may overlap
                start = max(start, at)
                line.add(text[at:start], style).add(text[start:end], self.palette.found)
                at = end
        return line.add(text[at:], style)

    def _found(self, parts: Sequence[str], index: int) -> list[Span]:
        """What was searched for in one of the lines of a text, also where it began in the one before."""
        if not self.find:
            return []
        longest = 2 * max(map(len, self.find)) + 64
        before = after = ""
        for other in range(index - 1, -1, -1):
            before = parts[other] + self._joint(parts[other]) + before
            if len(before) >= longest:
                break
        for other in range(index + 1, len(parts)):
            after += self._joint(parts[other - 1]) + parts[other]
            if len(after) >= longest:
                break
        length, here = len(parts[index]), len(before)
        found = spans(before + parts[index] + after, self.find, joined=True)
        return [
            (max(0, start - here), min(length, end - here))
            for start, end in found
            if start < here + length and end > here
        ]

    def _joint(self, part: str) -> str:
        """What stands between a line and the next: a line that fills its room may have been broken inside a word."""
        return JOINT if width(part) >= self._room - 1 else " "
