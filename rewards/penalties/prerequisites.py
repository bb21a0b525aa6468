"""A tool called before what it builds on exists."""

from __future__ import annotations

from ...envs.faults import resource_id
from ...envs.tools import Argument
from ...envs.trajectory import Step
from ..breakdown import Penalty
from .base import Episode, PenaltyRule, call_text, kept, listed, named


class MissingPrerequisite(PenaltyRule):
    """`GET_PROPERTIES(mask=7)` when there is no mask 7: an argument refers to a resource that does not exist.

    A required reference left out counts here only while no resource of its kind exists; else it is a missing
    argument (`invalid_argument`), as is a value that cannot be an id at all.
    """

    id = "missing_prerequisite"
    amount = -0.1

    def check(self, episode: Episode, step: Step) -> Penalty | None:
        """Look each reference up among the resources that existed just before the step."""
        tool = episode.tools.get(step.action or "")
        if tool is None:
            return None
        for argument in tool.arguments:
            if argument.refers_to is None:
                continue
            exist = step.context.resources.get(argument.refers_to, ())
            if argument.name in step.arguments:
                identifier = resource_id(step.arguments[argument.name])
                if identifier is not None and identifier not in exist:
                    return self._penalty(episode, step, argument, exist, identifier)
            elif argument.required and not exist:
                return self._penalty(episode, step, argument, exist, None)
        return None

    def _penalty(
        self, episode: Episode, step: Step, argument: Argument, exist: tuple[str, ...], identifier: str | None
    ) -> Penalty:
        kind = argument.refers_to or ""
        makers = " or ".join(t.name for t in episode.tools.values() if t.produces == kind)
        absent = f"no {kind} exists yet" if identifier is None else f"no {kind} {named(identifier)} exists here"
        if makers and exist:
            right = f"Use {kind} {listed(exist)}, or call {makers} first."
        elif makers:
            right = f"Call {makers} first."
        else:
            right = (
                f"Use one of {kind} {listed(exist)}." if exist else f"Nothing here makes a {kind}: use another tool."
            )
        return self.penalty(
            step,
            saw={argument.name: kept(step.arguments.get(argument.name)), f"{kind}s": list(exist)},
            limit=f"{argument.name}: an existing {kind}",
            why=f"{call_text(step)}: {absent}; {kind}s so far: {listed(exist)}.",
            right=right,
        )
