"""A rollout as named texts, in the order in which they are shown: what is laid out and what is searched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...engine.runs.types import Call, SeenImage, Step, Trajectory
from ..text import FIELD_LIMIT

_VALUE = 24
"""Characters of an argument in a heading."""
_CALL = 400
"""Characters of a call after which further arguments are left out."""
_DEEP = 20
"""Levels of a value that are written out."""


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
        told = (f"{key}: {value if isinstance(value, str) else brief(value)}" for key, value in trajectory.task.items())
        fields.append(Field("task", "\n".join(told), "muted"))
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
        return f"{call.name}({_arguments(call.arguments, limit)})"
    arguments = call.arguments
    return f"{call.name}({arguments if isinstance(arguments, str) else '' if arguments is None else brief(arguments)})"


def call_text(step: Step, limit: int = _VALUE) -> str:
    """`GET_PROPERTIES(mask=7)`; of each value at most `limit` characters. Several calls of one turn are counted."""
    if step.action is None:
        return "? no call" if step.parse_error or step.needs_call else "words"
    if len(step.calls) > 1:
        return f"{step.action} and {len(step.calls) - 1} more"
    return f"{step.action}({_arguments(step.arguments, limit)})"


def brief(value: object, limit: int = FIELD_LIMIT) -> str:
    """A value as Python writes it, in at most `limit` characters, of which no more are made than are shown: what a
    model passes may hold megabytes."""
    made: list[str] = []
    room = limit
    for piece in _pieces(value, limit):
        made.append(piece)
        room -= len(piece)
        if room < 0:
            break
    text = "".join(made)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _pieces(value: object, limit: int, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield repr(value[: limit + 1])
    elif depth > _DEEP:
        yield "…"
    elif isinstance(value, Mapping):
        yield "{"
        for index, (key, inner) in enumerate(value.items()):
            yield ", " if index else ""
            yield from _pieces(key, limit, depth + 1)
            yield ": "
            yield from _pieces(inner, limit, depth + 1)
        yield "}"
    elif isinstance(value, (list, tuple)):
        yield "["
        for index, inner in enumerate(value):
            yield ", " if index else ""
            yield from _pieces(inner, limit, depth + 1)
        yield "]"
    else:
        yield repr(value)


def _arguments(arguments: Mapping[str, Any], limit: int) -> str:
    shown: list[str] = []
    room = max(_CALL, limit)
    for key, value in arguments.items():
        if room <= 0:
            shown.append("…")
            break
        shown.append(f"{key if len(key) <= limit else key[: limit - 1] + '…'}={brief(value, limit)}")
        room -= len(shown[-1])
    return ", ".join(shown)
