"""A rollout as texts in display order, for layout and search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...engine.runs.types import Call, SeenImage, Step, Trajectory, TrajectoryRecord
from ..format import duration, fixed, is_cut_short
from .calls import bare, brief, calls_of, ended, root_of, said, shown, summary, written


@dataclass(frozen=True)
class Field:
    """A named text. `tone`: palette style. `kind`: renderer (`kinds.py`), detected if empty. `role`: sets fold height.
    `tail`: folding keeps the last lines. `note`: follows the name. `indent`: blank cells before the text."""

    name: str
    text: str
    tone: str = "text"
    kind: str = ""
    role: str = "text"
    prose: bool = False
    tail: bool = False
    note: str = ""
    indent: int = 0


def prompt_fields(trajectory: Trajectory, task: bool = False) -> list[Field]:
    """Return the prompt by speaker. With `task`, include the task's fields and the tools."""
    messages = [(m.name or m.role, m.text) for m in trajectory.messages] or [("prompt", trajectory.prompt)]
    fields = [Field(name, text, "muted", role="prompt", prose=True) for name, text in messages]
    fields += _seen_field(trajectory.seen)
    if task and trajectory.task:
        task_items = trajectory.task.items()
        lines = (
            f"{key}: {value if isinstance(value, str) else brief(value, as_json=True)}" for key, value in task_items
        )
        fields.append(Field("task", "\n".join(lines), "muted", "plain", "prompt"))
    if task and trajectory.tools:
        lines = (f"{tool.name}  {tool.description}".rstrip() for tool in trajectory.tools)
        fields.append(Field("tools", "\n".join(lines), "muted", "plain", "prompt"))
    return fields


def step_fields(step: Step, root: str = "") -> list[Field]:
    """Return thought, text, calls with results, and errors. Removes `root` from paths."""
    thought, words = said(step)
    note = f"≈ {len(thought) // 4:,} tokens" if len(thought) >= 80 else ""  # the record counts only whole turns
    fields = [Field("thought", thought, "muted", role="thought", prose=True, tail=True, note=note)] if thought else []
    calls = calls_of(step)
    if words.strip() and thought != words.strip():
        fields.append(Field("", words, prose=True, role="words"))
    if not calls and (step.parse_error or (step.needs_call and step.action is None)):
        fields += [] if words.strip() else [Field("", "(nothing)", "faint", "plain")]
        fields.append(Field("✗ no call", step.parse_error or "no call could be read", "bad", "plain"))
    elif not calls and not fields:
        fields.append(Field("", "(nothing)", "faint", "plain"))
    for call in calls:
        fields += call_fields(call, root, step.seconds if len(calls) == 1 else 0.0, len(calls) > 1)
    results = {call.result for call in calls}
    rest = step.observation
    if rest and rest not in results and "\n\n".join(call.result or "" for call in calls) != rest:
        fields.append(Field("observation", rest, role="result"))
    for view in step.display:
        if view.kind != "image":
            kind = "plain" if view.kind == "text" else view.kind
            fields.append(Field(view.title or "view", view.content, kind=kind, role="display"))
    fields += _seen_field(step.seen)
    errors = [call.error for call in calls if call.error and call.result is not None]
    if step.error and not any(error in step.error for error in errors):
        fields.append(Field("✗ error", step.error, "bad", "plain"))
    return fields


def call_fields(call: Call, root: str = "", seconds: float = 0.0, several: bool = False) -> list[Field]:
    """Return a call in one line with its outcome, its other arguments and its result."""
    display, (worked, ending) = shown(call, root), ended(call)
    sign, tone = {True: ("✓", "good"), False: ("✗", "bad"), None: ("·", "accent")}[worked]
    result = bare(call.result or "")
    notes = (ending, display.note, _size(result), duration(seconds) if seconds >= 1 else "")
    note = " · ".join(part for part in notes if part)
    fields = [Field(f"{sign} {display.head}", display.text, tone, display.kind, "call", note=note)]
    fields += [
        Field(a.name, a.text, kind=a.kind, role="argument", indent=2) for a in display.arguments if a.text.strip()
    ]
    if call.problem:
        fields.append(Field("✗ unread", call.problem, "bad", "plain", indent=2))
    if call.result is not None:
        if result.strip():
            kind = display.result_kind if worked else ""
            fields.append(Field("", result, kind=kind, role="result", tail=worked is False, indent=2))
        if call.error and call.error not in call.result and call.error.replace(" code", "") != ending:
            fields.append(Field("✗ error", call.error, "bad", "plain", indent=2))
    elif several:
        fields.append(Field("", "no result was recorded", "faint", "plain", indent=2))
    return fields


def _size(text: str) -> str:
    lines = text.strip("\n").count("\n") + 1
    if len(text) >= 10_000:
        size = f"{len(text) / 1e6:.1f} MB" if len(text) >= 1e6 else f"{len(text) / 1e3:.0f} KB"
        return f"{lines:,} lines · {size}" if lines > 1 else size
    return f"{lines:,} lines" if lines > 1 else ""


def raw_fields(step: Step) -> list[Field]:
    """Return a step exactly as recorded."""
    fields = [Field("thought", step.thought, kind="raw")] if step.thought else []
    fields.append(Field("wrote", step.text, kind="raw"))
    for call in step.calls:
        fields.append(Field("call", written(call), "accent", "raw"))
        fields += [Field("result", call.result, kind="raw")] if call.result is not None else []
    if step.observation and not step.calls:
        fields.append(Field("observation", step.observation, kind="raw"))
    return fields + ([Field("error", step.error, "bad", "raw")] if step.error else [])


def outcome(t: Trajectory) -> bool | None:
    """Return whether a rollout succeeded. A graded reward (between 0 and 1) has no outcome."""
    scores = t.steps[-1].scores if t.steps else ()
    graded = any(s.name == t.judged_by and s.value is not None and 0 < s.value < 1 for s in scores)
    return None if graded else t.correct


def end_fields(t: Trajectory) -> list[Field]:
    """Return the answer (unless it is the last text) and the expected one, or the reason for no answer."""
    fields: list[Field] = []
    correct = outcome(t)
    sign, tone = {True: ("✓ right", "good"), False: ("✗ wrong", "bad"), None: ("answer", "text")}[correct]
    ends_with_text = bool(t.steps) and not calls_of(t.steps[-1])
    is_complete = ends_with_text and t.error is None and not is_cut_short(t.stop_reason)
    if t.answer is not None:
        written = ends_with_text and t.steps[-1].text.strip() == t.answer.strip()
        if not written:
            fields.append(Field(sign, t.answer, tone, "plain"))
        elif correct is not None:
            fields.append(Field(sign, "", tone, "plain"))
        if t.cut:
            fields.append(Field("cut", f"ended by {t.stop_reason} before the agent finished its turn", "warn", "plain"))
    elif correct or (correct is False and is_complete):
        fields.append(Field(sign, "", tone, "plain"))
    elif t.error is not None or (t.expected is not None and not is_complete):
        fields.append(Field("no answer", f"ended by {t.stop_reason or 'an unrecorded reason'}", "warn", "plain"))
    elif t.stop_reason not in ("answer", "", "not recorded"):
        fields.append(Field("", f"ended by {t.stop_reason}", "muted", "plain"))
    if t.expected is not None and correct is not True:
        fields.append(Field("expected", t.expected, "good", "plain"))
    if t.error:
        fields.append(Field("✗ error", t.error, "bad", "plain"))
    return fields


PROMPT, END = -1, -2
"""The texts before and after the steps, in place of a step."""
Key = tuple[int, int]
"""A text of a rollout: the step (or `PROMPT`, `END`), and the index of the text."""


class RolloutTexts:
    """The texts of a rollout by step. raw: steps exactly as recorded. task: the prompt includes the task."""

    def __init__(self, trajectory: Trajectory, raw: bool = False, task: bool = False) -> None:
        self.trajectory, self._raw, self._task = trajectory, raw, task
        self._root = root_of(trajectory)
        self._made: dict[int, list[Field]] = {}

    def of(self, position: int) -> list[Field]:
        """Return the texts of a step, or those before or after the steps."""
        if position not in self._made:
            self._made[position] = self._make(position)
        return self._made[position]

    def shown_with(self, step: int) -> list[tuple[Key, Field]]:
        """Return the texts of a step by key. The first step includes the prompt, the last one the answer."""
        ends = step >= len(self.trajectory.steps) - 1
        positions = [*([PROMPT] if step == 0 else []), step, *([END] if ends else [])]
        return [((position, index), field) for position in positions for index, field in enumerate(self.of(position))]

    def _make(self, position: int) -> list[Field]:
        t = self.trajectory
        if position == PROMPT:
            return prompt_fields(t, task=self._task)
        if position == END:
            return end_fields(t)
        if position >= len(t.steps):
            return []
        return raw_fields(t.steps[position]) if self._raw else step_fields(t.steps[position], self._root)

    def summary(self, position: int) -> str:
        """Summarise a step in one line."""
        return summary(self.trajectory.steps[position], self._root)


def _seen_field(seen: Sequence[SeenImage]) -> list[Field]:
    lines = [f"{image.width} × {image.height} pixels, {image.tokens} tokens" for image in seen]
    return [Field("saw", "\n".join(lines), "muted", "plain")] if lines else []


COMPARED = ("thought", "call", "answered", "reward")
"""The texts of a step that are compared with those of other rollouts."""


def field_text(record: TrajectoryRecord, step: Step | None, name: str) -> str:
    """Return the text of a step for one of `COMPARED`. Empty if the step has none."""
    if step is None:
        return ""
    if name == "thought":
        return said(step)[0]
    if name == "call":
        return call_text(step)
    if name == "answered":
        return step.observation
    rewards = record.breakdown.steps if record.breakdown is not None else ()
    near = (*rewards[step.index : step.index + 1], *rewards)
    reward = next((s for s in near if s.step == step.index), None)
    if reward is None:
        return ""
    rules = "".join(f"  ✗ {q.rule.replace('_', ' ')} {fixed(q.amount)}" for q in reward.penalties)
    return f"reward {fixed(reward.total, signed=True)}{rules}"


def call_text(step: Step) -> str:
    """Return the calls of a step with their arguments, or its text."""
    shown_calls = [shown(call) for call in calls_of(step)]
    texts = [[f"{call.head} {call.text}".strip(), call.note, *(a.text for a in call.arguments)] for call in shown_calls]
    return "\n".join(text for call in texts for text in call if text) or said(step)[1]
