"""Make model text literal. Every string of a run passes through here before it reaches the terminal.

Model text is data. Control characters become visible pictures (`␛`). Characters that have no width or change the
direction of text become `‹202E›`. Long text is cut with a note. Nothing is parsed as markup: panes paint
`(text, style)` segments.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

from rich.cells import cell_len

FIELD_LIMIT = 20_000
"""Characters of one field that are laid out on screen. The rest is only counted, and `o` opens it."""

_SUSPECTS = re.compile(
    "[^\\x20-\\x7e\u00a1-\u00ac\u00ae-\u02ff\u038e-\u03a1\u03a3-\u0482\u048a-\u052f\u05d0-\u05ea\u0620-\u064a"
    "\u2010-\u2027\u2030-\u205e\u20a0-\u20bf\u2100-\u218b\u2190-\u2426\u2460-\u2b73"
    "\u3001-\u3029\u3041-\u3096\u309b-\u30ff\u3400-\u9fff\ua000-\ua48c\uac00-\ud7a3\uff01-\uff60]+"
)
"""A fast first filter: characters outside these ranges of ordinary printing characters are checked one by one."""

_MAX_MARKS = 3
"""Combining marks kept per base character. More would paint over its neighbours."""


@lru_cache(maxsize=4096)
def _picture(char: str) -> str | None:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    category = unicodedata.category(char)
    invisible = (
        0xFE00 <= code <= 0xFE0F
        or 0xE0100 <= code <= 0xE01EF
        or 0x1F3FB <= code <= 0x1F3FF  # skin tones: some terminals paint them, others change the previous character
        or code in (0x34F, 0x115F, 0x1160, 0x3164, 0xFFA0)
    )
    if invisible or category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"):
        return f"‹{code:04X}›"
    if category == "Zs":
        return " "
    return None


def literal(text: str) -> str:
    """Return any text as one line of printing characters only. Newlines and tabs become pictures, too."""
    if text.isascii() and text.isprintable():
        return text
    return _SUSPECTS.sub(_visible, text)


def _visible(found: re.Match[str]) -> str:
    """Replace each suspect character by its safe form. Leading marks belong to the character before the match."""
    out: list[str] = []
    marks = 0
    for char in found[0]:
        if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me"):
            marks += 1
            if marks > _MAX_MARKS or not (out or found.start()):
                out.append(f"‹{ord(char):04X}›")
                continue
        else:
            marks = 0
        picture = _picture(char)
        out.append(char if picture is None else picture)
    return "".join(out)


def fitting(text: str, cells: int) -> int:
    """Return how many characters of the literal `text` fit into `cells`. A spacing mark counts as a cell, as in most
    terminals; rich adds it to the character before it."""
    if text.isascii():
        return min(len(text), cells)
    used = 0
    for index, char in enumerate(text):
        used += cell_len(char) or unicodedata.category(char) == "Mc"
        if used > cells:
            return index
    return len(text)


def width(text: str) -> int:
    """Return the width of a literal text in cells."""
    return len(text) if text.isascii() else cell_len(text)


def cut(text: str, cells: int) -> str:
    """Cut a text to `cells` cells, with an ellipsis at the end if it is longer. Never cuts a number in two."""
    if cells <= 0:
        return ""
    if width(text) <= cells:
        return text
    return text[: before_number(text, fitting(text, cells - 1))] + "…"


_NUMBER = re.compile(r"[+\-−]?\d[\d.,]*(?:e[+\-−]?\d+)?[%kMG]?")
_NUMBER_LENGTH = 24
_IN_NUMBERS = frozenset("+-−0123456789.,e%kMG")


def before_number(text: str, index: int) -> int:
    """Return `index`, or the start of a number that a cut there would split: half a number is another number."""
    start = max(0, index - _NUMBER_LENGTH)
    while start and text[start - 1] in _IN_NUMBERS:
        start -= 1
    for found in _NUMBER.finditer(text, start, index + _NUMBER_LENGTH):
        if found.start() < index < found.end():
            return found.start()
    return index


def longest(names: Iterable[str], least: int) -> int:
    """Return the width of the longest name in cells, or `least` if all are shorter."""
    return max([least, *(width(literal(name)) for name in names)])


def distinct_names(names: Sequence[str], cells: int) -> list[str]:
    """Return literal names of at most `cells` cells each. If two would become equal, cut names in the middle."""
    literals = [literal(name) for name in names]
    for tail in (0, *range(cells // 2, cells - 1)):
        shortened = [text if width(text) <= cells else _middle(text, cells, tail) for text in literals]
        if len(set(shortened)) == len(set(literals)):
            return shortened
    return [
        text if width(text) <= cells else _middle(text + str(number), cells, len(str(number)))
        for number, text in enumerate(literals, 1)
    ]


def _middle(text: str, cells: int, tail: int) -> str:
    end = text[len(text) - tail :]
    while end and width(end) > cells - 1:
        end = end[1:]
    return text[: fitting(text, cells - 1 - width(end))] + "…" + end if cells > 0 else ""


def line(text: object, cells: int) -> str:
    """Format any value as one literal line of at most `cells` cells. The cost does not depend on the length."""
    raw = str(text)
    keep = 4 * cells + 16
    clipped = len(raw) > keep
    shown = literal(raw[:keep].replace("\r\n", "\n"))
    result = cut(shown, cells)
    if clipped and not result.endswith("…"):
        result = cut(result + "…" * 2, cells)
    return result


def file_name(text: str) -> str:
    """Return at most 80 characters of a text that is safe in a file name: ASCII letters, digits, `-_.`."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in text[:80])


def clip(text: str, limit: int = FIELD_LIMIT) -> tuple[str, int]:
    """Return the part of a field to lay out, and the number of characters left out."""
    return (text, 0) if len(text) <= limit else (text[:limit], len(text) - limit)


def wrap(text: str, cells: int, limit: int = FIELD_LIMIT) -> list[str]:
    """Return literal lines of at most `cells` cells, broken at spaces if possible. Beyond `limit`, a note ends them."""
    kept, left = clip(text, limit)
    lines: list[str] = []
    cells = max(1, cells)
    for paragraph in kept.replace("\r\n", "\n").split("\n"):
        lines.extend(_wrap_paragraph(literal(paragraph.expandtabs(4)), cells))
    if left:
        lines.append(cut(f"✂ {left:,} more characters · o opens all", cells))
    return lines


def _wrap_paragraph(text: str, cells: int) -> list[str]:
    if not text:
        return [""]
    if text.isascii():
        if len(text) <= cells:
            return [text]
        if " " not in text:
            return [text[start : start + cells] for start in range(0, len(text), cells)]
        return [first or rest for first, rest in re.findall(rf"(.{{1,{cells}}})(?:\s+|$)|(.{{1,{cells}}})", text)]
    lines: list[str] = []
    start = 0
    while start < len(text):
        longest = (_MAX_MARKS + 1) * (cells + 1)  # the characters of a line, each with its marks
        end = start + max(1, fitting(text[start : start + longest], cells))
        space = end if end >= len(text) or text[end] == " " else text.rfind(" ", start + 1, end)
        lines.append(text[start : space if space > 0 else end])
        start = space + 1 if space > 0 else end
    return lines
