"""The reward's components, all of one rollout, with a last column that adds up.

A row reads: the sum of the component's raw values over a rollout, that of its normalised values, the weight, and what
it adds to the rollout's reward. Each is a mean over the rollouts of the last step, so the last column adds up to the
total below it.
"""

from __future__ import annotations

from collections.abc import Mapping

from ....configs import metric_names as metric
from ...format import MINUS, fitted, number, trend
from ...text import distinct_names, literal
from ...text import width as width_of
from .line import Line
from .live_panels import LivePanel

_ORDER = ("task", "environment", "curiosity", "coherence", "penalty")
_PLACES = 3
"""Decimals of what is added up: with fewer, the rounded numbers visibly miss their rounded sum."""
_NAME = 11
"""Cells for a name before there is room for more."""
_TREND = 5
"""Least cells of a sparkline."""


class ComponentTable(LivePanel):
    """One row a component, then the total, from the `rewards/...` metrics of the last step."""

    box = "components"
    title = "Reward of a rollout"

    def names(self) -> list[str]:
        """Return the recorded components: user reward functions by name, then built-in ones."""
        found = [metric.COMPONENT_RAW.part(k) for k in self.latest if k in metric.COMPONENT_RAW]
        return sorted(found, key=lambda n: _ORDER.index(n) if n in _ORDER else -1)

    def values(self, name: str) -> dict[str, float | None]:
        get = self.latest.get
        if self.reading.info.mode in ("dump", "recorded"):  # components are of whole rollouts (docs/recording.md)
            return {
                "raw": get(metric.COMPONENT_RAW(name)),
                "norm": get(metric.COMPONENT_NORMALIZED(name)),
                "×w": get(metric.COMPONENT_WEIGHT(name)),
                "adds": get(metric.COMPONENT_CONTRIBUTION(name)),
            }
        return {
            "raw": get(metric.COMPONENT_RAW_SUM(name)),
            "norm": get(metric.COMPONENT_NORMALIZED_SUM(name)),
            "×w": get(metric.COMPONENT_WEIGHT(name)),
            "adds": get(metric.COMPONENT_SUM(name)),
        }

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        names = self.names()
        if not names:
            when = self.coming("components appear with the first step")
            return [Line(p), Line(p).add(when, p.faint, cells=width, align="^")]
        longest = max(len("component"), *map(width_of, map(literal, names)))
        columns = [("raw", 8), ("norm", 8), ("×w", 7), ("adds", 8)]
        name_width = min(longest, max(_NAME, width - sum(w for _, w in columns)))
        while columns and name_width + sum(w for _, w in columns) > width:
            if name_width > 6:
                name_width -= 1
            else:
                columns.pop(0)
        name_width = min(name_width, width)
        shown = dict(zip(names, distinct_names(names, name_width), strict=True))
        left = width - name_width - sum(w for _, w in columns)
        step = 16 if left >= 16 + _TREND + 2 else 0
        cells = min(24, left - step - 2)
        head = Line(p).add("component", p.muted, cells=name_width)
        for title, size in columns:
            head.add(title, p.muted, cells=size, align=">")
        if step:
            head.add("a step ± std", p.muted, cells=step, align=">")
        if cells >= _TREND:
            head.gap(2).add("trend", p.muted, cells=cells)
        lines = [head]
        for name in names:
            values = self.values(name)
            line = Line(p).add(shown[name], p.text, cells=name_width, click=("component", name))
            for title, size in columns:
                line.add(*self._cell(title, values, size - 1), cells=size, align=">")
            if step:
                line.add(self._of_a_step(name, step - 1), p.muted, cells=step, align=">")
            lines.append(self._with_trend(line, metric.COMPONENT_SUM(name), cells))
        total, std = self.latest.get(metric.REWARD_MEAN), self.latest.get(metric.REWARD_STD)
        if total is not None and columns:
            body = name_width + sum(w for _, w in columns)
            line = Line(p).add("Σ total", p.strong, cells=body - columns[-1][1])
            line.add(fitted(total, columns[-1][1] - 1, places=_PLACES), p.strong, cells=columns[-1][1], align=">")
            if step:
                line.add("" if std is None else f"± {number(std)}", p.muted, cells=step, align=">")
            if height > len(lines) + 1:
                lines.append(Line(p).add("─" * body, p.border))
            lines.append(self._with_trend(line, metric.REWARD_MEAN, cells))
        penalty = self.latest.get(metric.COMPONENT_RAW("penalty"))
        note = Line(p).add(f"{MINUS} ", p.warn).add("penalised steps have their reasons in the stepper", p.faint)
        if penalty is not None and penalty < -1e-9 and height > len(lines) and note.width <= width:
            lines.append(note)
        return lines

    def _cell(self, title: str, values: Mapping[str, float | None], cells: int):
        p, value = self.palette, values[title]
        if title == "norm" and value is not None and values["raw"] is not None:
            if abs(value - values["raw"]) <= 1e-9 * max(1.0, abs(value)):
                return "–", p.faint
            return fitted(value, cells, signed=True), p.text
        if title == "adds":
            return fitted(value, cells, places=_PLACES), p.strong if value else p.muted
        return fitted(value, cells), p.muted if title == "×w" else p.text

    def _of_a_step(self, name: str, cells: int) -> str:
        mean, std = self.latest.get(metric.COMPONENT_RAW(name)), self.latest.get(metric.COMPONENT_RAW_STD(name))
        if mean is None:
            return "–"
        if std is None:
            return fitted(mean, cells)
        room = (cells - 3) // 2
        left, right = fitted(mean, room), fitted(std, room)
        return f"{left} ± {right}" if left and right else left

    def _with_trend(self, line: Line, name: str, cells: int) -> Line:
        if cells >= _TREND:
            points = self.trends.get(name) or self.trends.get(name.replace("/per_trajectory/", "/raw/"), ())
            line.gap(2).add(trend(points, cells), self.palette.accent, cells=cells)
        return line
