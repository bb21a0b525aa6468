"""A rollout as the stepper renders it, outside the app: as plain text, with colours, as HTML, or as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape

from rich.color import ColorSystem
from rich.style import Style

from ...engine.runs.types import TrajectoryRecord
from ..text import literal
from .calls import root_of
from .kinds import kind_of, prepared
from .rollout_fields import Field, end_fields, prompt_fields, step_fields
from .theme import THEMES, Palette
from .widgets.flow import Flow
from .widgets.line import Line
from .widgets.rendering import Renderer
from .widgets.text_layout import END, PROMPT, TextLayout

WIDTH = 110
_SHARED = {
    "prompt": 30,
    "thought": 12,
    "argument": 30,
    "result": 30,
    "call": 12,
    "words": 200,
    "text": 60,
    "display": 60,
}
"""Lines to which texts fold on a page that is shared."""


def lines_of(
    record: TrajectoryRecord, palette: Palette, step: int | None = None, folds: Mapping[str, int] | None = None
) -> Iterator[Line]:
    """Render a rollout or one step (from 0). Nothing folds unless `folds` gives line counts by role."""
    t, root = record.trajectory, root_of(record.trajectory)
    lay = TextLayout(Renderer(palette), WIDTH, folds or _SHARED, (), lambda key: folds is None, lambda key: False)
    if step is None:
        lay.put(PROMPT, prompt_fields(t))
    for at in range(len(t.steps)) if step is None else (step,):
        head = Line(palette).add(f"─ {at + 1} ", palette.title)
        lay.line(head.add("─" * (WIDTH - head.width), palette.border))
        lay.put(at, step_fields(t.steps[at], root))
    if step is None or step == len(t.steps) - 1:
        lay.put(END, end_fields(t))
    yield from Flow(lay.parts)


def text_lines(record: TrajectoryRecord, step: int | None = None, color: bool = False) -> Iterator[str]:
    """Render as lines of text, optionally with colour codes."""
    palette = Palette(THEMES["grpo-dark"])
    for line in lines_of(record, palette, step):
        if not color:
            yield line.plain.rstrip()
            continue
        yield "".join(
            _without_ground(segment.style).render(segment.text, color_system=ColorSystem.TRUECOLOR)
            for segment in line.segments
        ).rstrip()


def html(record: TrajectoryRecord) -> str:
    """Render a rollout in a `<pre>` with long texts folded."""
    made = []
    for line in lines_of(record, Palette(THEMES["grpo-light"]), folds=_SHARED):
        spans = (
            f'<span style="{_without_ground(s.style).get_html_style()}">{escape(s.text)}</span>' for s in line.segments
        )
        made.append("".join(spans))
    return f"<pre>{chr(10).join(made)}</pre>"


def _without_ground(style: Style | None) -> Style:
    """Return the style without the app's background. Marks keep theirs."""
    if style is None:
        return Style.null()
    ground = style.bgcolor.name if style.bgcolor is not None else ""
    grounds = {colors.background for colors in THEMES.values()}
    return style.without_color + Style.from_color(style.color) if ground in grounds else style


def markdown(record: TrajectoryRecord) -> str:
    """Render a rollout as Markdown: prose as it was written, everything else in language fences."""
    t, root = record.trajectory, root_of(record.trajectory)
    total = record.breakdown.total if record.breakdown is not None else None
    said = [f"# {literal(t.id)}", *([f"reward {total:g}"] if total is not None else [])]
    said += [_block(given) for given in prompt_fields(t)]
    for at, step in enumerate(t.steps):
        said.append(f"## Step {at + 1}")
        said += [_block(given) for given in step_fields(step, root)]
    return "\n\n".join([*said, *map(_block, end_fields(t))]) + "\n"


def _block(given: Field) -> str:
    text, name = given.text.strip("\n"), f"**{literal(given.name)}**" if given.name else ""
    if given.prose:
        text = _prose(text)
    if given.role == "thought":
        return "> " + "\n> ".join([name, "", *text.split("\n")])
    if given.prose:
        return f"{name}\n\n{text}" if name else text
    if "\n" not in text and len(text) < 200 and given.role != "result":
        code = f"`{literal(text)}`" if text and "`" not in text else literal(text)
        return f"{name} {code}{f' · {given.note}' if given.note else ''}".strip()
    kind = given.kind or kind_of(text)
    fence = "`" * max(3, *(len(run) + 1 for run in _runs(text)))
    language = "" if kind in ("raw", "plain", "ansi", "markdown") else kind
    body = "\n".join(literal(line.expandtabs(4)) for line in text.split("\n"))
    return f"{name}{f' · {given.note}' if given.note else ''}\n\n{fence}{language}\n{body}\n{fence}".lstrip("\n")


def _prose(text: str) -> str:
    """Return the Markdown of a model with HTML outside code escaped."""
    parts = re.split(r"(```.*?(?:```|\Z)|`[^`\n]*`)", prepared(text, "plain"), flags=re.S)
    return "".join(part if at % 2 else re.sub(r"<(?=[A-Za-z/!?])", "&lt;", part) for at, part in enumerate(parts))


def _runs(text: str) -> Iterator[str]:
    yield from re.findall("`+", text) or [""]
