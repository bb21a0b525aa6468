"""A scatter plot of two values of the rollouts. A point opens its rollouts."""

from __future__ import annotations

from ....engine.runs.errors import RecordError
from ....engine.runs.read.reader import RunReader
from ....engine.runs.search.query import EVERYTHING, Query
from ....engine.runs.search.scatter import Axis, Cloud
from ...format import count
from ..bindings import SCATTER
from ..data import Reads
from ..destinations import Stepper, Trajectories
from ..widgets.frame import Box, SplitPart, split
from ..widgets.line import Line
from ..widgets.list_panels import Preview
from ..widgets.pane import Pane
from ..widgets.scatter import MARGIN, ScatterChart
from .base import GrowingScreen
from .chart_keys import MetricPicker

_MOST = (200, 80)
"""Maximum number of columns and rows of cells."""


class ScatterScreen(GrowingScreen):
    """Cells are counted on the reading thread, and again after a resize."""

    view = SCATTER

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
            self.call_after_refresh(self._read)
        return [Box("scatter", 0, 0, left, height), *boxes]

    def header(self, width: int) -> tuple[Line, Line]:
        p, cloud = self.palette, self.plot.cloud
        left = self.heading(f"{self.y} over {self.x}" if self.x else "scatter", width)
        return left, Line(p).add(f"{count(cloud.rollouts)} rollouts" if cloud is not None else "", p.muted)

    def grown(self) -> None:
        self._read()

    def _read(self) -> None:
        if self.is_attached:
            self.run_worker(self._start(), group="scatter", exclusive=True)

    async def _start(self) -> None:
        query, grid, y = self.list_query, self._grid, self.y
        axes = [self.x] if self.x else ["tokens", "turns", "n"]

        def read(reader: RunReader) -> tuple[list[str], Cloud]:
            clouds = (reader.rollouts.scatter(query, x, y, grid) for x in axes)
            return reader.rollouts.values(), next((c for c in clouds if c.cells), Cloud(Axis(axes[0]), Axis(y)))

        try:
            self.names, cloud = await self.reads.later(read)
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
        self.frame.refresh_lines()

    @property
    def point(self) -> Query | None:
        """The rollouts of the point under the cursor."""
        cloud, (x, y) = self.plot.cloud, self.plot.cursor
        if cloud is None or (x, y) not in cloud.cells:
            return None
        terms = [f"({self.list_query.filter})"] if self.list_query.filter else []
        return Query(" and ".join([*terms, cloud.x.term(x), cloud.y.term(y)]), self.list_query.search)

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
        query, cloud = self.point, self.plot.cloud
        if query is not None and cloud is not None:
            self.shell.open(Stepper(self.reads.path, cloud.cells[self.plot.cursor][1], query))

    def action_trajectories(self) -> None:
        if self.point is not None:
            self.shell.open(Trajectories(self.reads.path, self.point))

    def action_choose(self) -> None:
        def chosen(names: tuple[str, ...] | None) -> None:
            if names:
                self.x, self.y = names[0], names[1] if len(names) > 1 else self.y
                self._read()

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
