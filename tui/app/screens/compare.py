"""Two or more runs: one metric in one chart, and their configurations in columns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ....configs import metric_names as metric
from ....engine.runs.durable import read_json
from ....engine.runs.errors import RecordError
from ....engine.runs.paths import CONFIG_FILE, RUN_FILE
from ....engine.runs.types import RunInfo
from ...format import number
from ..bindings import COMPARE, bindings
from ..curves import SMOOTHING, Series
from ..live_charts import is_share
from ..live_data import POINTS
from ..widgets.canvas import MARKS
from ..widgets.chart import Chart
from ..widgets.frame import Box, Part, split
from ..widgets.line import Line
from ..widgets.pane import Pane
from .base import AppScreen

FIRST = (metric.REWARD_MEAN, metric.SUCCESS_TRAIN, metric.SUCCESS_GREEDY, metric.KL_MEAN, metric.ENTROPY, metric.LOSS)


def flatten(value: Any, prefix: str = "") -> dict[str, str]:
    """Flatten a nested configuration to `a.b.c` keys."""
    if isinstance(value, Mapping):
        out: dict[str, str] = {}
        for key, inner in value.items():
            out |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
        return out
    return {prefix: "" if value is None else str(value)}


def read_config(run: Path) -> dict[str, str]:
    """Return the run's resolved configuration, flat; empty if unreadable."""
    import yaml

    dump = read_json(run / RUN_FILE)
    if dump.get("mode") == "dump":
        return _of_dump(dump.get("facts"))
    try:
        return flatten(yaml.safe_load((run / CONFIG_FILE).read_text(encoding="utf-8")) or {})
    except (OSError, ValueError, yaml.YAMLError):
        return {}


def _of_dump(facts: Any) -> dict[str, str]:
    """Describe a dump: its source and means over all rollouts. It has no configuration."""
    facts = facts if isinstance(facts, dict) else {}
    means = facts.get("means")
    told = {name: facts.get(name) for name in ("formats", "rollouts", "last_step", "skipped_in_all")}
    told["formats"] = ", ".join(facts.get("formats") or ())
    found = {name: "not recorded" if value is None else str(value) for name, value in told.items()}
    shown = means if isinstance(means, dict) else {}
    return found | {f"mean of {name}": number(value) for name, value in shown.items()}


class ConfigTable(Pane):
    """One line a setting, one column a run. Differences are marked."""

    title = "Settings that differ"

    def __init__(self) -> None:
        super().__init__("configs")
        self.names: list[str] = []
        self.configs: list[dict[str, str]] = []
        self.all_keys = False

    def put(self, names: list[str], configs: list[dict[str, str]]) -> None:
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
            for config in self.configs:
                value = config.get(key)
                line.add(
                    "(none)" if value is None else value or "null", p.faint if not value else p.text, cells=cells - 1
                ).gap()
            lines.append(line)
        if not shown:
            same = "The settings are the same. a shows all of them." if keys else "No settings were recorded."
            lines.append(Line(p).add(same, p.faint))
        return lines


class CompareScreen(AppScreen):
    """The runs that were marked in the list."""

    view = COMPARE
    BINDINGS = bindings(COMPARE)

    def __init__(self, runs: Sequence[RunInfo]) -> None:
        super().__init__()
        self.runs = list(runs)
        self.metric = ""
        self.names: list[str] = []
        self.points: dict[str, list[tuple[int, float]]] = {}
        self.smoothing = 0
        self.chart = Chart("chart")
        self.configs = ConfigTable()

    def panes(self) -> list[Pane]:
        return [self.configs, self.chart]

    def plan(self, width: int, height: int) -> list[Box]:
        if width >= 180:
            (ax, aw), (bx, bw) = split(width, [Part(60, 1.2), Part(60, 1.0)])
            return [Box("chart", ax, 0, aw, height), Box("configs", bx, 0, bw, height)]
        (ay, ah), (by, bh) = split(height, [Part(8, 1.3), Part(6, 1.0)])
        return [Box("chart", 0, ay, width, ah), Box("configs", 0, by, width, bh)]

    def header(self, width: int) -> tuple[Line, Line]:
        p = self.palette
        left = Line(p).add("compare", p.title)
        for run in self.runs:
            if left.width + len(run.id) + 3 < width - 10:
                left.add(" · ", p.faint).add(run.id, p.muted)
        return left, Line(p)

    def on_mount(self) -> None:
        self._active = "configs"
        self.run_worker(self._start(), group="compare")

    async def _start(self) -> None:
        configs = await asyncio.to_thread(lambda: [read_config(Path(r.path)) for r in self.runs])
        self.configs.put([r.id for r in self.runs], configs)
        self.frame.refresh_lines()
        found: dict[str, None] = {}
        for run in self.runs:
            try:
                found |= dict.fromkeys(await self.shell.reads(run.path).later(lambda r: r.metrics.names()))
            except RecordError as error:
                self.say(str(error), "error")
        self.names = [n for n in FIRST if n in found] + [n for n in found if n not in FIRST]
        await self._choose(self.names[0] if self.names else "")

    async def _choose(self, metric: str) -> None:
        self.metric = metric
        self.points = {}
        for run in self.runs:
            try:
                points = await self.shell.reads(run.path).later(lambda r: r.metrics.points(metric, max_points=POINTS))
            except RecordError:
                points = []
            self.points[run.id] = points
        self._show()

    def _show(self) -> None:
        share = is_share(self.metric)
        series = [Series.of(run.id, self.points.get(run.id, []), share=share) for run in self.runs]
        self.chart.smoothing = SMOOTHING[self.smoothing]
        heading = self.metric + (f"  smoothed {number(SMOOTHING[self.smoothing])}" if self.smoothing else "")
        self.chart.put(heading, series, "nothing recorded of this metric")

    def action_next_chart(self) -> None:
        if self.names:
            at = self.names.index(self.metric) if self.metric in self.names else -1
            self.run_worker(self._choose(self.names[(at + 1) % len(self.names)]), group="compare", exclusive=True)

    def action_smooth(self) -> None:
        self.smoothing = (self.smoothing + 1) % len(SMOOTHING)
        self._show()

    def action_all_keys(self) -> None:
        self.configs.all_keys = not self.configs.all_keys
        self.configs.changed(keep_scroll=False)
        self.frame.refresh_lines()

    def action_export(self) -> None:
        from ...export import write

        svg = self.app.export_screenshot(title="grpo-tui · compare")
        self.export(lambda: write(Path(self.runs[0].path), "compare.svg", svg))
