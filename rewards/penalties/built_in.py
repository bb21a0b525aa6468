"""The rules that come with the package. They read the tool declarations of any environment."""

from __future__ import annotations

from ...envs.checks import find_fault, resource_id
from ...envs.tools import Argument
from ...envs.trajectory import Step
from ..breakdown import Penalty
from .base import Episode, PenaltyRule, call_text, kept, listed, named, nearest, printable, shown


class UnknownTool(PenaltyRule):
    """A call of a tool that the environment does not declare. It never applies without declared tools."""

    id = "unknown_tool"

    def check(self, episode: Episode, step: Step) -> Penalty | None:
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
    """A turn in which no call could be parsed."""

    id = "unparsable_call"

    def check(self, episode: Episode, step: Step) -> Penalty | None:
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


class WrongModality(PenaltyRule):
    """A call on an input that the tool does not support, such as `TRACK_OBJECT` on a still image."""

    id = "wrong_modality"
    amount = -0.2

    def check(self, episode: Episode, step: Step) -> Penalty | None:
        tool = episode.tools.get(step.action or "")
        if tool is None or not tool.modality or step.context.modality in tool.modality:
            return None
        has, needs = step.context.modality, " or ".join(sorted(tool.modality))
        fitting = [t.signature for t in episode.tools.values() if not t.modality or has in t.modality]
        return self.penalty(
            step,
            saw={"tool": tool.name, "modality": has},
            limit=f"modality: {needs}",
            why=f"{call_text(step)}: {tool.name} works on {needs}, and the input here is {has}.",
            right=f"On {has}, call one of: {', '.join(fitting)}." if fitting else f"No tool here works on {has}.",
        )


class MissingPrerequisite(PenaltyRule):
    """An argument that refers to a missing resource, such as `GET_PROPERTIES(mask=7)` without a mask 7.

    An omitted required reference counts here only while no resource of its kind exists. Otherwise it is a missing
    argument (`invalid_argument`), as is a value that cannot be an id.
    """

    id = "missing_prerequisite"

    def check(self, episode: Episode, step: Step) -> Penalty | None:
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


class InvalidArgument(PenaltyRule):
    """A missing, unknown or wrongly typed argument, or a value out of bounds (a coordinate outside the image).

    All faults of one call form one penalty, which names each of them.
    """

    id = "invalid_argument"

    def check(self, episode: Episode, step: Step) -> Penalty | None:
        tool = episode.tools.get(step.action or "")
        if tool is None:
            return None
        found: list[tuple[str, str]] = []
        saw: dict[str, object] = {}
        declared = {a.name: a for a in tool.arguments}
        for name, argument in declared.items():
            if name in step.arguments:
                problem = find_fault(argument, step.arguments[name], step.context)
                if problem is not None:
                    found.append((f"{name} is {shown(step.arguments[name], 60)}", problem.right))
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


_NOT_THE_AGENTS_FAULT = frozenset({"error", "timeout", ""})
"""Stop reasons without a penalty. Empty: the episode is not over."""
_HOW = {
    "max_turns": "all turns were used up",
    "max_tokens": "all tokens were used up",
    "turn_limit": "the last turn was cut at its limit",
}


class NoFinalAnswer(PenaltyRule):
    """An episode that ended without an answer. The penalty is on the last step.

    It applies only if the environment declares a final tool, and not if the environment itself failed.
    """

    id = "no_final_answer"

    def check(self, episode: Episode, step: Step) -> Penalty | None:
        trajectory = episode.trajectory
        if step is not episode.steps[-1] or trajectory.answer is not None:
            return None
        if trajectory.stop_reason == "answer" or trajectory.stop_reason in _NOT_THE_AGENTS_FAULT:
            return None
        final = next((t for t in episode.tools.values() if t.final), None)
        if final is None:
            return None
        how = _HOW.get(trajectory.stop_reason, f"it stopped with {trajectory.stop_reason}")
        return self.penalty(
            step,
            saw={"stop_reason": trajectory.stop_reason, "steps": len(episode.steps)},
            limit=f"one call of {final.name}",
            why=f"The episode ended without an answer: {how} after {len(episode.steps)} steps.",
            right=f"Call {final.signature} while there are turns and tokens left.",
        )


BUILT_IN: tuple[type[PenaltyRule], ...] = (
    UnparsableCall, UnknownTool, WrongModality, MissingPrerequisite, InvalidArgument, NoFinalAnswer,
)  # fmt: skip
