"""Whether a value fits an argument's declaration: type, bounds, choices. Shared by the rules that look at arguments.

What an environment refuses (`envs/checks.py`) and what is a fault here are the same values; here each fault says what
was wrong and what would have been right.
"""

from __future__ import annotations

import math
from typing import Any

from ...envs.checks import resolve_bound
from ...envs.tools import Argument
from ...envs.trajectory import StepContext
from .base import listed, shown

_WANTED = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object of names and values",
    "box": "four numbers [x0, y0, x1, y1] with x0 < x1 and y0 < y1",
}


def resource_id(value: Any) -> str | None:
    """The id that a reference names, as contexts list it (7 and "7" are one id); None when it cannot be one."""
    return str(value) if isinstance(value, str) or type(value) is int else None


def fault(argument: Argument, value: Any, context: StepContext) -> tuple[str, str] | None:
    """What is wrong with a value and what would be right: `("x is 900", "0 <= x < 128")`; None if it fits.

    Whether a well-formed reference exists is not asked here (`MissingPrerequisite`).
    """
    right = _limit(argument, value, context)
    return None if right is None else (f"{argument.name} is {shown(value, 60)}", right)


def _limit(argument: Argument, value: Any, context: StepContext) -> str | None:
    """What a value breaks, as what would be right; None if it fits."""
    name = argument.name
    if argument.refers_to is not None:
        return None if resource_id(value) is not None else f"{name} is the id of a {argument.refers_to}"
    if not _has_type(argument.type, value):
        return f"{name} is {_WANTED[argument.type]}"
    if argument.type == "box":
        return _box_limit(name, value, context)
    if argument.choices is not None and value not in argument.choices:
        return f"{name} is one of {listed(argument.choices, 20)}"
    if argument.type in ("integer", "number"):
        low, high = resolve_bound(argument.minimum, context.facts), resolve_bound(argument.below, context.facts)
        if (low is not None and value < low) or (high is not None and value >= high):
            left = f"{low:g} <= " if low is not None else ""
            return f"{left}{name}" + (f" < {high:g}" if high is not None else "")
    return None


def _has_type(kind: str, value: Any) -> bool:
    if kind == "any":
        return True
    if kind == "string":
        return isinstance(value, str)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in ("array", "object"):
        return isinstance(value, list if kind == "array" else dict)
    if kind == "box":
        return isinstance(value, list | tuple) and len(value) == 4 and all(_is_number(v) for v in value)
    return _is_number(value) and (kind == "number" or isinstance(value, int))


def _is_number(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _box_limit(name: str, box: Any, context: StepContext) -> str | None:
    """What a box of numbers breaks; None if it lies in the image. Edges are half-open: a whole image ends at width."""
    x0, y0, x1, y1 = box
    if not (x0 < x1 and y0 < y1):
        return f"{name} is [x0, y0, x1, y1] with x0 < x1 and y0 < y1"
    width, height = resolve_bound("width", context.facts), resolve_bound("height", context.facts)
    if x0 >= 0 and y0 >= 0 and (width is None or x1 <= width) and (height is None or y1 <= height):
        return None
    edges = [f"{edge} <= {size:g}" for edge, size in (("x1", width), ("y1", height)) if size is not None]
    return f"{name} has {', '.join(['x0 >= 0', 'y0 >= 0', *edges])}"
