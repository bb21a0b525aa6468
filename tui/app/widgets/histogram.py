"""The distribution of reward over the listed rows. A click on a bar filters by it."""

from __future__ import annotations

from ...format import count, number
from .line import Line
from .pane import Pane

_LEVELS = " ▁▂▃▄▅▆▇█"


class Histogram(Pane):
    """Counts by range of reward as bars."""

    title = "Reward"

    def __init__(self) -> None:
        super().__init__("histogram")
        self.bins: list[tuple[float, float, int]] = []
        self._read = False

    def put(self, bins: list[tuple[float, float, int]]) -> None:
        self.bins, self._read = bins, True
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        most = max((n for _, _, n in self.bins), default=0)
        if not most:
            text = "no rewards to show" if self._read else "reading…"
            return [Line(p).add(text, p.faint, cells=width, align="^")]
        rows = max(1, height - 1)
        side = min(8, max(len(count(most)), 4))
        cells = max(1, (width - side - 1) // len(self.bins))
        lines = []
        for y in range(rows):
            line = Line(p).add(count(most) if y == 0 else "", p.faint, cells=side, align=">").gap()
            for index, (low, high, n) in enumerate(self.bins):
                eighths = round(n / most * rows * 8)
                level = max(0, min(8, eighths - (rows - 1 - y) * 8))
                if n and y == rows - 1:
                    level = max(1, level)
                gap = 1 if cells >= 3 else 0
                style = p.series[0] if (low + high) / 2 >= 0 else p.bad
                line.add(_LEVELS[level] * (cells - gap) + " " * gap, style, click=("bin", index))
            lines.append(line)
        axis = Line(p).gap(side + 1)
        step = max(1, 10 // cells + 1)
        for index, (low, _, _) in enumerate(self.bins):
            if index % step == 0:
                axis.to(side + 1 + index * cells).add(number(round(low, 6)), p.muted, click=("bin", index))
        lines.append(axis)
        return lines[-height:]
