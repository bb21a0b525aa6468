"""The columns of the list of runs, and the run under its cursor: facts, end, and next command."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich.style import Style

from ....configs import metric_names as metric
from ....engine.runs.health.headline import RATE_WINDOW, REWARD, Headline
from ....engine.runs.types import RunInfo
from ...format import ago, duration, fitted, percent, percent_number, step_text, trend, within
from ..run_list import NOTHING, RunRow
from ..theme import Palette
from .pane import Line, Pane, wrapped
from .table import TableColumn

Cell = tuple[str, Style]


def columns(p: Palette, now: float, rows: Sequence[RunRow]) -> tuple[TableColumn, ...]:
    """Return columns as wide as these rows need. A column in which numbers do not fit is left out."""

    def status(row: RunRow) -> Cell:
        if row.dump:
            return "", p.muted
        sign, style = p.status(row.info.status)
        return f"{sign} {row.info.status}", style

    def steps(row: RunRow) -> Cell:
        return step_text(row.info), p.text

    def age(row: RunRow) -> Cell:
        return (ago(now - row.info.created) if row.info.created else "–"), p.muted

    def name(row: RunRow) -> Cell:
        return (row.name or row.info.error or ""), (p.bad if row.info.error and not row.name else p.muted)

    def success(row: RunRow) -> Cell:
        inside = within(row.headline.interval, percent_number)
        return percent(row.headline.success) + inside, p.strong

    def longer(texts: Iterable[str], width: int) -> float:
        """Return the weight of a column when free cells are distributed. A long text leaves some for other columns."""
        return math.sqrt(max([0, *(len(text) - width for text in texts)]))

    step_cells = max([4, *(len(steps(row)[0]) for row in rows)])
    age_cells = max([6, *(len(age(row)[0]) for row in rows)])
    percents = max([8, *(len(success(row)[0]) for row in rows)])
    longest = max((len(row.info.id) for row in rows), default=4)
    environments, models = longer((r.info.environment for r in rows), 12), longer((r.info.model for r in rows), 10)
    return (
        TableColumn("id", "run", min(max(6, longest), 24), lambda r: (r.info.id, p.strong)),
        TableColumn("status", "status", 10, status),
        TableColumn("mode", "mode", 6, lambda r: (r.info.mode, p.text), drop=3),
        TableColumn(
            "environment", "environment", 12, lambda r: (r.info.environment, p.text), drop=4, grow=environments
        ),
        TableColumn("model", "model", 10, lambda r: (r.info.model, p.muted), drop=6, grow=models),
        TableColumn("step", "step", step_cells, steps, ">", drop=1),
        TableColumn("success", "success", percents, success, ">"),
        TableColumn("reward", "reward", 8, lambda r: (fitted(r.headline.reward, 8), p.text), ">", drop=2),
        TableColumn(
            "", "reward over steps", 18, lambda r: (trend(r.headline.curves.get(REWARD, ()), 18), p.accent), drop=5
        ),
        TableColumn("created", "age", age_cells, age, ">", drop=7),
        TableColumn("", "name", 8, name, drop=8, grow=longer((name(r)[0] for r in rows), 8)),
    )


_SUCCESS = (
    (metric.SUCCESS_GREEDY, "greedy", "of held-out tasks"),
    (metric.SUCCESS_SAMPLED, "sampled", "of held-out tasks"),
    (metric.ONLINE_SUCCESS, "success", f"of the last {RATE_WINDOW} requests"),
)


class RunCard(Pane):
    """Facts and results of one run."""

    name = "card"
    title = "run"
    info: RunInfo | None = None
    headline = NOTHING
    over_seeds = ""

    def put(self, info: RunInfo | None, headline: Headline, over_seeds: str = "") -> None:
        if (info, headline, over_seeds) != (self.info, self.headline, self.over_seeds):
            self.info, self.headline, self.over_seeds = info, headline, over_seeds
            self.changed(keep_scroll=False)

    def build(self, width: int, height: int) -> list[Line]:
        p, info = self.palette, self.info
        if info is None:
            return []
        now = self.app.clock()
        if info.mode == "dump":
            line = Line(p).add(f"opened {ago(now - info.created)} ago", p.muted)
        else:
            sign, style = p.status(info.status)
            line = Line(p).add(f"{sign} {info.status}", style)
            if info.created:
                line.offer(Line(p).add(f"  after {duration((info.ended or now) - info.created)}", p.muted), width)
            if info.ended:
                line.offer(Line(p).add(f", {ago(now - info.ended)} ago", p.muted), width)
        lines = [line]
        if info.error:
            lines += wrapped(p, info.error, width, p.bad, 600)
        facts = (
            ("name", info.name),
            ("mode", info.mode),
            ("task", info.environment),
            ("model", info.model),
            ("folder", info.facts.get("dump") or info.path),
        )
        for name, value in facts:
            if value not in ("", None):
                lines += wrapped(p, str(value), max(13, width), p.text, 400, Line(p).add(name, p.faint, cells=8).gap())
        interval = self.headline.interval
        for key, title, sample in _SUCCESS:
            value = self.headline.values.get(key)
            if value is not None:
                text = percent(value) + within(interval, percent)
                interval = None  # only the first one has it
                line = Line(p).add(title, p.faint, cells=8).gap().add(text, p.strong)
                line.offer(Line(p).add(f" {sample}", p.muted), width)
                lines.append(line)
        lines += wrapped(p, self.over_seeds, width, p.strong) if self.over_seeds else []
        if info.status in ("crashed", "stopped") and info.resume_command:
            *first, line = wrapped(p, info.resume_command, width, p.accent)
            line.offer(Line(p).add("  to resume", p.muted), width)
            lines += [Line(p), *first, line]
        return [line for line in lines if line.width <= width]
