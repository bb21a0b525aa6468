"""Check a call against its tool's declaration: type, bounds, choices, resources.

`find_problem` describes the fault to the agent, in a few words with the value and the violated limit. `find_fault` also
returns the condition that a correct value meets, for people.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

from .calls import ToolCall
from .tools import Argument, Bound, ToolSpec
from .trajectory import StepContext

_WANTED = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object of names and values",
    "box": "four numbers [x0, y0, x1, y1] with x0 < x1 and y0 < y1",
}
_CLASSES = {"any": object, "string": str, "boolean": bool, "array": list, "object": dict}


@dataclass(frozen=True)
class Fault:
    """A fault of a value.

    brief: the value and the violated limit, for the agent, such as `x 900 >= 128`. right: the condition to meet, such
    as `0 <= x < 128`.
    """

    brief: str
    right: str


def find_problem(call: ToolCall, tools: Sequence[ToolSpec], context: StepContext) -> str | None:
    """Describe in a few words why this call cannot be executed. Returns None if it can."""
    if call.name is None:
        return call.error or "no call"
    tool = next((t for t in tools if t.name == call.name), None)
    if tool is None:
        return f"no tool {brief(call.name)}"
    if tool.modality and context.modality not in tool.modality:
        return f"{tool.name} needs {' or '.join(sorted(tool.modality))}"
    known = {a.name for a in tool.arguments}
    for name in call.arguments:
        if name not in known:
            return f"no argument {brief(name)}"
    for argument in tool.arguments:
        if argument.name not in call.arguments:
            if argument.required:
                return f"{argument.name} missing"
            continue
        value, kind = call.arguments[argument.name], argument.refers_to
        if (fault := find_fault(argument, value, context)) is not None:
            return fault.brief
        if kind and resource_id(value) not in context.resources.get(kind, ()):
            return f"no {kind} {brief(value)}"
    return None


def find_fault(argument: Argument, value: object, context: StepContext) -> Fault | None:
    """Return the fault of a value, or None if it is valid. Does not check that a referenced resource exists."""
    name = argument.name
    if value is None and argument.nullable:
        return None
    if argument.refers_to is not None:
        fits = resource_id(value) is not None
        return None if fits else Fault(f"{name} must be an id", f"{name} is the id of a {argument.refers_to}")
    if not _has_type(argument.type, value):
        form = "[x0, y0, x1, y1]" if argument.type == "box" and isinstance(value, list | tuple) else argument.type
        return Fault(f"{name} must be {form}", f"{name} is {_WANTED[argument.type]}")
    if argument.type == "box" and isinstance(value, list | tuple):
        return _box_fault(name, value, context)
    if argument.choices is not None and value not in argument.choices:
        choices = ", ".join(argument.choices)
        return Fault(f"{name} must be one of {choices}", f"{name} is one of {choices}")
    if argument.type in ("integer", "number") and isinstance(value, int | float):
        low, high = resolve_bound(argument.minimum, context.facts), resolve_bound(argument.below, context.facts)
        right = (f"{low:.12g} <= " if low is not None else "") + name + (f" < {high:.12g}" if high is not None else "")
        if low is not None and value < low:
            return Fault(f"{name} {brief(value)} < {low:.12g}", right)
        if high is not None and value >= high:
            return Fault(f"{name} {brief(value)} >= {high:.12g}", right)
    return None


def resource_id(value: object) -> str | None:
    """Return a reference as an id in the form of `StepContext` (7 and "7" are equal), or None if it cannot be one."""
    return str(value) if isinstance(value, str) or type(value) is int else None


def resolve_bound(bound: Bound | None, facts: Mapping[str, object]) -> float | None:
    """Return a bound as a number, looking up the fact it names. Returns None if it is unbounded or unknown."""
    if isinstance(bound, str):
        value = facts.get(bound)
        return float(value) if isinstance(value, Real) else None
    return None if bound is None else float(bound)


def brief(value: object) -> str:
    """Format a value for the agent, cut to 24 characters."""
    text = str(value)
    return text if len(text) <= 24 else f"{text[:21]}..."


def _has_type(kind: str, value: object) -> bool:
    if kind in _CLASSES:
        return isinstance(value, _CLASSES[kind])
    if kind == "box":
        return isinstance(value, list | tuple) and len(value) == 4 and all(_is_number(v) for v in value)
    return _is_number(value) and (kind == "number" or isinstance(value, int))


def _is_number(value: object) -> bool:
    return type(value) is int or (isinstance(value, float) and math.isfinite(value))


def _box_fault(name: str, box: Sequence[float], context: StepContext) -> Fault | None:
    """Return the fault of a box. The right and bottom edges are exclusive: a full-width box ends at the width."""
    x0, y0, x1, y1 = box
    if not (x0 < x1 and y0 < y1):
        return Fault(f"{name} is empty", f"{name} is [x0, y0, x1, y1] with x0 < x1 and y0 < y1")
    width, height = resolve_bound("width", context.facts), resolve_bound("height", context.facts)
    if x0 >= 0 and y0 >= 0 and (width is None or x1 <= width) and (height is None or y1 <= height):
        return None
    edges = [f"{edge} <= {size:.12g}" for edge, size in (("x1", width), ("y1", height)) if size is not None]
    return Fault(f"{name} outside image", f"{name} has {', '.join(['x0 >= 0', 'y0 >= 0', *edges])}")
