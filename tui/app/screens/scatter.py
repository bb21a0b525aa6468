"""A scatter plot of two values of the rollouts. A point opens its rollouts.

It has one character per cell, heavier for more rollouts, and a cursor that goes from point to point.
"""

from __future__ import annotations

import math

from ....engine.runs.errors import RecordError
from ....engine.runs.read.reader import RunReader
from ....engine.runs.search.query import EVERYTHING, Query
from ....engine.runs.search.scatter import Axis, Cloud
from ...format import count
from ..curves import labels, ticks
from ..data import Reads
from ..destinations import Stepper, Trajectories
from ..widgets.chart import Chart
from ..widgets.frame import Box, SplitPart, split
from ..widgets.list_panels import Preview
from ..widgets.pane import Line, Pane
from .base import GrowingScreen
from .dialogs import MetricPicker

_MOST = (200, 80)
"""Maximum number of columns and rows of cells."""
_SIGNS = "·•●▒▓█"
"""Signs of cells: the first for one rollout, the others for more and more. From ▒ on they fill wide cells."""
MARGIN = 12
"""Maximum width of the labels and the border left of the plot, in cells."""


class ScatterChart(Chart):
    """The points of a cloud. A click on a point moves the cursor there."""

    name = "scatter"
    cloud: Cloud | None = None
    cursor = (0, 0)

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

    def point(self, query: Query) -> Query | None:
        """Return the rollouts of a query at the point under the cursor."""
        cloud, (x, y) = self.cloud, self.cursor
        if cloud is None or (x, y) not in cloud.cells:
            return None
        terms = [f"({query.filter})"] if query.filter else []
        return Query(" and ".join([*terms, cloud.x.term(x), cloud.y.term(y)]), query.search)

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
            if n and (centre or level >= 3):
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
        return " · ".join([*ranges, count(n, "rollout")])


def _spread(cells: int, room: int) -> list[tuple[int, bool]]:
    """Return the cell of each of `room` characters, and whether the character is the middle one of its cell."""
    starts = [i * cells // room for i in range(room)]
    middles = {(starts.index(cell) + room - 1 - starts[::-1].index(cell)) // 2 for cell in set(starts)}
    return [(cell, i in middles) for i, cell in enumerate(starts)]


class ScatterScreen(GrowingScreen):
    """Cells are counted on the reading thread, and again after a resize."""

    view = "scatter"

    def __init__(self, reads: Reads, query: Query = EVERYTHING) -> None:
        super().__init__()
        self.reads, self.list_query = reads, query
        self.names: list[str] = []
        self.x, self.y = "", "reward"
        self._grid = (0, 0)
        self.plot, self.preview = ScatterChart(), Preview()

    def panes(self) -> list[Pane]:
        return [self.plot, self.preview]

    def plan(self, width: int, height: int) -> list[Box]:
        left, boxes = width, []
        if width >= 120:
            (_, left), (x, w) = split(width, [SplitPart(80, 2.6), SplitPart(40, 1.0, 60)])
            boxes.append(Box("preview", x, 0, w, height))
        size = (max(2, min(_MOST[0], left - 4 - MARGIN)), max(2, min(_MOST[1], height - 4)))
        if size != self._grid:
            self._grid = size
            self.call_after_refresh(self.reread)
        return [Box("scatter", 0, 0, left, height), *boxes]

    def header(self, width: int) -> tuple[Line, Line]:
        p, cloud = self.palette, self.plot.cloud
        left = self.heading(f"{self.y} over {self.x}" if self.x else "scatter", width)
        return left, Line(p).add(count(cloud.rollouts, "rollout") if cloud is not None else "", p.muted)

    async def read(self) -> None:
        query, grid, y = self.list_query, self._grid, self.y
        axes = [self.x] if self.x else ["tokens", "turns", "n"]

        def found(reader: RunReader) -> tuple[list[str], Cloud]:
            clouds = (reader.rollouts.scatter(query, x, y, grid) for x in axes)
            return reader.rollouts.values(), next((c for c in clouds if c.cells), Cloud(Axis(axes[0]), Axis(y)))

        try:
            self.names, cloud = await self.reads.later(found)
        except RecordError as error:
            self.plot.show(None, str(error))
            return
        self.x = cloud.x.name
        self.plot.show(cloud, f"No rollout has numbers for {self.x} and {y}. m chooses others.")
        self._moved()

    def _moved(self) -> None:
        cloud = self.plot.cloud
        first = cloud.cells.get(self.plot.cursor) if cloud is not None else None
        rows = self.reads.now.rollouts.rows([first[1]]) if first is not None else []
        self.preview.put(rows[0] if rows else None)

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_along(self, by: int) -> None:
        self._go(by, 0)

    def action_scroll(self, by: int) -> None:
        self._go(0, -by)

    def action_page(self, by: int) -> None:
        for _ in range(8):
            self.plot.move(0, -by)
        self._moved()

    def _go(self, across: int, up: int) -> None:
        if self.plot.move(across, up):
            self._moved()

    def action_open(self) -> None:
        query, cloud = self.plot.point(self.list_query), self.plot.cloud
        if query is not None and cloud is not None:
            self.shell.open(Stepper(self.reads.path, cloud.cells[self.plot.cursor][1], query))

    def action_trajectories(self) -> None:
        query = self.plot.point(self.list_query)
        if query is not None:
            self.shell.open(Trajectories(self.reads.path, query))

    def action_choose(self) -> None:
        def chosen(names: tuple[str, ...] | None) -> None:
            if names:
                self.x, self.y = names[0], names[1] if len(names) > 1 else self.y
                self.reread()

        title = "Two values: along x, then up"
        self.app.push_screen(MetricPicker(self.names, [n for n in (self.x, self.y) if n], title), chosen)

    def on_pane_hit(self, message: Pane.Hit) -> None:
        match message.what:
            case ("point", tuple(cell)):
                same = cell == self.plot.cursor
                self.plot.cursor = cell
                self.plot.changed()
                self._moved()
                if same:
                    self.action_open()
