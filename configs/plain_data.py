"""Dataclasses from plain data, as JSON gives it: nested ones, tuples of them and mappings to them, by their type
hints.

Nothing is validated: readers of untrusted data check it. Unknown keys are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[Any], Any]


def from_plain(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return the dataclass. Raises TypeError or ValueError when `data` has another shape."""
    return _dataclass(kind)(data)


@cache
def _dataclass(kind: type) -> Reader:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name]) for field in fields(kind)}

    def read(data: Mapping[str, Any]) -> Any:
        if not isinstance(data, Mapping):
            raise TypeError(f"a {kind.__name__} is an object with keys, not {type(data).__name__}")
        values = {}
        for name, value in data.items():
            if name in readers:
                reader = readers[name]
                values[name] = value if reader is None or value is None else reader(value)
        return kind(**values)

    return read


def _reader(hint: Any) -> Reader | None:
    """Return the reader of values of a type; None for values that stay unchanged."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        known = [reader for part in inner if part is not NoneType and (reader := _reader(part)) is not None]
        return known[0] if len(known) == 1 and len(inner) == 2 else None
    if origin in (tuple, Sequence):
        item = _reader(inner[0])
        return tuple if item is None else lambda values: tuple(map(item, values))
    if origin is Mapping:
        item = _reader(inner[1])
        return dict if item is None else lambda values: {key: item(value) for key, value in values.items()}
    if origin is Literal or not isinstance(hint, type):
        return None
    if issubclass(hint, Enum):
        return hint
    return _dataclass(hint) if is_dataclass(hint) else None
