"""A rollout as named texts, in the order in which they are shown: what is laid out and what is searched."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine.runs.types import Call, SeenImage, Step, Trajectory
from ..text import FIELD_LIMIT

_VALUE = 24
"""Characters of an argument in a heading."""


@dataclass(frozen=True)
class Field:
    """A text under its name. `tone` names a style of the palette; at most `limit` characters are laid out (None: as
    many as there is room for), and `more` says how to see the others."""

    name: str
    text: str
    tone: str = "text"
    limit: int | None = None
    more: str = "o opens all"


def prompt_fields(trajectory: Trajectory, limit: int | None = None, task: bool = False) -> list[Field]:
    """The prompt, and the task's own fields."""
    fields = [Field("prompt", trajectory.prompt, "muted", limit, "P shows all")]
    fields += _seen_field(trajectory.seen)
    if task and trajectory.task:
        fields.append(Field("task", "\n".join(f"{k}: {v}" for k, v in trajectory.task.items()), "muted"))
    return fields


def step_fields(step: Step) -> list[Field]:
    """Thought, call, observation, errors."""
    fields: list[Field] = []
    if step.thought:
        fields.append(Field("thought", step.thought))
    if step.calls:
        fields += _call_fields(step)
    elif step.action is None:
        fields.append(Field("wrote", step.text or "(nothing)", "text" if step.text else "faint"))
        if step.parse_error or step.needs_call:
            fields.append(Field("✗ no call", step.parse_error or "no call could be read", "bad"))
    else:
        fields.append(Field("action", call_text(step, FIELD_LIMIT), "accent"))
    if step.observation and not step.calls:
        fields.append(Field("observation", step.observation))
    fields += _seen_field(step.seen)
    if step.error:
        fields.append(Field("✗ error", step.error, "bad"))
    return fields


def end_fields(t: Trajectory) -> list[Field]:
    """The answer and what was expected, or what ended the rollout without one."""
    fields: list[Field] = []
    if t.answer is not None:
        sign, tone = {True: ("✓ right", "good"), False: ("✗ wrong", "bad"), None: ("answer", "text")}[t.correct]
        fields.append(Field(sign, t.answer, tone))
    elif t.expected is not None or t.error is not None:
        fields.append(Field("no answer", f"ended by {t.stop_reason or 'what was not recorded'}", "warn"))
    if t.expected is not None and t.correct is not True:
        fields.append(Field("expected", t.expected, "good"))
    if t.error:
        fields.append(Field("✗ error", t.error, "bad"))
    return fields


def fields_at(trajectory: Trajectory, step: int) -> list[Field]:
    """What belongs to a step: the prompt to the first one, the answer to the last one."""
    steps = trajectory.steps
    fields = prompt_fields(trajectory) if step == 0 else []
    if step < len(steps):
        fields += step_fields(steps[step])
    return fields + (end_fields(trajectory) if step >= len(steps) - 1 else [])


def _seen_field(seen: Sequence[SeenImage]) -> list[Field]:
    """The images that a policy that sees was shown here, and what they cost."""
    told = [f"{image.width} × {image.height} pixels, {image.tokens} tokens" for image in seen]
    return [Field("saw", "\n".join(told), "muted")] if told else []


def _call_fields(step: Step) -> list[Field]:
    """Words, then each call with its own result."""
    fields = [Field("wrote", step.text)] if step.text.strip() else []
    answered = {c.result for c in step.calls}
    for call in step.calls:
        fields.append(Field("action", written(call, FIELD_LIMIT), "accent"))
        if call.problem:
            fields.append(Field("✗ unread", call.problem, "bad"))
        if call.result is not None:
            fields.append(Field("result", call.result))
        elif len(step.calls) > 1:
            fields.append(Field("result", "not recorded", "faint"))
    rest = step.observation
    if rest and rest not in answered and "\n\n".join(c.result or "" for c in step.calls) != rest:
        fields.append(Field("observation", rest))
    return fields


def written(call: Call, limit: int) -> str:
    """`GET_PROPERTIES(mask=7)`; arguments that are no object as they stand."""
    if isinstance(call.arguments, Mapping):
        return f"{call.name}({', '.join(_arguments(call.arguments, limit))})"
    return f"{call.name}({'' if call.arguments is None else call.arguments})"


def call_text(step: Step, limit: int = _VALUE) -> str:
    """`GET_PROPERTIES(mask=7)`; of each value at most `limit` characters. Several calls of one turn are counted."""
    if step.action is None:
        return "? no call" if step.parse_error or step.needs_call else "words"
    if len(step.calls) > 1:
        return f"{step.action} and {len(step.calls) - 1} more"
    return f"{step.action}({', '.join(_arguments(step.arguments, limit))})"


def _brief(value: object, limit: int) -> str:
    """A value as text, without ever writing out a large one: what a model passes may hold megabytes."""
    if isinstance(value, (int, float)) or value is None:
        return str(value)
    brief = reprlib.Repr()
    brief.maxlevel = 8
    brief.maxlist = brief.maxtuple = brief.maxdict = brief.maxstring = brief.maxother = max(4, limit)
    return brief.repr(value)


def _arguments(arguments: Mapping[str, Any], limit: int) -> Sequence[str]:
    shown = []
    for key, value in arguments.items():
        text = repr(value[: limit + 1]) if isinstance(value, str) else _brief(value, limit)
        shown.append(f"{key}={text if len(text) <= limit else text[: limit - 1] + '…'}")
    return shown
