"""How often each action is used: bars with the change since before, or shares over the whole run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...format import bar, percent
from ..theme import PATTERNS
from .line import Line
from .pane import Pane

PREFIX = "behavior/action_distribution/"
_CHANGE = 0.02
"""Smallest change of a share that gets an arrow."""


class ActionBars(Pane):
    """Reads the metrics `behavior/action_distribution/<ACTION>`."""

    title = "Actions"

    def __init__(self, name: str = "actions") -> None:
        super().__init__(name)
        self.latest: Mapping[str, float] = {}
        self.history: Mapping[str, Sequence[float]] = {}
        self.over_time = False

    def put(self, latest: Mapping[str, float], history: Mapping[str, Sequence[float]]) -> None:
        """Shares of the last step and their history, by metric name."""
        self.latest = {k[len(PREFIX) :]: v for k, v in latest.items() if k.startswith(PREFIX)}
        self.history = {k[len(PREFIX) :]: v for k, v in history.items() if k.startswith(PREFIX)}
        self.changed()

    def toggle(self) -> None:
        """Now, or over time."""
        self.over_time = not self.over_time
        self.title = "Actions over time" if self.over_time else "Actions"
        self.changed(keep_scroll=False)

    def build(self, width: int, height: int) -> list[Line]:
        """One line an action, the most used first; over time, a stacked chart with a pattern for each."""
        p = self.palette
        if not self.latest:
            return [Line(p).add("no actions yet", p.faint, cells=width, align="^")]
        names = sorted(self.latest, key=lambda n: -self.latest[n])
        if self.over_time and height >= 4:
            return self._stacked(names, width, height)
        name_width = min(max(map(len, names)), max(8, width // 2 - 4))
        room = max(3, width - name_width - 9)
        trend = max(min(20, room - 12), min(60, room - 44)) if room >= 24 else 0
        room -= trend + (1 if trend else 0)
        lines = []
        for index, name in enumerate(names):
            share = self.latest[name]
            style = p.series[index % len(p.series)]
            line = Line(p).add(name, p.text, cells=name_width, click=("action", name)).gap()
            line.add(bar(share, room), style, cells=room).add(percent(share), p.text, cells=5, align=">").gap()
            change = self._change(name)
            arrow, tone = ("▲", p.text) if change > _CHANGE else ("▼", p.text) if change < -_CHANGE else (" ", p.faint)
            line.add(arrow, tone)
            if trend:
                from ...format import sparkline

                line.gap().add(sparkline(list(self.history.get(name, ())), trend), style, cells=trend)
            lines.append(line)
        return lines

    def _change(self, name: str) -> float:
        values = self.history.get(name, ())
        if len(values) < 4:
            return 0.0
        quarter = max(1, len(values) // 4)
        return sum(values[-quarter:]) / quarter - sum(values[:quarter]) / quarter

    def _stacked(self, names: list[str], width: int, height: int) -> list[Line]:
        p = self.palette
        legend = min(max(map(len, names)), 20) + 8
        plot = max(8, width - legend - 1)
        columns = [self._resample(name, plot) for name in names]
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
                line.add(name, p.text, cells=legend - 8, click=("action", name))
                line.add(percent(self.latest[name]), p.muted, cells=5, align=">")
            rows.append(line)
        return rows

    def _resample(self, name: str, cells: int) -> list[float]:
        values = self.history.get(name) or [self.latest[name]]
        return [values[min(len(values) - 1, i * len(values) // cells)] for i in range(cells)]
