"""Values of any size in a few characters: arguments may hold megabytes, so only the visible part is formatted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..text import FIELD_LIMIT

_VALUE = 24
"""Characters of an argument in a heading."""
_CALL = 400
"""Characters of a call after which further arguments are left out."""
_DEEP = 20
"""Levels of a value that are written out."""


def brief(value: object, limit: int = FIELD_LIMIT) -> str:
    """Format a value like `repr` in at most `limit` characters. It never formats the rest: arguments may hold
    megabytes."""
    made: list[str] = []
    room = limit
    for piece in _pieces(value, limit):
        made.append(piece)
        room -= len(piece)
        if room < 0:
            break
    text = "".join(made)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _pieces(value: object, limit: int, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield repr(value[: limit + 1])
    elif depth > _DEEP:
        yield "…"
    elif isinstance(value, Mapping):
        yield "{"
        for index, (key, inner) in enumerate(value.items()):
            yield ", " if index else ""
            yield from _pieces(key, limit, depth + 1)
            yield ": "
            yield from _pieces(inner, limit, depth + 1)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "["
        for index, inner in enumerate(value):
            yield ", " if index else ""
            yield from _pieces(inner, limit, depth + 1)
        yield "]"
    else:
        yield repr(value)


def arguments_text(arguments: Mapping[str, Any], limit: int = _VALUE) -> str:
    """Format arguments as `(mask=7)` with at most `limit` characters a value."""
    shown: list[str] = []
    room = max(_CALL, limit)
    for key, value in arguments.items():
        if room <= 0:
            shown.append("…")
            break
        shown.append(f"{key if len(key) <= limit else key[: limit - 1] + '…'}={brief(value, limit)}")
        room -= len(shown[-1])
    return f"({', '.join(shown)})"
