"""Texts as parts of a flow. Each is rendered by its kind, and long ones fold to a few lines.

The parts of a flow are laid out when they come into view, because a rollout may hold megabytes. An unseen part has an
estimated number of lines, so laying it out moves later parts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise
from typing import overload

from rich.style import Style

from ...text import width as cells_of
from ..kinds import CHUNK, LARGE, SGR, chunks, kind_of, prepared
from ..rollout_fields import PROMPT, Field, Key
from ..text_search import JOINT, spans
from ..theme import Palette
from .pane import Line, Pane
from .rendering import Renderer, marked_lines

MATCH = object()
_NEAR = 8
"""Characters around a line end that tell whether the line was broken within a word."""
Make = Callable[[], "Sequence[Line] | Sequence[FlowPart]"]


class FlowPart:
    """Lines laid out together, or parts that replace it on first view. `key` identifies their text. `fold`: the text
    that can be folded or opened, if the last line shows that it can."""

    __slots__ = ("fold", "key", "lines", "make", "rows")

    def __init__(self, make: Make | Sequence[Line], rows: int = 1, key: tuple[int, ...] = ()) -> None:
        self.lines: Sequence[Line] | None = None if callable(make) else make
        self.make = make if callable(make) else None
        self.rows = rows if self.lines is None else len(self.lines)
        self.key = key
        self.fold: Key | None = None


class Flow(Sequence[Line]):
    """Parts below each other. Unseen parts have an estimated height."""

    def __init__(self, parts: Iterable[FlowPart]) -> None:
        self.parts = list(parts)
        self._starts: list[int] | None = None

    @property
    def starts(self) -> list[int]:
        if self._starts is None:
            self._starts = list(accumulate((part.rows for part in self.parts), initial=0))
        return self._starts

    def __len__(self) -> int:
        return self.starts[-1]

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Line]: ...
    def __getitem__(self, index: int | slice) -> Line | Sequence[Line]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return [self[i] for i in range(start, stop, step) if i < len(self)]
        while True:
            number = self.part_at(index)
            if number >= len(self.parts):
                raise IndexError(index)
            self.laid_out(number)
            offset = index - self.starts[number]
            lines = self.parts[number].lines
            if lines is not None and offset < len(lines):
                return lines[offset]

    def part_at(self, index: int) -> int:
        return bisect_right(self.starts, index) - 1

    def laid_out(self, number: int) -> bool:
        """Lay out a part. Returns whether later parts moved."""
        part = self.parts[number]
        if part.lines is not None or part.make is None:
            return False
        result, before = part.make(), part.rows
        if result and isinstance(result[0], FlowPart):
            self.parts[number : number + 1] = result  # type: ignore[assignment]
            self._starts = None
            return True
        part.lines = result  # type: ignore[assignment]
        part.rows = len(result)
        if part.rows != before:
            self._starts = None
        return part.rows != before

    def start(self, part: FlowPart) -> int:
        return self.starts[self.parts.index(part)]

    def settled(self, old: int, top: int, height: int) -> int:
        """Return the first line that keeps the text at `top` in place once the visible parts are laid out. `old` is the
        current first line."""
        to_end = top >= len(self) - height
        for _ in range(200):
            size = len(self)
            top = max(0, min(size - height, 10**9 if to_end else top))
            number = self.part_at(top)
            before = self.starts[number] if number < len(self.parts) else 0
            if number < len(self.parts) and self.laid_out(number):
                if top < old:  # coming from below: show the part's last lines first
                    top += len(self) - size
                elif number < len(self.parts):
                    top = min(top, before + max(0, len(self) - size + self.parts[number].rows - 1))
                continue
            if not any(self.laid_out(i) for i in range(number, self.part_at(min(top + height, len(self)) - 1) + 1)):
                break
        return max(0, min(top, len(self) - height))


class FlowPane(Pane):
    """A pane of a `Flow`, whose parts are laid out before they come into view."""

    @property
    def flow(self) -> Flow:
        lines = self.lines
        assert isinstance(lines, Flow)
        return lines

    def scroll_line_to(self, top: int) -> None:
        super().scroll_line_to(self.flow.settled(self.top, max(0, min(top, len(self.flow))), self.size.height))

    def begin_at(self, line: int) -> None:
        """Show a line at the top, whatever the layout of the parts before it."""
        self.top = self.flow.settled(0, max(0, line), self.size.height)
        self.repaint()

    def lay_out_again(self, *parts: FlowPart) -> None:
        for part in parts:
            part.lines = None
        self.repaint()


@dataclass
class TextLayout:
    """Lays out texts `width` cells wide.

    folds: fold height by role. is_open: whether a text is unfolded. is_chosen: whether `enter` acts on a text. parts:
    the parts of the flow. places: the parts of each text, their first characters, and the text as laid out.
    """

    renderer: Renderer
    width: int
    folds: Mapping[str, int]
    find: Sequence[str]
    is_open: Callable[[Key], bool]
    is_chosen: Callable[[Key], bool]
    spaced: bool = False
    """Whether blank lines separate thought, words and calls."""
    parts: list[FlowPart] = field(default_factory=list)
    places: dict[Key, tuple[Sequence[FlowPart], Sequence[int], str]] = field(default_factory=dict)

    @property
    def palette(self) -> Palette:
        return self.renderer.palette

    def put(self, at: int, fields: Sequence[Field]) -> None:
        for index, item in enumerate(fields):
            if self.spaced and index and item.role in ("call", "words"):
                self.line(Line(self.palette), at=at)
            self._put((at, index), item)

    def line(self, *lines: Line, at: int = PROMPT) -> None:
        self.parts.append(FlowPart(lines, key=(at, -1)))

    def later(self, at: int, rows: int, lay: Callable[[], None]) -> None:
        """Add a step that `lay` lays out on first view. `rows` estimates its height."""

        def put() -> Sequence[FlowPart]:
            before, self.parts = self.parts, []
            try:
                lay()
                return self.parts or [FlowPart([], key=(at, -1))]
            finally:
                self.parts = before

        self.parts.append(FlowPart(put, rows, (at, -2)))

    def _put(self, key: Key, field: Field) -> None:
        text = field.text.replace("\r\n", "\n").strip("\n")
        fold = self.folds.get(field.role, self.folds["text"])
        room = max(1, self.width - self._left(field, text))
        folds = _rows(text, room) > fold + max(2, fold // 2)  # else folding hides too little
        if folds and not self.is_open(key):
            part = FlowPart(partial(self._folded, key, field, text, fold), fold + 2, key)
            part.fold, self.places[key] = key, ([part], (0,), text)
            self.parts.append(part)
            return
        kind = _kind(field, text)
        if kind == "json" and len(text) > CHUNK:
            text = prepared(text, kind)
        pieces = list(chunks(text, kind))
        parts = []
        for index, (_, piece) in enumerate(pieces):
            first, last = index == 0, folds and index == len(pieces) - 1
            make = partial(self._piece, key, field, piece, kind, first, last)
            parts.append(FlowPart(make, _rows(piece, room) + first + last, (*key, index)))
        self.places[key] = parts, [begin for begin, _ in pieces], text
        self.parts += parts
        if folds:
            parts[-1].fold = key

    def _fits_beside_name(self, field: Field, text: str) -> bool:
        return field.role == "call" or (
            "\n" not in text and field.indent + cells_of(field.name) + 1 + cells_of(text) <= self.width
        )

    def _left(self, field: Field, text: str) -> int:
        if not field.name:
            return field.indent
        name_width = cells_of(field.name) + 1
        return field.indent + (
            name_width if self._fits_beside_name(field, text) and (name_width <= 6 or "\n" not in text) else 2
        )

    # -- lines --------------------------------------------------------------------------------------------------

    def _folded(self, key: Key, field: Field, text: str, fold: int) -> list[Line]:
        kind = _kind(field, text)
        if kind == "json" and len(text) <= LARGE // 4:
            text = prepared(text, kind)
        count = text.count("\n") + 1
        note = f"{count:,} lines" if count > fold else f"{len(text):,} characters"
        lines = self._body(field, _end(text, kind, fold, self.width, field.tail), kind, text)
        lines = lines[-fold:] if field.tail else lines[:fold]
        while field.tail and not lines[0].plain.strip() and len(lines) > 1:
            del lines[0]
        line = self._note(key, field, note)
        if not field.tail:
            return self._headed(field, text, [*lines, line])
        head, *lines = self._headed(field, text, lines) if field.name else (Line(self.palette), *lines)
        line = head.gap(int(head.width > 0)).extend(line) if head.width + line.width <= self.width else line
        line.hits = [(0, self.width, ("fold", key))]
        return [line, *lines]

    def _piece(self, key: Key, field: Field, text: str, kind: str, first: bool, last: bool) -> list[Line]:
        lines = self._body(field, text, kind, field.text)
        if last:
            lines.append(self._note(key, field, "", "enter folds"))
        if first and kind == "raw" and len(field.text) > LARGE:
            lines.insert(0, Line(self.palette).gap(field.indent).add("raw: too large to render", self.palette.warn))
        return self._headed(field, field.text.strip("\n"), lines) if first else lines

    def _body(self, field: Field, piece: str, kind: str, full_text: str) -> list[Line]:
        left = self._left(field, full_text.strip("\n"))
        style: Style = getattr(self.palette, "strong" if field.role == "call" else field.tone)
        room = max(1, self.width - left)
        shown = prepared(piece, kind)
        lines = self.renderer.lines(shown, kind, room, style) if piece else []
        lines = self._found(lines, room, SGR.sub("", shown))
        return [Line(self.palette).gap(left).extend(line) for line in lines]

    def _headed(self, field: Field, text: str, lines: list[Line]) -> list[Line]:
        p = self.palette
        if not field.name:
            return lines
        line = Line(p).gap(field.indent)
        sign, _, rest = field.name.partition(" ")
        if field.role == "call":
            line.add(sign, getattr(p, field.tone)).gap().add(rest, p.key)
        else:
            line.add(field.name, getattr(p, field.tone) if sign in ("✓", "✗") else p.faint)
        if self._fits_beside_name(field, text) and text:
            first = lines.pop(0) if lines else Line(p)
            line.gap().extend(_from(first, self._left(field, text)))
        if field.note:
            note = Line(p).add(field.note, p.faint)
            if field.role != "call":
                line.gap().extend(note)
            elif line.width + note.width + 2 <= self.width:
                line.right(note, self.width)
            else:
                lines.insert(0, Line(p).gap(self._left(field, text)).extend(note))
        return [line, *lines]

    def _note(self, key: Key, field: Field, note: str, action: str = "enter") -> Line:
        p = self.palette
        line = Line(p).gap(field.indent + 2 * bool(field.name and not field.tail)).add("⋯ ", p.faint)
        chosen = self.is_chosen(key)
        line.add(
            " · ".join(part for part in (note, action if chosen or not note else "") if part),
            p.key if chosen else p.faint,
        )
        line.hits = [(0, self.width, ("fold", key))]
        return line

    def _found(self, lines: list[Line], room: int, source: str) -> list[Line]:
        """Mark search matches, also across line ends. A click target `MATCH` is where each one begins."""
        if not self.find or not lines:
            return lines
        joined = ""
        for text, after in pairwise([*(line.plain for line in lines), ""]):
            broken = cells_of(text) >= room - 1 and text[-_NEAR:] + after[:_NEAR] in source
            joined += text + (JOINT if broken else " ")
        found = spans(joined[:-1], self.find, joined=True)
        lines, ends = (
            marked_lines(lines, found, self.palette.found),
            [*accumulate(len(line.plain) + 1 for line in lines)],
        )
        for start, _ in found:
            lines[bisect_right(ends, start)].hits.append((0, 0, MATCH))
        return lines


def _end(text: str, kind: str, fold: int, width: int, tail: bool) -> str:
    room = (fold + 2) * max(20, width) * (2 if kind == "markdown" else 1)
    part = text[-room:] if tail else text[:room]
    lines = part.split("\n")
    most = 2 * fold + 2 if kind == "markdown" else fold + 1
    part = "\n".join(lines[-most:] if tail else lines[:most])
    pieces = list(chunks(part, kind))
    return pieces[-1 if tail else 0][1]


def _from(line: Line, cells: int) -> Line:
    if line.segments and line.segments[0].text == " " * cells:
        line.segments, line.width = line.segments[1:], line.width - cells
    return line


def _kind(field: Field, text: str) -> str:
    if len(text) > LARGE:
        return "raw"
    found = field.kind or kind_of(text, field.prose)
    # a log keeps its own colours, whatever file or tool it comes from
    return "ansi" if found not in ("raw", "plain", "ansi") and "\x1b[" in text[:4000] else found


def _rows(text: str, room: int) -> int:
    """Estimate the lines of a text. JSON on one line will be indented."""
    if text[:1] in ("{", "[") and "\n" not in text:
        return max(len(text) // room, text.count(",") + text.count("{") * 2)
    if len(text) <= CHUNK:
        return sum(max(1, -(-len(line) // room)) for line in text.split("\n")) if text else 0
    return max(text.count("\n") + 1, len(text) // room)
