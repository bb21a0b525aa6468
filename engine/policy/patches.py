"""Replaces an attribute for the duration of a block."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_NONE = object()


@contextlib.contextmanager
def patched(target: object, name: str, value: object) -> Iterator[None]:
    """Set `target.name` to `value` inside the block, and restore it afterwards. Works for attributes of the object or
    its class, and for properties. Blocks nest."""
    computed = isinstance(getattr(type(target), name, None), property)
    before = getattr(target, name) if computed else vars(target).get(name, _NONE)
    setattr(target, name, value)
    try:
        yield
    finally:
        if before is _NONE:
            delattr(target, name)
        else:
            setattr(target, name, before)
