"""A penalty, explained: the rule, its cost, the values it saw, the limit, the reason, and the right move."""

from __future__ import annotations

from ....engine.runs.types import Penalty
from ...format import MINUS, fixed
from ...text import wrap
from ..theme import Palette
from .line import Line


def penalty_lines(p: Palette, penalty: Penalty, width: int) -> list[Line]:
    """Return the lines of one penalty, `width` cells wide."""
    amount = fixed(penalty.amount) if penalty.amount else f"{MINUS}0.00"
    name = penalty.rule.replace("_", " ")
    head = Line(p).add("✗ ", p.bad_bold).add(name, p.bad_bold, cells=max(1, min(len(name), width - 3 - len(amount))))
    lines = [head.gap().add(amount, p.bad_bold)]
    saw = ", ".join(f"{key} {_value(value)}" for key, value in penalty.saw.items())
    for label, text, style in (
        ("saw", saw, p.text),
        ("limit", penalty.limit, p.text),
        ("why", penalty.why, p.muted),
        ("right", penalty.right, p.good),
    ):
        if text:
            body = wrap(str(text), max(8, width - 9))
            for index, part in enumerate(body):
                line = Line(p).gap(2).add(f"{label}:" if index == 0 else "", p.faint, cells=7)
                lines.append(line.add(part, style))
    return lines


def _value(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_value, value)) if value else "none"
    if isinstance(value, float):
        return fixed(value)
    return "none" if value is None else str(value)
