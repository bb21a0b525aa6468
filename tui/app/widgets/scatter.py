"""A scatter plot: one character per cell, heavier for more rollouts, and a cursor that goes from point to point."""

from __future__ import annotations

import math

from ....engine.runs.search.scatter import Cloud
from ...format import count
from ..curves import labels, ticks
from .chart import Chart
from .line import Line

_SIGNS = "·•●▒▓█"
"""Signs of cells: the first for one rollout, the others for more and more."""
_FILLS = 3
"""Index of the first sign that fills a cell wider than a character."""
MARGIN = 12
"""Maximum width of the labels and the border left of the plot, in cells."""


class ScatterChart(Chart):
    """The points of a cloud. A click on a point moves the cursor there."""

    def __init__(self) -> None:
        super().__init__("scatter")
        self.cloud: Cloud | None = None
        self.cursor = (0, 0)

    def show(self, cloud: Cloud | None, note: str = "reading…") -> None:
        self.cloud, self.note = cloud, note
        if cloud is not None and cloud.cells and self.cursor not in cloud.cells:
            self.cursor = max(cloud.cells, key=lambda cell: cloud.cells[cell][0])
        self.changed()

    def move(self, across: int, up: int) -> bool:
        """Move to the nearest point in a direction. Returns whether there is one."""
        x, y = self.cursor
        cells = self.cloud.cells if self.cloud is not None else ()
        ahead = [(a, b) for a, b in cells if (a - x) * across > 0 or (b - y) * up > 0]
        if not ahead:
            return False
        slant = 3  # a cell sideways counts like three ahead
        weights = (1, slant) if across else (slant, 1)
        self.cursor = min(ahead, key=lambda at: (weights[0] * abs(at[0] - x) + weights[1] * abs(at[1] - y), at))
        self.changed()
        return True

    def build(self, width: int, height: int) -> list[Line]:
        p, cloud = self.palette, self.cloud
        if cloud is None or not cloud.cells or height < 4 or width < 16:
            text = self.note if cloud is None or not cloud.cells else ""
            return [*(Line(p) for _ in range(max(0, height // 3))), Line(p).add(text, p.faint, cells=width, align="^")]
        x, y = cloud.x, cloud.y
        values = ticks(y.low, y.high, max(2, height // 4))
        texts = labels(values)
        margin = min(MARGIN - 2, max(map(len, texts), default=1))
        plot, tall = max(2, width - margin - 1), height - 2
        rows, columns = _spread(y.cells, tall), _spread(x.cells, plot)
        labels_by_row = {
            round((y.high - tick) / (y.high - y.low) * tall): text for tick, text in zip(values, texts, strict=True)
        }
        largest = max(32, *(n for n, _ in cloud.cells.values()))
        lines = [Line(p).add(self.told(), p.accent, cells=width)]
        for row, (cell, middle) in enumerate(reversed(rows)):
            label = labels_by_row.get(row, "")
            line = Line(p).add(label, p.muted, cells=margin, align=">").add("┤" if label else "│", p.border)
            self._cells(line, cloud, (cell, middle), columns, largest)
            lines.append(line)
        self.x_name, self.x_whole = x.name, x.step >= 1
        return [*lines, self._x_axis(margin, plot, x.low, x.high, named=True)]

    def _cells(
        self, line: Line, cloud: Cloud, row: tuple[int, bool], columns: list[tuple[int, bool]], largest: int
    ) -> None:
        p, begin = self.palette, line.width
        for index, (column, middle) in enumerate(columns):
            n = cloud.cells.get((column, row[0]), (0, 0))[0]
            level = 0 if n <= 1 else 1 + int(4.999 * math.log(n) / math.log(largest))
            centre = middle and row[1]
            if n and (centre or level >= _FILLS):
                selected = centre and (column, row[0]) == self.cursor
                style = p.found if selected else p.series[0]
                line.to(begin + index).add("◆" if selected else _SIGNS[level], style, click=("point", (column, row[0])))

    def told(self) -> str:
        """Describe the point under the cursor: its ranges and its number of rollouts."""
        cloud, (x, y) = self.cloud, self.cursor
        if cloud is None or (x, y) not in cloud.cells:
            return ""
        n = cloud.cells[x, y][0]
        ranges = [f"{a.name} {a.edge(i)} to {a.edge(i + 1)}" for a, i in ((cloud.x, x), (cloud.y, y))]
        return " · ".join([*ranges, f"{count(n)} rollout{'' if n == 1 else 's'}"])


def _spread(cells: int, room: int) -> list[tuple[int, bool]]:
    """Return the cell of each of `room` characters, and whether the character is the middle one of its cell."""
    starts = [i * cells // room for i in range(room)]
    middles = {(starts.index(cell) + room - 1 - starts[::-1].index(cell)) // 2 for cell in set(starts)}
    return [(cell, i in middles) for i, cell in enumerate(starts)]
