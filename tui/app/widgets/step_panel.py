"""One step: what the agent thought and did, and what the environment answered."""

from __future__ import annotations

from collections.abc import Mapping

from rich.style import Style

from ....engine.runs.types import Call, Step, TrajectoryRecord
from ...format import duration
from ...text import wrap
from .line import Line
from .pane import Pane


class StepPanel(Pane):
    """Text of a step, wrapped, with what was searched for marked."""

    title = "step"

    def __init__(self, name: str = "step") -> None:
        super().__init__(name)
        self.record: TrajectoryRecord | None = None
        self.step = 0
        self.find = ""
        self.whole_prompt = False
        self.image_note = ""
        self.problem = ""

    def put(self, record: TrajectoryRecord | None, step: int, problem: str = "") -> None:
        """The open trajectory and which of its steps."""
        self.record, self.step, self.problem = record, step, problem
        self.changed(keep_scroll=False)

    def heading(self) -> str:
        """`step 3/5  GET_PROPERTIES(mask=7)`, for the frame's line."""
        if self.record is None or not self.record.trajectory.steps:
            return "no steps"
        steps = self.record.trajectory.steps
        step = steps[min(self.step, len(steps) - 1)]
        return f"step {self.step + 1}/{len(steps)}  {call_text(step)}"

    def build(self, width: int, height: int) -> list[Line]:
        """Prompt, thought, action, observation; the answer after the last step."""
        p = self.palette
        lines: list[Line] = []
        if self.problem:
            lines += [Line(p).add(t, p.bad) for t in wrap(self.problem, width)]
        record = self.record
        if record is None:
            return lines
        trajectory = record.trajectory
        if self.whole_prompt or self.step == 0 or height >= 12 or not trajectory.steps:
            limit = 20_000 if self.whole_prompt else 600 if self.step == 0 else 240
            lines += self._part("prompt", trajectory.prompt, p.muted, width, limit, "P shows all")
            if self.whole_prompt and trajectory.task:
                task = "\n".join(f"{k}: {v}" for k, v in trajectory.task.items())
                lines += self._part("task", task, p.muted, width)
        if not trajectory.steps:
            lines.append(Line(p).add("The agent took no step.", p.warn))
            if trajectory.error:
                lines += self._part("error", trajectory.error, p.bad, width)
            return lines
        step = trajectory.steps[min(self.step, len(trajectory.steps) - 1)]
        if step.thought:
            lines += self._part("thought", step.thought, p.text, width)
        if step.calls:
            lines += self._calls(step, width)
        elif step.action is None:
            lines += self._part("wrote", step.text or "(nothing)", p.text if step.text else p.faint, width)
            if step.parse_error or step.needs_call:
                lines += self._part("✗ no call", step.parse_error or "no call could be read", p.bad, width)
        else:
            lines += self._part("action", call_text(step, whole=True), p.accent, width)
        if step.observation and not step.calls:
            lines += self._part("observation", step.observation, p.text, width)
        if step.error:
            lines += self._part("✗ error", step.error, p.bad, width)
        notes = []
        if step.seconds >= 0.05:
            notes.append(f"took {duration(step.seconds) if step.seconds >= 1 else f'{step.seconds * 1000:.0f} ms'}")
        if step.stop_reason not in ("stop", ""):
            notes.append(f"ended by {step.stop_reason}")
        if self.image_note:
            notes.append(self.image_note)
        if notes:
            lines.append(Line(p).add(" · ".join(notes), p.faint, cells=width))
        if self.step == len(trajectory.steps) - 1:
            lines += self._end(width)
        return lines

    def _calls(self, step: Step, width: int) -> list[Line]:
        """Words, then each call with its own result."""
        p = self.palette
        lines = self._part("wrote", step.text, p.text, width) if step.text.strip() else []
        answered = {c.result for c in step.calls}
        for call in step.calls:
            lines += self._part("action", written(call), p.accent, width)
            if call.problem:
                lines += self._part("✗ unread", call.problem, p.bad, width)
            if call.result is not None:
                lines += self._part("result", call.result, p.text, width)
            elif len(step.calls) > 1:
                lines += self._part("result", "not recorded", p.faint, width)
        rest = step.observation
        if rest and rest not in answered and "\n\n".join(c.result or "" for c in step.calls) != rest:
            lines += self._part("observation", rest, p.text, width)
        return lines

    def _end(self, width: int) -> list[Line]:
        p = self.palette
        assert self.record is not None
        t = self.record.trajectory
        if t.answer is None and t.expected is None and t.error is None:
            return [Line(p).add(f"ended by {t.stop_reason}", p.muted)] if t.stop_reason != "answer" else []
        lines: list[Line] = []
        if t.answer is not None:
            sign = {True: "✓ right", False: "✗ wrong", None: "answer"}[t.correct]
            lines += self._part(sign, t.answer, p.outcome(t.correct) if t.correct is not None else p.text, width)
        else:
            lines += self._part("no answer", f"ended by {t.stop_reason}", p.warn, width)
        if t.expected is not None and t.correct is not True:
            lines += self._part("expected", t.expected, p.good, width)
        if t.error:
            lines += self._part("✗ error", t.error, p.bad, width)
        return lines

    def _part(
        self, name: str, text: str, style: Style, width: int, limit: int = 20_000, more: str = "o opens all"
    ) -> list[Line]:
        p = self.palette
        if width < 44:
            lines = [Line(p).add(name, p.faint)]
            lines += [self._found(Line(p).gap(), t, style) for t in wrap(text, width - 1, limit, more)]
            return lines
        lines = []
        for index, part in enumerate(wrap(text, width - 13, limit, more)):
            line = Line(p).add(name if index == 0 else "", p.faint, cells=12).gap()
            lines.append(self._found(line, part, style))
        return lines

    def _found(self, line: Line, text: str, style: Style) -> Line:
        if not self.find:
            return line.add(text, style)
        lower, wanted, at = text.casefold(), self.find.casefold(), 0
        while (hit := lower.find(wanted, at)) >= 0 and len(lower) == len(text):
            line.add(text[at:hit], style).add(text[hit : hit + len(wanted)], self.palette.found)
            at = hit + len(wanted)
        return line.add(text[at:], style)


def written(call: Call) -> str:
    """`GET_PROPERTIES(mask=7)`; arguments that are no object as they stand."""
    if isinstance(call.arguments, Mapping):
        values = [f"{k}={v!r}" if isinstance(v, str) else f"{k}={v}" for k, v in call.arguments.items()]
        return f"{call.name}({', '.join(values)})"
    return f"{call.name}({'' if call.arguments is None else call.arguments})"


def call_text(step: Step, whole: bool = False) -> str:
    """`GET_PROPERTIES(mask=7)`; values are cut unless `whole`. Several calls of one turn are counted."""
    if step.action is None:
        return "? no call" if step.parse_error or step.needs_call else "words"
    if len(step.calls) > 1:
        return f"{step.action} and {len(step.calls) - 1} more"
    values = []
    for key, value in step.arguments.items():
        text = repr(value) if isinstance(value, str) else str(value)
        values.append(f"{key}={text if whole or len(text) <= 24 else text[:23] + '…'}")
    return f"{step.action}({', '.join(values)})"
