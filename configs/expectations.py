"""The accepted values of a key, in words, for error messages and for the comments of `grpo-tui config show`."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

_NAMES = {int: "an integer", float: "a number", str: "text", bool: "true or false", Any: "any value"}
_BOUNDS = (("ge", "≥"), ("gt", ">"), ("le", "≤"), ("lt", "<"))


def section_of(annotation: object) -> type[BaseModel] | None:
    """Return the section class in an annotation such as `KLConfig` or `KLConfig | None`, if there is one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, types.UnionType):
        for arg in get_args(annotation):
            if (found := section_of(arg)) is not None:
                return found
    return None


def describe(field: FieldInfo) -> str:
    """Describe the accepted values: `an integer ≥ 1, or null`."""
    kind, null, _ = describe_type(field.annotation).partition(", or null")
    bounds = [f"{sign} {getattr(m, name):g}" for m in field.metadata for name, sign in _BOUNDS if hasattr(m, name)]
    return f"{kind} {' and '.join(bounds)}{null}" if bounds else kind + null


def describe_type(annotation: object) -> str:
    """Describe an annotation in words."""
    origin = get_origin(annotation)
    if origin is Literal:
        values = [str(value) for value in get_args(annotation)]
        return values[0] if len(values) == 1 else "one of " + ", ".join(values)
    if origin is Annotated:
        inner, *notes = get_args(annotation)
        return next((n.description for n in notes if isinstance(n, FieldInfo) and n.description), describe_type(inner))
    if origin in (Union, types.UnionType):
        args = [a for a in get_args(annotation) if a is not type(None)]
        *others, last = map(describe_type, args)
        text = " or ".join([", ".join(others), last]) if others else last
        return f"{text}, or null" if len(args) < len(get_args(annotation)) else text
    if origin is list:
        inside = get_args(annotation)[0]
        return "a list of sections" if section_of(inside) else f"a list of {describe_type(inside)} values"
    if origin is dict:
        return "keys and values"
    if section_of(annotation) is not None:
        return "a section of keys and values"
    return _NAMES.get(annotation, getattr(annotation, "__name__", str(annotation)))


def walk(model: type[BaseModel], prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldInfo]]:
    """Yield every key of a schema with its path, sections included, in order."""
    for name, field in model.model_fields.items():
        path = (*prefix, name)
        yield path, field
        section = section_of(field.annotation)
        if section is not None:
            yield from walk(section, path)


def field_at(model: type[BaseModel], path: tuple[str | int, ...]) -> FieldInfo | None:
    """Return the field at `path`; None if the schema has none (inside a free dictionary, or wrong)."""
    current: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for part in path:
        if current is None or not isinstance(part, str) or part not in current.model_fields:
            return None
        field = current.model_fields[part]
        current = section_of(field.annotation)
    return field
