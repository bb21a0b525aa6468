"""Render a rollout outside the app as the stepper does: as plain text, or as Markdown."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Iterator

from ...engine.runs.types import TrajectoryRecord
from ..plain import Whole
from ..text import literal, wrap
from .kinds import kind_of, prepared
from .rollout_fields import END, PROMPT, Field, RolloutTexts
from .theme import THEMES, Palette
from .widgets.learning_lines import learning_lines
from .widgets.pane import Line
from .widgets.rendering import Renderer
from .widgets.reward_arithmetic import RewardLines
from .widgets.text_layout import Flow, TextLayout

WIDTH = 110
"""Cells per line in a file or a pipe."""
_DARK = Palette(THEMES["grpo-dark"])
_EXPLAINED = ("reward", "advantage", "sum", "turns", "weight", "missing", "components")
"""Keys of `TrajectoryRecord.unknown` that `RewardLines` explains."""


def page_width() -> int:
    """Return the cells per line for standard output: those of its terminal, at most `WIDTH`."""
    columns = shutil.get_terminal_size((WIDTH, 24)).columns if sys.stdout.isatty() else WIDTH
    return max(20, min(WIDTH, columns))


def _texts(record: TrajectoryRecord, parts: Iterable[int], width: int) -> Flow:
    """Lay out the prompt, the end, or steps (from 0). Nothing folds."""
    texts = RolloutTexts(record.trajectory)
    lay = TextLayout(Renderer(_DARK, colors=False), width, {"text": 10**9}, (), lambda key: True, lambda key: False)
    for position in parts:
        if position >= 0:
            head = Line(_DARK).add(f"─ {position + 1} ", _DARK.title)
            lay.line(head.add("─" * (width - head.width), _DARK.border))
        lay.put(position, texts.of(position))
    return Flow(lay.parts)


def text_lines(record: TrajectoryRecord, step: int | None = None, width: int = WIDTH) -> Iterator[str]:
    """Render a rollout or one step (from 0) as lines of text."""
    last = step == len(record.trajectory.steps) - 1
    every = (PROMPT, *range(len(record.trajectory.steps)), END)
    parts = every if step is None else (step, END) if last else (step,)
    return _plain(_texts(record, parts, width))


def whole_lines(whole: Whole, width: int = WIDTH) -> Iterator[str]:
    """Render a rollout with its rewards, penalties, advantages and use in learning."""
    record, t = whole.record, whole.record.trajectory
    yield literal(f"{t.id}  {t.env}  group {t.group}  rollout {t.rollout}  {record.split}  {t.agent}".rstrip())
    if whole.note is not None:
        yield from wrap(f"note {whole.note.text}", width, len(whole.note.text) + 5)
    yield from _plain(_texts(record, (PROMPT,), width))
    for position in range(len(t.steps)):
        yield from step_lines(whole, position, width)
    yield from end_lines(whole, width)


def step_lines(whole: Whole, position: int, width: int = WIDTH) -> Iterator[str]:
    """Render a step with its reward and advantage."""
    yield from _plain(_texts(whole.record, (position,), width))
    reward = RewardLines(_DARK, width, whole, position)
    if not reward.of_whole or position == len(whole.record.trajectory.steps) - 1:
        yield from _plain(reward.of_step())
    if position < len(whole.record.step_advantages):
        yield from _plain(reward.advantage())


def end_lines(whole: Whole, width: int = WIDTH) -> Iterator[str]:
    """Render the answer, the reward and advantage of the rollout, and its use in learning."""
    record, reward = whole.record, RewardLines(_DARK, width, whole, 0)
    yield "─" * width
    yield from _plain(_texts(record, (END,), width))
    if record.breakdown is not None or record.unknown:
        yield from _plain(reward.of_rollout())
    if not record.step_advantages:
        yield from _plain(reward.advantage())
    for what, reason in record.unknown.items():
        if what not in _EXPLAINED:
            yield from wrap(f"{what}: not recorded: {reason}", width)
    if whole.uses or record.served is not None:
        yield from _plain(learning_lines(_DARK, whole, width))


def _plain(lines: Iterable[Line]) -> Iterator[str]:
    return (line.plain.rstrip() for line in lines)


def markdown(record: TrajectoryRecord) -> str:
    """Render a rollout as Markdown: prose as written, everything else in language fences."""
    t, texts = record.trajectory, RolloutTexts(record.trajectory)
    blocks = [f"# {literal(t.id)}", *([f"reward {record.reward:g}"] if record.reward is not None else [])]
    blocks += map(_block, texts.of(PROMPT))
    for position in range(len(t.steps)):
        blocks += [f"## Step {position + 1}", *map(_block, texts.of(position))]
    return "\n\n".join([*blocks, *map(_block, texts.of(END))]) + "\n"


def _block(field: Field) -> str:
    text, name = field.text.strip("\n"), f"**{literal(field.name)}**" if field.name else ""
    if field.prose:
        text = _prose(text)
    if field.role == "thought":
        return "> " + "\n> ".join([name, "", *text.split("\n")])
    if field.prose:
        return f"{name}\n\n{text}" if name else text
    if "\n" not in text and len(text) < 200 and field.role != "result":
        code = f"`{literal(text)}`" if text and "`" not in text else literal(text)
        return f"{name} {code}{f' · {field.note}' if field.note else ''}".strip()
    kind = field.kind or kind_of(text)
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", text))])
    language = "" if kind in ("raw", "plain", "ansi", "markdown") else kind
    body = "\n".join(literal(line.expandtabs(4)) for line in text.split("\n"))
    return f"{name}{f' · {field.note}' if field.note else ''}\n\n{fence}{language}\n{body}\n{fence}".lstrip("\n")


def _prose(text: str) -> str:
    parts = re.split(r"(```.*?(?:```|\Z)|`[^`\n]*`)", prepared(text, "plain"), flags=re.S)
    return "".join(part if index % 2 else re.sub(r"<(?=[A-Za-z/!?])", "&lt;", part) for index, part in enumerate(parts))
