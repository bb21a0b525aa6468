"""Whether a value fits an argument's declaration: type, bounds, choices. Shared by the rules that look at arguments."""

from __future__ import annotations

import math
from typing import Any

from ...envs.tools import Argument, Bound
from ...envs.trajectory import StepContext
from .base import listed, shown

_WANTED = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "box": "four numbers [x0, y0, x1, y1] with x0 < x1 and y0 < y1",
}


def resource_id(argument: Argument, value: Any) -> str | None:
    """The id that a reference names, as contexts list it; None when the value is of the wrong type."""
    if not _has_type(argument, value):
        return None
    return str(int(value)) if argument.type == "integer" else str(value)


def fault(argument: Argument, value: Any, context: StepContext) -> tuple[str, str] | None:
    """What is wrong with a value and what would be right: `("x is 900", "0 <= x < 128")`; None if it fits."""
    name = argument.name
    if not _has_type(argument, value):
        return f"{name} is {shown(value, 40)}", f"{name} is {_WANTED[argument.type]}"
    if argument.type == "box":
        return _box_fault(argument, value, context)
    if argument.choices is not None and value not in argument.choices:
        return f"{name} is {shown(value, 40)}", f"{name} is one of {listed(argument.choices, 20)}"
    if argument.type in ("integer", "number") and argument.refers_to is None:
        low, high = _bound(argument.minimum, context), _bound(argument.below, context)
        if (low is not None and value < low) or (high is not None and value >= high):
            left = f"{low:g} <= " if low is not None else ""
            return f"{name} is {shown(value, 40)}", f"{left}{name}" + (f" < {high:g}" if high is not None else "")
    return None


def _has_type(argument: Argument, value: Any) -> bool:
    kind = argument.type
    if kind == "string":
        return isinstance(value, str)
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "box":
        return isinstance(value, list | tuple) and len(value) == 4 and all(_is_number(v) for v in value)
    # JSON writes 31 and 31.0 for the same whole number.
    return _is_number(value) and (kind == "number" or float(value).is_integer())


def _is_number(value: Any) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _bound(bound: Bound | None, context: StepContext) -> float | None:
    """A bound as a number; None when there is none, or when the step's context does not state the fact it names."""
    value = context.facts.get(bound) if isinstance(bound, str) else bound
    return float(value) if isinstance(value, int | float) else None


def _box_fault(argument: Argument, box: Any, context: StepContext) -> tuple[str, str] | None:
    x0, y0, x1, y1 = box
    said = f"{argument.name} is {shown(list(box), 60)}"
    if not (x0 < x1 and y0 < y1):
        return said, f"{argument.name} is [x0, y0, x1, y1] with x0 < x1 and y0 < y1"
    low = _bound(argument.minimum, context) or 0.0
    width, height = _bound("width", context), _bound("height", context)
    # Edges are half-open: a box over the whole image ends at width and height.
    inside = x0 >= low and y0 >= low and (width is None or x1 <= width) and (height is None or y1 <= height)
    if inside:
        return None
    to = f", x1 <= {width:g}" if width is not None else ""
    to += f", y1 <= {height:g}" if height is not None else ""
    return said, f"{argument.name} has x0 >= {low:g}, y0 >= {low:g}{to}"
