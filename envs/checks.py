"""Testing a call against its tool's declaration, before the environment sees it.

What comes back is the observation that the agent reads: short, with the value and the limit that it broke.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .calls import ToolCall
from .tools import Argument, Bound, ToolSpec
from .trajectory import StepContext

_TYPES: dict[str, tuple[type, ...]] = {
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "box": (list, tuple),
}


def find_problem(call: ToolCall, tools: Sequence[ToolSpec], context: StepContext) -> str | None:
    """Why this call cannot be carried out, in a few words; None when it can."""
    if call.name is None:
        return call.error or "no call"
    tool = next((t for t in tools if t.name == call.name), None)
    if tool is None:
        return f"no tool {_short(call.name)}"
    if tool.modality and context.modality not in tool.modality:
        return f"{tool.name} needs {' or '.join(sorted(tool.modality))}"
    known = {a.name for a in tool.arguments}
    for name in call.arguments:
        if name not in known:
            return f"no argument {_short(name)}"
    for argument in tool.arguments:
        if argument.name not in call.arguments:
            if argument.required:
                return f"{argument.name} missing"
            continue
        problem = _value_problem(argument, call.arguments[argument.name], context)
        if problem:
            return problem
    return None


def resolve_bound(bound: Bound | None, facts: Mapping[str, Any]) -> float | None:
    """A bound as a number: itself, or the fact that it names; None where it is unbounded or unknown."""
    if isinstance(bound, str):
        value = facts.get(bound)
        return float(value) if isinstance(value, (int, float)) else None
    return None if bound is None else float(bound)


def _value_problem(argument: Argument, value: Any, context: StepContext) -> str | None:
    if argument.refers_to:  # an id may be written as a number or as text
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            return f"{argument.name} must be an id"
        if str(value) not in context.resources.get(argument.refers_to, ()):
            return f"no {argument.refers_to} {_short(value)}"
        return None
    if argument.type == "any":
        return None
    wrong_bool = isinstance(value, bool) and argument.type != "boolean"
    if wrong_bool or not isinstance(value, _TYPES[argument.type]):
        return f"{argument.name} must be {argument.type}"
    if argument.type == "box":
        return _box_problem(argument, value, context)
    if argument.choices is not None and value not in argument.choices:
        return f"{argument.name} must be one of {', '.join(argument.choices)}"
    if argument.type in ("integer", "number"):
        low, high = resolve_bound(argument.minimum, context.facts), resolve_bound(argument.below, context.facts)
        if low is not None and value < low:
            return f"{argument.name} {_short(value)} < {low:g}"
        if high is not None and value >= high:
            return f"{argument.name} {_short(value)} >= {high:g}"
    return None


def _box_problem(argument: Argument, value: Any, context: StepContext) -> str | None:
    if len(value) != 4 or any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in value):
        return f"{argument.name} must be [x0, y0, x1, y1]"
    x0, y0, x1, y1 = value
    if not (x0 < x1 and y0 < y1):
        return f"{argument.name} is empty"
    width, height = resolve_bound("width", context.facts), resolve_bound("height", context.facts)
    outside = x0 < 0 or y0 < 0 or (width is not None and x1 > width) or (height is not None and y1 > height)
    return f"{argument.name} outside image" if outside else None


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:21]}..."
