"""Testing a call against its tool's declaration, before the environment sees it.

What comes back is the observation that the agent reads: short, with the value and the limit that it broke.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .calls import ToolCall
from .faults import brief, find_fault, resource_id
from .tools import Argument, ToolSpec
from .trajectory import StepContext


def find_problem(call: ToolCall, tools: Sequence[ToolSpec], context: StepContext) -> str | None:
    """Why this call cannot be carried out, in a few words; None when it can."""
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
        problem = _value_problem(argument, call.arguments[argument.name], context)
        if problem:
            return problem
    return None


def _value_problem(argument: Argument, value: Any, context: StepContext) -> str | None:
    fault = find_fault(argument, value, context)
    if fault is not None:
        return fault.brief
    if argument.refers_to and resource_id(value) not in context.resources.get(argument.refers_to, ()):
        return f"no {argument.refers_to} {brief(value)}"
    return None
