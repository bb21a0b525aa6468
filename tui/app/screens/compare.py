"""Two or more runs: evaluations compared by task, one metric in one chart, and configurations in columns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

from rich.style import Style

from ....configs import metric_names as metric
from ....configs.errors import GrpoTuiError
from ....engine.evaluation.results import Comparison, Evaluation, compare, evaluations_of, read_evaluation
from ....engine.runs.durable import read_json
from ....engine.runs.errors import RecordError
from ....engine.runs.paths import CONFIG_FILE, RUN_FILE
from ....engine.runs.types import RunInfo
from ...evaluation_text import difference, summary
from ...format import number
from ..curves import SMOOTHING, Series
from ..destinations import Diff
from ..live_charts import is_share
from ..live_data import POINTS
from ..widgets.chart import MARKS, Chart
from ..widgets.frame import Box, SplitPart, split
from ..widgets.pane import Line, Pane, wrapped
from ..widgets.table import Table, TableColumn
from .base import AppScreen

FIRST = (metric.REWARD_MEAN, metric.SUCCESS_TRAIN, metric.SUCCESS_GREEDY, metric.KL_MEAN, metric.ENTROPY, metric.LOSS)


def flatten(value: object, prefix: str = "") -> dict[str, str]:
    """Flatten a nested configuration to `a.b.c` keys."""
    if isinstance(value, Mapping):
        out: dict[str, str] = {}
        for key, inner in value.items():
            out |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
        return out
    return {prefix: "" if value is None else str(value)}


def read_config(run: Path) -> dict[str, str]:
    """Return the run's resolved configuration, flattened. Empty if it is unreadable."""
    import yaml

    dump = read_json(run / RUN_FILE)
    if dump.get("mode") == "dump":
        return _of_dump(dump.get("facts"))
    try:
        return flatten(yaml.safe_load((run / CONFIG_FILE).read_text(encoding="utf-8")) or {})
    except (OSError, ValueError, yaml.YAMLError):
        return {}


def _of_dump(facts: object) -> dict[str, str]:
    """Describe a dump by its source and means over all rollouts, because it has no configuration."""
    facts = facts if isinstance(facts, dict) else {}
    means = facts.get("means")
    values = {name: facts.get(name) for name in ("formats", "rollouts", "last_step", "skipped_in_all")}
    values["formats"] = ", ".join(facts.get("formats") or ())
    found = {name: "not recorded" if value is None else str(value) for name, value in values.items()}
    shown = means if isinstance(means, dict) else {}
    return found | {f"mean of {name}": number(value) for name, value in shown.items()}


def _compared(runs: Sequence[RunInfo]) -> tuple[list[Evaluation], list[Comparison]]:
    results = [read_evaluation(path) for path in evaluations_of(runs)]
    return results, [compare(results[0], other) for other in results[1:]]


class ConfigTable(Pane):
    """One line per setting, one column per run. Differences are marked."""

    name = "configs"
    title = "Settings that differ"
    names: Sequence[str] = ()
    configs: Sequence[Mapping[str, str]] = ()
    all_keys = False

    def put(self, names: Sequence[str], configs: Sequence[Mapping[str, str]]) -> None:
        self.names, self.configs = names, configs
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        keys = list(dict.fromkeys(k for c in self.configs for k in c))
        differ = [k for k in keys if len({c.get(k) for c in self.configs}) > 1]
        self.title = (
            f"All {len(keys)} settings" if self.all_keys else f"Settings that differ ({len(differ)} of {len(keys)})"
        )
        shown = keys if self.all_keys else differ
        key_width = min(max((len(k) for k in shown), default=8), max(12, width // 3)) + 3
        cells = max(6, (width - key_width) // max(1, len(self.configs)))
        head = Line(p).gap(key_width)
        for index, name in enumerate(self.names):
            head.add(MARKS[index % len(MARKS)] + " ", p.series[index % len(p.series)]).add(
                name, p.strong, cells=cells - 2
            )
        lines = [head]
        for key in shown:
            line = Line(p).add("≠ " if key in differ else "  ", p.warn).add(key, p.text, cells=key_width - 3).gap()
            values = [config.get(key) for config in self.configs]
            common = next((i for i, signs in enumerate(zip_longest(*map(str, values))) if len(set(signs)) > 1), 0)
            for value in values:
                if value and len(value) >= cells and common > cells // 2:
                    value = f"…{value[common - cells // 4 :]}"  # keeps the difference visible
                line.add(
                    "(none)" if value is None else value or "null", p.faint if not value else p.text, cells=cells - 1
                ).gap()
            lines.append(line)
        if not shown:
            same = "The settings are the same. a shows all of them." if keys else "No settings were recorded."
            lines.append(Line(p).add(same, p.faint))
        return lines


class EvaluationPane(Pane):
    """The results of `grpo-tui eval` for the runs."""

    name = "evaluations"
    title = "Evaluations"
    results: Sequence[Evaluation] = ()
    compared: Sequence[Comparison] = ()

    def put(self, results: Sequence[Evaluation], compared: Sequence[Comparison]) -> None:
        self.results, self.compared = results, compared
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        rows = summary(self.results)
        first = min(max(map(len, rows), default=0) + 2, width // 3)
        cells = max(8, (width - first) // max(1, len(self.results)))
        lines = []
        for text in (text for c in self.compared for text in difference(c)):
            indent = 2 * text.startswith(" ")
            style = p.strong if indent else p.muted
            lines += wrapped(p, text.strip(), width, style, len(text), after=Line(p).gap(indent))
        head = Line(p).gap(first)
        for index, result in enumerate(self.results):
            head.add(MARKS[index % len(MARKS)] + " ", p.series[index % len(p.series)])
            head.add(result.name, p.strong, cells=cells - 3).gap()
        lines.append(head)
        for name, values in rows.items():
            line = Line(p).add(name, p.muted, cells=first)
            for value in values:
                line.add(value, p.text, cells=cells - 1).gap()
            lines.append(line)
        return lines


class CompareScreen(AppScreen):
    """The runs that were marked in the list. `flips`: tasks whose success differs between their evaluations."""

    view = "compare"

    def __init__(self, runs: Sequence[RunInfo]) -> None:
        super().__init__()
        self.runs = list(runs)
        self.metric = ""
        self.names: list[str] = []
        self.points: dict[str, list[tuple[int, float]]] = {}
        """The curve of each run, by its path: dumps may share an id."""
        self.smoothing = 0
        self.chart = Chart("chart")
        self.configs = ConfigTable()
        self.evaluations = EvaluationPane()
        self.flips: list[tuple[Comparison, int]] = []
        self.table = Table("flips", self._columns, lambda: ["No task flipped."])
        self.curves = True
        """Whether to show curves instead of evaluations."""
        self.hint = ""

    def panes(self) -> list[Pane]:
        return [self.evaluations, self.table, self.configs, self.chart]

    def plan(self, width: int, height: int) -> list[Box]:
        names, parts, min_width = ["chart", "configs"], [SplitPart(8, 1.3), SplitPart(6, 1.0)], 180
        if not self.curves:
            names, min_width = ["evaluations", "flips", "configs"], 140
            parts = [SplitPart(10, 1.0), SplitPart(5, 1.0), SplitPart(5, 1.0)]
        if width < min_width:
            return [Box(name, 0, y, width, h) for name, (y, h) in zip(names, split(height, parts), strict=True)]
        (ax, aw), (bx, bw) = split(width, [SplitPart(60, 1.1), SplitPart(60, 1.0)])
        right = zip(names[1:], split(height, parts[1:]), strict=True)
        return [Box(names[0], ax, 0, aw, height), *(Box(name, bx, y, bw, h) for name, (y, h) in right)]

    def header(self, width: int) -> tuple[Line, Line]:
        p = self.palette
        left = Line(p).add("compare", p.title)
        for run in self.runs:
            if left.width + len(run.id) + 3 < width - 10:
                left.add(" · ", p.faint).add(run.id, p.muted)
        right = Line(p)
        right.offer(Line(p).add(self.hint, p.accent), width - left.width - 2)
        return left, right

    def hint_label(self, action: str, label: str) -> str:
        if action == "next_chart" and not self.curves:
            return "curves"
        if action == "open" and self.curves:
            return "evaluations" if self.evaluations.results else ""
        return "" if action == "smooth" and not self.curves else label

    def on_mount(self) -> None:
        self._active = "configs"
        self.run_worker(self._start(), group="compare")
        self._reading = self.run_worker(self._evaluate(), group="evaluations")

    async def _start(self) -> None:
        configs = await asyncio.to_thread(lambda: [read_config(Path(r.path)) for r in self.runs])
        self.configs.put([r.id for r in self.runs], configs)
        found: dict[str, None] = {}
        for run in self.runs:
            try:
                found |= dict.fromkeys(await self.shell.reads(run.path).later(lambda r: r.metrics.names()))
            except RecordError as error:
                self.say(str(error), "error")
        self.names = [n for n in FIRST if n in found] + [n for n in found if n not in FIRST]
        await self._choose(self.names[0] if self.names else "")

    async def _evaluate(self) -> None:
        if not all(run.mode in ("sft", "rft", "eval") for run in self.runs):
            return
        try:
            results, compared = await asyncio.to_thread(_compared, self.runs)
        except (GrpoTuiError, OSError) as error:
            self.say(str(error), "error")
            return
        if not results:
            self.hint = f"grpo-tui eval {' '.join(run.id for run in self.runs)} compares them on tasks"
            self.frame.refresh_lines()
            return
        self.evaluations.put(results, compared)
        self.flips = [(c, n) for c in compared for n in (*c.gained, *c.lost)]
        self.table.put(self.flips)
        self._show_curves(False)

    def _show_curves(self, curves: bool) -> None:
        self.curves = curves
        self.frame.replan()
        self.activate("configs" if curves else "flips")

    def _columns(self, table: Table) -> Sequence[TableColumn]:
        p = self.palette

        def rates(flip: tuple[Comparison, int]) -> tuple[str, Style]:
            c, n = flip
            both = [(sum(map(bool, task.right)), len(task.right)) for task in (c.first.tasks[n], c.second.tasks[n])]
            return " → ".join(f"{k}/{total}" for k, total in both), p.text

        def sign(flip: tuple[Comparison, int]) -> tuple[str, Style]:
            return ("gained", p.good) if flip[1] in flip[0].gained else ("lost", p.bad)

        several = len(self.evaluations.compared) > 1
        return (
            TableColumn("", "flip", 6, sign),
            TableColumn("", "task", 5, lambda f: (f[1], p.text), ">"),
            *([TableColumn("", "by", 14, lambda f: (f[0].second.name, p.muted), drop=1)] if several else []),
            TableColumn("", "right", 12, rates),
            TableColumn(
                "", "prompt", 12, lambda f: (" ".join(f[0].first.tasks[f[1]].prompt.split()), p.muted), grow=1.0
            ),
        )

    def action_open(self) -> None:
        self.run_worker(self._open(), group="open", exclusive=True)

    async def _open(self) -> None:
        await self._reading.wait()
        if self.curves and self.evaluations.results:
            self._show_curves(False)
        elif self.flips and self._active == "flips":
            c, n = self.flips[self.table.cursor]
            (a, i), (b, j) = c.shown(n)
            others = (j, *(m for m in b.tasks[n].numbers if m != j))
            self.shell.open(Diff(a.path, i, b.path, others))

    async def on_table_selected(self, message: Table.Selected) -> None:
        self.activate("flips")

    async def _choose(self, metric: str) -> None:
        self.metric = metric
        self.points = {}
        for run in self.runs:
            try:
                points = await self.shell.reads(run.path).later(lambda r: r.metrics.points(metric, max_points=POINTS))
            except RecordError:
                points = []
            self.points[run.path] = points
        self._show()

    def _show(self) -> None:
        share = is_share(self.metric)
        series = [Series.of(run.id, self.points.get(run.path, []), share=share) for run in self.runs]
        self.chart.smoothing = SMOOTHING[self.smoothing]
        heading = self.metric + (f"  smoothed {number(SMOOTHING[self.smoothing])}" if self.smoothing else "")
        self.chart.put(heading, series, "this metric was not recorded")

    def action_next_chart(self) -> None:
        if not self.curves:
            self._show_curves(True)
        elif self.names:
            index = self.names.index(self.metric) if self.metric in self.names else -1
            self.run_worker(self._choose(self.names[(index + 1) % len(self.names)]), group="compare", exclusive=True)

    def action_smooth(self) -> None:
        self.smoothing = (self.smoothing + 1) % len(SMOOTHING)
        self._show()

    def action_all_keys(self) -> None:
        self.configs.all_keys = not self.configs.all_keys
        self.configs.changed(keep_scroll=False)

    def action_export(self) -> None:
        svg = self.app.export_screenshot(title="grpo-tui · compare")
        self.export(Path(self.runs[0].path), "compare.svg", lambda: svg)
