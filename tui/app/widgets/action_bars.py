"""How often each action is used: bars with the change since before, or shares over the whole run."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping

from ....configs import metric_names as metric
from ...format import bar, trend, whole_percents
from ...text import distinct_names
from ..live_data import Points
from ..theme import PATTERNS
from .line import Line
from .live_panels import LivePanel

_CHANGE = 0.02
"""Smallest change of a share that gets an arrow."""


class ActionBars(LivePanel):
    """Shares of actions from `behavior/action_distribution/<ACTION>`. The percents add up to 100."""

    title = "Actions"

    box = "actions"
    over_time = False

    @property
    def latest(self) -> Mapping[str, float]:
        return {metric.ACTION_SHARE.part(k): v for k, v in self.reading.latest.items() if k in metric.ACTION_SHARE}

    @property
    def trends(self) -> Mapping[str, Points]:
        return {metric.ACTION_SHARE.part(k): v for k, v in self.reading.trends.items() if k in metric.ACTION_SHARE}

    def toggle(self) -> None:
        self.over_time = not self.over_time
        self.title = "Actions over time" if self.over_time else "Actions"
        self.changed(keep_scroll=False)

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        if not self.latest:
            return [Line(p).add("no actions yet", p.faint, cells=width, align="^")]
        names = sorted(self.latest, key=lambda n: -self.latest[n])
        shares = dict(zip(names, whole_percents([self.latest[n] for n in names]), strict=True))
        if self.over_time and height >= 4 and width >= 24:
            return self._stacked(names, shares, width, height)
        name_width = min(max(map(len, names)), max(8, width // 2 - 4))
        shown = dict(zip(names, distinct_names(names, min(name_width, width)), strict=True))
        room = width - name_width - 9
        cells = max(min(20, room - 12), min(60, room - 44)) if room >= 24 else 0
        room -= cells + (1 if cells else 0)
        lines = []
        for index, name in enumerate(names):
            style = p.series[index % len(p.series)]
            line = Line(p).add(shown[name], p.text, cells=min(name_width, width), click=("action", name))
            if room >= 3:
                line.gap().add(bar(self.latest[name], room), style, cells=room)
            line.offer(Line(p).add(f" {shares[name]}", p.text, cells=6, align=">").gap(), width)
            change = self._change(name)
            arrow, tone = ("▲", p.text) if change > _CHANGE else ("▼", p.text) if change < -_CHANGE else (" ", p.faint)
            line.offer(Line(p).add(arrow, tone), width)
            if cells:
                line.offer(Line(p).gap().add(trend(self.trends.get(name, ()), cells), style, cells=cells), width)
            lines.append(line)
        return lines

    def _change(self, name: str) -> float:
        values = [value for _, value in self.trends.get(name, ()) if math.isfinite(value)]
        if len(values) < 4:
            return 0.0
        quarter = max(1, len(values) // 4)
        return sum(values[-quarter:]) / quarter - sum(values[:quarter]) / quarter

    def _stacked(self, names: list[str], shares: Mapping[str, str], width: int, height: int) -> list[Line]:
        p = self.palette
        legend = min(max(map(len, names)), 20) + 8
        plot = max(8, width - legend - 1)
        steps = [step for points in self.trends.values() for step, _ in points] or [0]
        ends = min(steps), max(steps)
        columns = [self._resample(name, plot, *ends) for name in names]
        shown = distinct_names(names, legend - 8)
        rows: list[Line] = []
        for y in range(height):
            line = Line(p)
            level = 1 - (y + 0.5) / height
            last, text = -1, ""
            for x in range(plot):
                at, total = -1, 0.0
                whole = sum(c[x] for c in columns) or 1.0
                for index, column in enumerate(columns):
                    total += column[x] / whole
                    if level < total:
                        at = index
                        break
                if at != last and text:
                    line.add(text, p.series[last % len(p.series)])
                    text = ""
                last = at
                text += PATTERNS[at % len(PATTERNS)] if at >= 0 else " "
            line.add(text, p.series[last % len(p.series)]).gap()
            if y < len(names):
                name = names[y]
                line.add(PATTERNS[y % len(PATTERNS)] * 2 + " ", p.series[y % len(p.series)])
                line.add(shown[y], p.text, cells=legend - 8, click=("action", name))
                line.add(shares[name], p.muted, cells=5, align=">")
            rows.append(line)
        return rows

    def _resample(self, name: str, cells: int, first: int, last: int) -> list[float]:
        points = self.trends.get(name) or [(last, self.latest[name])]
        steps = [step for step, _ in points]
        out = []
        for i in range(cells):
            at = bisect_right(steps, first + (last - first) * (i + 1) / cells) - 1
            value = points[at][1] if at >= 0 else 0.0
            out.append(min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0)
        return out
