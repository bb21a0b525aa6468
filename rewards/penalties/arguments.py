"""Arguments that do not fit their declaration."""

from __future__ import annotations

from ...envs.faults import find_fault
from ...envs.trajectory import Step
from ..breakdown import Penalty
from .base import Episode, PenaltyRule, call_text, kept, listed, named, nearest, shown


class InvalidArgument(PenaltyRule):
    """A missing, unknown or wrongly typed argument, or a value out of bounds (a coordinate outside the image).

    All faults of one call make one penalty, which names each of them.
    """

    id = "invalid_argument"
    amount = -0.1

    def check(self, episode: Episode, step: Step) -> Penalty | None:
        """Compare the call's arguments with the tool's declaration and the facts of the step."""
        tool = episode.tools.get(step.action or "")
        if tool is None:
            return None
        found: list[tuple[str, str]] = []
        saw: dict[str, object] = {}
        declared = {a.name: a for a in tool.arguments}
        for name, argument in declared.items():
            if name in step.arguments:
                fault = find_fault(argument, step.arguments[name], step.context)
                if fault is not None:
                    found.append((f"{name} is {shown(step.arguments[name], 60)}", fault.right))
                    saw[name] = kept(step.arguments[name])
            elif argument.required and (argument.refers_to is None or step.context.resources.get(argument.refers_to)):
                found.append((f"{name} is missing", f"{name} is given"))
                saw[name] = None
        for name, value in step.arguments.items():
            if name not in declared:
                near = nearest(str(name), declared)
                hint = f" (did you mean {near}?)" if near else ""
                found.append((f"{named(name)} is no argument of {tool.name}{hint}", tool.signature))
                saw[named(name)] = kept(value)
        if not found:
            return None
        limits = list(dict.fromkeys(right for _, right in found))
        return self.penalty(
            step,
            saw=saw,
            limit="; ".join(limits),
            why=f"{call_text(step)}: {listed((wrong for wrong, _ in found), 20)}.",
            right=f"Call {tool.signature} so that {', and '.join(r for r in limits if r != tool.signature)}."
            if any(r != tool.signature for r in limits)
            else f"Call {tool.signature}.",
        )
