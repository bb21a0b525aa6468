"""Dataclasses from plain data, as JSON gives it: nested ones, tuples of them and mappings to them, by their type hints.

Unknown keys are ignored. Values are validated only on request, because records are large.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")
Reader = Callable[[Any], Any]


def from_plain(kind: type[T], data: Mapping[str, object], *, strict: bool = False) -> T:
    """Return the dataclass. Raises TypeError or ValueError if `data` has another shape.

    strict: also if a text, a boolean or a finite number has another type, for data of unknown origin.
    """
    return _dataclass(kind, strict)(data)


@cache
def _dataclass(kind: type, strict: bool) -> Reader:
    hints = get_type_hints(kind)
    readers = {field.name: _reader(hints[field.name], strict) for field in fields(kind)}
    required = {name for name in readers if strict and NoneType not in get_args(hints[name])}

    def read(data: Mapping[str, object]) -> Any:
        if not isinstance(data, Mapping):
            raise TypeError(f"a {kind.__name__} is an object with keys, not {type(data).__name__}")
        values = {}
        for name, value in data.items():
            if name in readers:
                reader = readers[name]
                absent = value is None and name not in required
                values[name] = value if reader is None or absent else reader(value)
        return kind(**values)

    return read


def _reader(hint: object, strict: bool) -> Reader | None:
    """Return the reader of values of a type; None for values that stay unchanged."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        known = [reader for part in inner if part is not NoneType and (reader := _reader(part, strict)) is not None]
        return known[0] if len(known) == 1 and len(inner) == 2 else None
    if origin in (tuple, Sequence, frozenset):
        item, collect = _reader(inner[0], strict), frozenset if origin is frozenset else tuple
        return collect if item is None else lambda values: collect(map(item, values))
    if origin is Mapping:
        item = _reader(inner[1], strict)
        return dict if item is None else lambda values: {key: item(value) for key, value in values.items()}
    if origin is Literal or not isinstance(hint, type):
        return None
    if strict and hint in (str, bool, int, float):
        return lambda value: _scalar(hint, value)
    if issubclass(hint, Enum):
        return hint
    return _dataclass(hint, strict) if is_dataclass(hint) else None


def _scalar(kind: type, value: Any) -> object:
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise TypeError(f"a value is {type(value).__name__}, not {kind.__name__}")
    if kind is float and not math.isfinite(value):
        raise ValueError(f"a number is {value}")
    return value
