"""A step as lines: what the agent thought and did, what the environment answered, and how the trajectory ended."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.style import Style

from ....engine.runs.types import Call, Step, Trajectory
from ...format import duration
from ...text import FIELD_LIMIT, wrap
from ..theme import Palette
from .line import Later, Line

_VALUE = 24
"""Characters of an argument in a heading."""


@dataclass(frozen=True)
class StepLines:
    """Lays out fields `width` cells wide, at most `limit` characters of each; what was searched for is marked.

    The lines of a field are made when they are looked at, so all methods give what `Lines` takes.
    """

    palette: Palette
    width: int
    find: str = ""
    limit: int = FIELD_LIMIT

    def prompt(self, trajectory: Trajectory, limit: int, task: bool = False) -> list[Line | Later]:
        """The prompt up to `limit` characters, and the task's own fields."""
        p = self.palette
        lines = self.field("prompt", trajectory.prompt, p.muted, limit, "P shows all")
        if task and trajectory.task:
            lines += self.field("task", "\n".join(f"{k}: {v}" for k, v in trajectory.task.items()), p.muted)
        return lines

    def step(self, step: Step, note: str = "") -> list[Line | Later]:
        """Thought, call, observation, errors; `note` joins the remarks at its end."""
        p = self.palette
        lines: list[Line | Later] = []
        if step.thought:
            lines += self.field("thought", step.thought, p.text)
        if step.calls:
            lines += self._calls(step)
        elif step.action is None:
            lines += self.field("wrote", step.text or "(nothing)", p.text if step.text else p.faint)
            if step.parse_error or step.needs_call:
                lines += self.field("✗ no call", step.parse_error or "no call could be read", p.bad)
        else:
            lines += self.field("action", call_text(step, self.limit), p.accent)
        if step.observation and not step.calls:
            lines += self.field("observation", step.observation, p.text)
        if step.error:
            lines += self.field("✗ error", step.error, p.bad)
        notes = []
        if step.seconds >= 0.05:
            notes.append(f"took {duration(step.seconds) if step.seconds >= 1 else f'{step.seconds * 1000:.0f} ms'}")
        if step.stop_reason not in ("stop", ""):
            notes.append(f"ended by {step.stop_reason}")
        if note:
            notes.append(note)
        if notes:
            lines.append(Line(p).add(" · ".join(notes), p.faint, cells=self.width))
        return lines

    def _calls(self, step: Step) -> list[Line | Later]:
        """Words, then each call with its own result."""
        p = self.palette
        lines = self.field("wrote", step.text, p.text) if step.text.strip() else []
        answered = {c.result for c in step.calls}
        for call in step.calls:
            lines += self.field("action", written(call, self.limit), p.accent)
            if call.problem:
                lines += self.field("✗ unread", call.problem, p.bad)
            if call.result is not None:
                lines += self.field("result", call.result, p.text)
            elif len(step.calls) > 1:
                lines += self.field("result", "not recorded", p.faint)
        rest = step.observation
        if rest and rest not in answered and "\n\n".join(c.result or "" for c in step.calls) != rest:
            lines += self.field("observation", rest, p.text)
        return lines

    def end(self, t: Trajectory) -> list[Line | Later]:
        """The answer, what was expected, and what ended the rollout."""
        p = self.palette
        if t.answer is None and t.expected is None and t.error is None:
            return [Line(p).add(f"ended by {t.stop_reason}", p.muted)] if t.stop_reason != "answer" else []
        lines: list[Line | Later] = []
        if t.answer is not None:
            sign = {True: "✓ right", False: "✗ wrong", None: "answer"}[t.correct]
            lines += self.field(sign, t.answer, p.outcome(t.correct) if t.correct is not None else p.text)
        else:
            lines += self.field("no answer", f"ended by {t.stop_reason}", p.warn)
        if t.expected is not None and t.correct is not True:
            lines += self.field("expected", t.expected, p.good)
        if t.error:
            lines += self.field("✗ error", t.error, p.bad)
        return lines

    def field(
        self, name: str, text: str, style: Style, limit: int | None = None, more: str = "o opens all"
    ) -> list[Line | Later]:
        """One field: its name beside it, or above it where it is narrow."""
        p, limit = self.palette, self.limit if limit is None else limit
        if self.width < 44:
            parts = wrap(text, self.width - 1, limit, more)
            return [Line(p).add(name, p.faint), *(partial(self._line, "", 1, part, style) for part in parts)]
        parts = wrap(text, self.width - 13, limit, more)
        return [partial(self._line, "" if index else name, 13, part, style) for index, part in enumerate(parts)]

    def _line(self, name: str, indent: int, text: str, style: Style) -> Line:
        line = Line(self.palette)
        if name:
            line.add(name, self.palette.faint, cells=indent - 1)
        return self._found(line.to(indent), text, style)

    def _found(self, line: Line, text: str, style: Style) -> Line:
        if not self.find:
            return line.add(text, style)
        lower, wanted, at = text.casefold(), self.find.casefold(), 0
        while (hit := lower.find(wanted, at)) >= 0 and len(lower) == len(text):
            line.add(text[at:hit], style).add(text[hit : hit + len(wanted)], self.palette.found)
            at = hit + len(wanted)
        return line.add(text[at:], style)


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


def _arguments(arguments: Mapping[str, Any], limit: int) -> list[str]:
    shown = []
    for key, value in arguments.items():
        text = repr(value[: limit + 1]) if isinstance(value, str) else _brief(value, limit)
        shown.append(f"{key}={text if len(text) <= limit else text[: limit - 1] + '…'}")
    return shown
