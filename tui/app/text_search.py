"""Search in a text without regard to case, accents and line breaks, like the full-text index."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache

Span = tuple[int, int]
"""`[start, end)` in characters."""

JOINT = "\n"
"""Separates two lines of wrapped text where a word may have been broken."""

_MARKS = "[\u0300-\u036f]"
_LETTERS = (
    (0x41, 0x250), (0x370, 0x530), (0x1E00, 0x2000), (0x212A, 0x212C), (0xFB00, 0xFB07), (0x10400, 0x10450),
)  # fmt: skip
"""Ranges of letters with case or accents."""
_WINDOW = 1 << 16
_LONGEST = 1 << 12
"""Characters by which a match may extend past a window of a backward search."""


def fold(text: str) -> str:
    """Return the text without case and accents: `ass` for `Äß`."""
    parts = unicodedata.normalize("NFD", text.casefold())
    return unicodedata.normalize("NFC", re.sub(_MARKS, "", parts))


@cache
def _variants() -> dict[str, str]:
    found: dict[str, str] = {}
    for first, end in _LETTERS:
        for char in map(chr, range(first, end)):
            folded = fold(char)
            if folded and folded != char:
                found[folded] = found.get(folded, folded if len(folded) == 1 else "") + char
    return found


@lru_cache(maxsize=64)
def _pattern(word: str, joined: bool) -> re.Pattern[str]:
    """Compile a word or phrase; with `joined`, it also matches across `JOINT`. Blanks match anything between words."""
    joint = f"{JOINT}?" if joined else ""
    variants, parts = _variants(), []
    text, position = fold(word), 0
    while position < len(text):
        char = text[position]
        if char.isspace():
            end = next((i for i in range(position, len(text)) if not text[i].isspace()), len(text))
            parts.append(r"[\W_]{1,64}?" if position > 0 and end < len(text) else r"\s")
            position = end
            continue
        one = f"[{re.escape(variants.get(char, char))}]{_MARKS}*"
        several = variants.get(text[position : position + 2])
        if several is not None and position + 1 < len(text):
            second = variants.get(text[position + 1], text[position + 1])
            parts.append(f"(?:{one}{joint}[{re.escape(second)}]{_MARKS}*|[{several}])")
            position += 2
        else:
            parts.append(one)
            position += 1
    return re.compile(joint.join(parts) or r"(?!)")


def spans(text: str, words: Sequence[str], joined: bool = False) -> list[Span]:
    """Return all matches from left to right."""
    return sorted({found.span() for word in words for found in _pattern(word, joined).finditer(text)})


def span_after(text: str, words: Sequence[str], start: int) -> Span | None:
    """Return the first match at or after `start`."""
    return min((span for word in words if (span := _first(text, word, start))), default=None)


def _first(text: str, word: str, start: int) -> Span | None:
    plain = fold(word)
    if text.isascii() and not any(map(str.isspace, plain)):  # eight times as fast on texts of megabytes
        begin = text.lower().find(plain, start) if plain else -1
        return None if begin < 0 else (begin, begin + len(plain))
    found = _pattern(word, False).search(text, start)
    return None if found is None else found.span()


def span_before(text: str, words: Sequence[str], end: int) -> Span | None:
    """Return the last match that ends at or before `end`."""
    for stop in range(end, 0, -_WINDOW):  # large texts are not read whole
        first, last = max(0, stop - _WINDOW), min(end, stop + _LONGEST)
        found = [match.span() for word in words for match in _pattern(word, False).finditer(text, first, last)]
        if inside := [span for span in found if span[0] < stop]:
            return max(inside)
    return None
