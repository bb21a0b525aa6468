"""Send the terminal only the cells that changed.

Textual sends every changed line whole, with a full colour sequence before and a reset after each piece of it. Over ssh,
in tmux and in slow terminals, those bytes dominate the delay of a key press. So the app keeps a model of the terminal's
cells, and sends only runs of changed cells with as few colour changes as possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import accumulate, count
from typing import NamedTuple

from rich.cells import cell_len
from rich.color import Color, ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

_SHIFT = 21
"""A cell is one integer: the code point of the character in the low 21 bits, the number of its pen above them."""
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_UNSEEN_ON_BLANKS = frozenset("123")
"""Bold, dim and italic, which do not change the look of a blank."""


class _Pen(NamedTuple):
    """Select Graphic Rendition parameters. For blank cells only the background counts; `colour` is then None."""

    attributes: frozenset[str]
    colour: str | None
    background: str


_NONE: frozenset[str] = frozenset()
_PLAIN = _Pen(_NONE, "", "")


Piece = tuple[int, int, Strip]
"""Column, line and content."""


class Unpaintable(Exception):
    """An update with more than characters and colours, such as a sixel picture."""


class Painter:
    """The cells that a terminal shows, and the shortest update to new ones."""

    def __init__(self, color_system: ColorSystem) -> None:
        self._color_system = color_system
        self._size = (0, 0)
        self._lines: list[list[int]] = []
        self._cursor: tuple[int, int] | None = None
        self._pens: list[_Pen] = []
        self._numbers: dict[_Pen, int] = {}
        self._styles: dict[Style | None, tuple[int, int]] = {}
        self._whole: dict[tuple[Segment, ...], int] = {}
        self._wholes = count(2)

    def forget(self) -> None:
        self._size = (0, 0)

    def paint(self, pieces: Iterable[Piece], size: tuple[int, int], cursor: tuple[int, int]) -> str:
        """Return the output for new pieces of a screen of `size` (columns, lines). It leaves the cursor at `cursor`.
        Raises: Unpaintable: A piece cannot be compared. Call `forget` after sending it by other means."""
        if len(self._styles) > 8192:  # pictures in half blocks keep bringing new ones
            self._pens.clear()
            self._numbers.clear()
            self._styles.clear()
            self.forget()
        if size != self._size:
            self._size = size
            self._lines = [[-1] * size[0] for _ in range(size[1])]
            self._cursor = None
        out: list[str] = []
        pen = _PLAIN
        for x, y, strip in [*pieces]:
            if 0 <= y < size[1] and x < size[0]:
                pen = self._paint_piece(out, pen, x, y, strip)
        if pen != _PLAIN:
            out.append("\x1b[0m")
        if out or cursor != self._cursor:
            out.append(f"\x1b[{cursor[1] + 1};{cursor[0] + 1}H")
            self._cursor = cursor
        return "".join(out)

    def _paint_piece(self, out: list[str], pen: _Pen, x: int, y: int, strip: Strip) -> _Pen:
        if x + strip.cell_length > self._size[0]:
            strip = strip.crop(0, self._size[0] - x)
        line = self._lines[y]
        cells = self._cells(strip)
        if cells is None:
            return self._paint_whole(out, pen, x, y, strip)
        end = x + len(cells)
        before = line[x:end]
        if before == cells:
            return pen
        line[x:end] = cells
        column = -1
        for first, last in _runs(before, cells):
            out.append(f"\x1b[{first - column}C" if column >= 0 else f"\x1b[{y + 1};{x + first + 1}H")
            pen = self._write(out, pen, cells[first:last])
            column = last if x + last < self._size[0] else -1
        return pen

    def _write(self, out: list[str], pen: _Pen, cells: list[int]) -> _Pen:
        current = -1
        for cell in cells:
            if cell >> _SHIFT != current:
                current = cell >> _SHIFT
                turn, pen = _turn(pen, self._pens[current])
                out.append(turn)
            out.append(chr(cell & 0x1FFFFF))
        return pen

    def _paint_whole(self, out: list[str], pen: _Pen, x: int, y: int, strip: Strip) -> _Pen:
        """Place each part of a piece with wide characters. Terminals disagree about widths, so each part gets an
        absolute position over blanks."""
        segments = tuple(Segment(_harmless(text), style) for text, style, _ in strip)
        number = self._whole.get(segments)
        if number is None:
            if len(self._whole) > 1000:
                self._whole.clear()
            number = self._whole[segments] = -next(self._wholes)
        line, end = self._lines[y], x + strip.cell_length
        if all(cell == number for cell in line[x:end]):
            return pen
        line[x:end] = [number] * strip.cell_length
        placed = zip(accumulate((cell_len(text) for text, _, _ in segments), initial=x), segments, strict=False)
        # blanks first: where the terminal draws a text wider than rich measures it, its end stays visible on them
        for start, (text, style, _) in sorted(placed, key=lambda part: not part[1].text.isspace()):
            turn, pen = _turn(pen, self._pens[self._numbers_of(style)[0] >> _SHIFT])
            move = f"\x1b[{y + 1};{start + 1}H"
            contested = not (text.isascii() or _single(text))
            out += (turn, move, " " * cell_len(text), move, text) if contested else (turn, move, text)
        return pen

    def _cells(self, strip: Strip) -> list[int] | None:
        cells: list[int] = []
        simple = True
        styles = self._styles
        for text, style, control in strip:
            if control:
                raise Unpaintable
            if not (text.isascii() and text.isprintable()):
                text = _harmless(text)
                simple = simple and _single(text)
            pen, blank = styles.get(style) or self._numbers_of(style)
            cells += [blank if char == " " else pen | ord(char) for char in text]
        return cells if simple else None

    def _numbers_of(self, style: Style | None) -> tuple[int, int]:
        found = self._styles.get(style)
        if found is None:
            pen = _PLAIN if style is None else self._pen(style)
            blank = pen
            if pen.attributes <= _UNSEEN_ON_BLANKS:
                blank = _Pen(_NONE, None, pen.background)
            found = self._number(pen), self._number(blank) | ord(" ")
            self._styles[style] = found
        return found

    def _number(self, pen: _Pen) -> int:
        if pen not in self._numbers:
            self._numbers[pen] = len(self._pens) << _SHIFT
            self._pens.append(pen)
        return self._numbers[pen]

    def _pen(self, style: Style) -> _Pen:
        attributes = _NONE
        if style.link:
            raise Unpaintable
        if uncoloured := style.without_color:
            attributes = frozenset(Strip.render_ansi(uncoloured, self._color_system).split(";")) - {""}
        return _Pen(attributes, self._colour(style.color, True), self._colour(style.bgcolor, False))

    def _colour(self, color: Color | None, foreground: bool) -> str:
        if color is None:
            return ""
        return ";".join(color.downgrade(self._color_system).get_ansi_codes(foreground))


@lru_cache(maxsize=1024)
def _harmless(text: str) -> str:
    """Drop control characters. Panes already make them visible (`text.literal`); this is the last check."""
    return _CONTROLS.sub("", text)


@lru_cache(maxsize=1024)
def _single(text: str) -> bool:
    return all(cell_len(char) == 1 for char in text)


def _runs(before: list[int], after: list[int]) -> Iterator[tuple[int, int]]:
    start = end = -1
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if old != new:
            if start < 0:
                start = index
            elif index - end > 3:  # moving the cursor over fewer equal cells costs more bytes than they do
                yield start, end
                start = index
            end = index + 1
    if start >= 0:
        yield start, end


@lru_cache(maxsize=4096)
def _turn(now: _Pen, pen: _Pen) -> tuple[str, _Pen]:
    codes: list[str] = []
    attributes, colour = pen.attributes, pen.colour
    if colour is None:
        seen = not now.attributes <= _UNSEEN_ON_BLANKS
        attributes, colour = (_NONE, "") if seen else (now.attributes, now.colour)
    if not now.attributes <= attributes:
        codes.append("0")
        now = _PLAIN
    codes += sorted(attributes - now.attributes)
    if colour != now.colour:
        codes.append(colour or "39")
    if pen.background != now.background:
        codes.append(pen.background or "49")
    return f"\x1b[{';'.join(codes)}m" if codes else "", _Pen(attributes, colour, pen.background)
