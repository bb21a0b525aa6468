"""Turns that are no call of a tool that exists here."""

from __future__ import annotations

from ...envs.trajectory import Step
from ..breakdown import Penalty
from .base import Episode, PenaltyRule, kept, listed, named, nearest, printable


class UnknownTool(PenaltyRule):
    """A call of a tool that the environment does not declare. Environments that declare no tools are left alone."""

    id = "unknown_tool"
    amount = -0.1

    def check(self, episode: Episode, step: Step) -> Penalty | None:
        """Look the name up among the declared tools."""
        if step.action is None or not episode.tools or step.action in episode.tools:
            return None
        name = named(step.action)
        near = nearest(step.action, episode.tools)
        call = f"Did you mean {episode.tools[near].signature}? " if near else ""
        return self.penalty(
            step,
            saw={"tool": kept(step.action)},
            limit=f"tools: {listed(episode.tools, 20)}",
            why=f"There is no tool {name} here.",
            right=f"{call}Tools: {', '.join(t.signature for t in episode.tools.values())}.",
        )


class UnparsableCall(PenaltyRule):
    """A turn in which no call could be read."""

    id = "unparsable_call"
    amount = -0.1

    def check(self, episode: Episode, step: Step) -> Penalty | None:
        """A step without an action had no call in it."""
        if step.action is not None:
            return None
        tool = next(iter(episode.tools.values()), None)
        example = f' such as {{"name": "{tool.name}", "arguments": {{…}}}}' if tool else ""
        reason = step.parse_error or "the turn holds no call"
        return self.penalty(
            step,
            saw={"text": kept(step.text)},
            limit="one JSON object with name and arguments",
            why=f"No call could be read: {printable(reason, 200).rstrip('.')}.",
            right=f"End the turn with one JSON object{example}.",
        )
