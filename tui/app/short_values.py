"""Format values of any size in a few characters. Arguments may hold megabytes, so only the visible part is written."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from ..text import FIELD_LIMIT

_VALUE = 24
"""Maximum number of characters of an argument in a heading."""
_CALL = 400
"""Characters of a call after which further arguments are left out."""
_JSON: dict[object, str] = {True: "true", False: "false", None: "null"}
_DEEP = 20
"""Nesting levels of a value that are written out."""


def brief(value: object, limit: int = FIELD_LIMIT, *, as_json: bool = False) -> str:
    """Format a value like `repr`, or as JSON, in at most `limit` characters. The rest is never formatted."""
    pieces: list[str] = []
    room = limit
    for piece in _pieces(value, limit, as_json):
        pieces.append(piece)
        room -= len(piece)
        if room < 0:
            break
    text = "".join(pieces)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _pieces(value: object, limit: int, as_json: bool, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield json.dumps(value[: limit + 1], ensure_ascii=False) if as_json else repr(value[: limit + 1])
    elif depth > _DEEP:
        yield "…"
    elif isinstance(value, Mapping):
        yield "{"
        for index, (key, inner) in enumerate(value.items()):
            yield ", " if index else ""
            yield from _pieces(key, limit, as_json, depth + 1)
            yield ": "
            yield from _pieces(inner, limit, as_json, depth + 1)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "["
        for index, inner in enumerate(value):
            yield ", " if index else ""
            yield from _pieces(inner, limit, as_json, depth + 1)
        yield "]"
    else:
        yield _JSON.get(value, repr(value)) if as_json and isinstance(value, bool | None) else repr(value)


def arguments_text(arguments: Mapping[str, object], limit: int = _VALUE) -> str:
    """Format arguments as `(mask=7)` with at most `limit` characters per value."""
    shown: list[str] = []
    room = max(_CALL, limit)
    for key, value in arguments.items():
        if room <= 0:
            shown.append("…")
            break
        shown.append(f"{key if len(key) <= limit else key[: limit - 1] + '…'}={brief(value, limit)}")
        room -= len(shown[-1])
    return f"({', '.join(shown)})"
