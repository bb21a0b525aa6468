"""The reward's components: raw, normalised, weight, contribution, running mean ± std and trend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...format import MINUS, fixed, number, sparkline
from .line import Line
from .pane import Pane

_ORDER = ("task", "environment", "curiosity", "coherence", "penalty")


class ComponentTable(Pane):
    """One row a component, then the total. Reads the metrics `rewards/...` of the last step."""

    title = "Reward components"

    def __init__(self, name: str = "components") -> None:
        super().__init__(name)
        self.latest: Mapping[str, float] = {}
        self.trends: Mapping[str, Sequence[float]] = {}

    def put(self, latest: Mapping[str, float], trends: Mapping[str, Sequence[float]]) -> None:
        """The last values and the recent history of each metric."""
        self.latest, self.trends = latest, trends
        self.changed()

    def names(self) -> list[str]:
        """Components that were recorded, in the order people expect."""
        prefix = "rewards/raw/"
        found = [k[len(prefix) :] for k in self.latest if k.startswith(prefix)]
        return sorted(found, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n))

    def build(self, width: int, height: int) -> list[Line]:
        """Columns from left to right as they matter; what does not fit is left out from the right."""
        p = self.palette
        names = self.names()
        if not names:
            return [Line(p), Line(p).add("components appear with the first step", p.faint, cells=width, align="^")]
        get = self.latest.get
        name_width = min(11, max(len("component"), *(len(n) for n in names)))
        columns: list[tuple[str, int]] = [("raw", 7), ("norm", 7), ("×w", 6), ("=", 7)]
        left = width - name_width - sum(w for _, w in columns)
        if left < 0:
            name_width = max(5, name_width + left)
            left = 0
        stats = left >= 15
        trend = min(24, left - (15 if stats else 0) - 2) if left >= 6 else 0
        head = Line(p).add("component", p.muted, cells=name_width)
        for title, cells in columns:
            head.add(title, p.muted, cells=cells, align=">")
        if stats:
            head.add("mean ± std", p.muted, cells=15, align=">")
        if trend >= 5:
            head.gap(2).add("trend", p.muted, cells=trend)
        lines = [head]
        for name in names:
            raw, norm = get(f"rewards/raw/{name}"), get(f"rewards/normalized/{name}")
            weight, part = get(f"rewards/weight/{name}"), get(f"rewards/contribution/{name}")
            mean, std = get(f"rewards/running_mean/{name}"), get(f"rewards/running_std/{name}")
            normalised = norm is not None and (raw is None or abs(norm - raw) > 1e-12)
            line = Line(p).add(name, p.text, cells=name_width, click=("component", name))
            line.add(fixed(raw), p.text, cells=7, align=">")
            line.add(
                fixed(norm, signed=True) if normalised else "–", p.text if normalised else p.faint, cells=7, align=">"
            )
            line.add(fixed(weight), p.muted, cells=6, align=">")
            line.add(fixed(part), p.strong if part else p.muted, cells=7, align=">")
            if stats:
                text = "–" if mean is None else f"{fixed(mean)} ± {fixed(std)}"
                line.add(text, p.muted, cells=15, align=">")
            if trend >= 5:
                line.gap(2).add(
                    sparkline(list(self.trends.get(f"rewards/raw/{name}", ())), trend), p.accent, cells=trend
                )
            lines.append(line)
        total, std = get("rewards/total/mean"), get("rewards/total/std")
        if total is not None:
            line = Line(p).add("Σ total", p.strong, cells=name_width + 20)
            line.add(fixed(total), p.strong, cells=7, align=">")
            if stats:
                line.add("" if std is None else f"± {number(std)}", p.muted, cells=15, align=">")
            if trend >= 5:
                line.gap(2).add(
                    sparkline(list(self.trends.get("rewards/total/mean", ())), trend), p.accent, cells=trend
                )
            if height > len(lines) + 1:
                lines.append(Line(p).add("─" * (name_width + 27), p.border))
            lines.append(line)
        penalty = get("rewards/raw/penalty")
        if penalty is not None and penalty < -1e-9 and height > len(lines):
            lines.append(
                Line(p).add(f"{MINUS} ", p.warn).add("penalised steps have their reasons in the stepper", p.faint)
            )
        return lines
