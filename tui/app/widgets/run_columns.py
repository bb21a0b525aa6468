"""The columns of the list of runs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style

from ....engine.runs.health.headline import REWARD
from ...format import ago, fitted, percent, percent_number, step_text, trend, within
from ...status import status_sign, status_style
from ..run_list import RunRow
from ..theme import Palette
from .table import Column

Cell = tuple[str, Style]


def columns(p: Palette, now: float, rows: Sequence[RunRow]) -> tuple[Column, ...]:
    """Return columns as wide as these rows need. A number is whole, or its column is left out."""

    def status(row: RunRow) -> Cell:
        if row.dump:
            return "", p.muted
        return f"{status_sign(row.info.status)} {row.info.status}", status_style(p, row.info.status)

    def steps(row: RunRow) -> Cell:
        return step_text(row.info), p.text

    def age(row: RunRow) -> Cell:
        return (ago(now - row.info.created) if row.info.created else "–"), p.muted

    def name(row: RunRow) -> Cell:
        info = row.info
        return (info.name or info.error or ""), (p.bad if info.error and not info.name else p.muted)

    def success(row: RunRow) -> Cell:
        inside = within(row.headline.interval, percent_number)
        return percent(row.headline.success) + inside, p.strong

    def widest(least: int, texts: Sequence[str]) -> int:
        return max(least, *(len(text) for text in texts)) if texts else least

    step_cells = widest(4, [steps(row)[0] for row in rows])
    age_cells = widest(6, [age(row)[0] for row in rows])
    percents = widest(8, [success(row)[0] for row in rows])
    longest = max((len(row.info.id) for row in rows), default=4)
    return (
        Column("id", "run", min(max(6, longest), 24), lambda r: (r.info.id, p.strong)),
        Column("status", "status", 10, status),
        Column("mode", "mode", 6, lambda r: (r.info.mode, p.text), drop=3),
        Column("environment", "environment", 12, lambda r: (r.info.environment, p.text), drop=4, grow=0.6),
        Column("model", "model", 10, lambda r: (r.info.model, p.muted), drop=6, grow=0.6),
        Column("step", "step", step_cells, steps, ">", drop=1),
        Column("success", "success", percents, success, ">"),
        Column("reward", "reward", 8, lambda r: (fitted(r.headline.reward, 8), p.text), ">", drop=2),
        Column("", "reward over steps", 18, lambda r: (trend(r.headline.curves.get(REWARD, ()), 18), p.accent), drop=5),
        Column("created", "age", age_cells, age, ">", drop=7),
        Column("", "name", 8, name, drop=8, grow=1.0),
    )
