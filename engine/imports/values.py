"""Read JSON values that may be missing or written as another type."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]
"""A JSON object."""


def number(value: object) -> float | None:
    """Read a number that may be text (also "NaN") or a list of one, else return None."""
    if isinstance(value, bool):
        return float(value)
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str) and len(value) < 64 and "_" not in value:  # `3_1` is a name, not a number
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, (list, tuple)) and len(value) == 1:
        return number(value[0])
    return None


def whole(value: object) -> int | None:
    """Return an integer, or None."""
    found = None if isinstance(value, bool) else number(value)
    if found is None or not math.isfinite(found) or found != int(found) or abs(found) >= 2**62:
        return None
    return int(found)


def summed(counts: Sequence[object]) -> int | None:
    """Return the sum of integers, or None if one is unknown or there are none."""
    known = [whole(count) for count in counts]
    return None if not known or None in known else sum(count or 0 for count in known)


def text(value: object) -> str | None:
    """Return a value as text. None stays None."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, (bool, int, float)):
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (RecursionError, ValueError):
        return "(too deeply nested to show)"


def mapping(value: object) -> Document:
    """Return a JSON object, parsed if it is text. Return an empty object for anything else."""
    if isinstance(value, str) and value[:1] == "{":
        value = parsed(value)
    return value if isinstance(value, Mapping) else {}


def listed(value: object) -> list[Any]:
    """Return a JSON list, parsed if it is text (also Python's, as pandas writes it into CSV). Return an empty list for
    anything else."""
    if isinstance(value, str) and value[:1] == "[":
        value = _literal(value) if value[:3] == "[{'" else parsed(value)
    return list(value) if isinstance(value, (list, tuple)) else []


def objects(value: object) -> list[Document]:
    """Return the objects in a JSON list."""
    return [item for item in listed(value) if isinstance(item, Mapping)]


def parsed(value: str) -> object:
    """Parse JSON text, allowing NaN. Return None if it is invalid."""
    from .containers.base import loads  # local import: readers of an index do not need containers

    try:
        return loads(value.encode())
    except ValueError:
        return None


def _literal(value: str) -> object:
    from ast import literal_eval

    try:
        return literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
