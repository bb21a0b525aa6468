"""The chart of the dashboard with its keys (metrics, steps, smoothing, axes), and the reading of an active run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

from ....configs import metric_names as metric
from ....engine.runs.control.status import look
from ....engine.runs.errors import RecordError
from ....engine.runs.read.reader import RunReader
from ..data import Reads
from ..live_charts import KL, KL_HEADING, Along, ChartView, along, kl_series, metrics_of, series_of
from ..live_data import FOLLOW_SECONDS, Points, Reading, read, read_curves
from ..widgets.chart import Chart
from .base import AppScreen
from .dialogs import MetricPicker

_LOG_LINES = 60
CurvesRead = tuple[ChartView, dict[str, Points], dict[str, Points], Along]
"""The view for which curves were read, the curves, their parts in its window, and its x axis."""


class WindowKeys(AppScreen):
    """Zooms and pans the window of steps of `chart_view`. Subclasses display it in `look_at`."""

    chart_view: ChartView
    look_at: Callable[[ChartView], None]
    ends: Callable[[], tuple[float, float]]

    def action_zoom(self, factor: float) -> None:
        self.look_at(self.chart_view.zoomed(factor, *self.ends()))

    def action_zoom_all(self) -> None:
        self.look_at(replace(self.chart_view, window=None))

    def action_pan(self, by: int) -> None:
        if self.chart_view.window is not None:
            self.look_at(self.chart_view.panned(by, *self.ends()))


class FollowsRun(AppScreen):
    """A screen that follows a run: a thread reads it in `read`, every second while the run is active. For an ended run
    only a few small files are checked, because someone may resume it. Subclasses display the data in `show`."""

    read: Callable[[RunReader], tuple[Reading, CurvesRead]]
    show: Callable[[Reading, CurvesRead], None]
    show_problem: Callable[[str], None]

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads
        self.shown: Reading | None = None
        self._busy = False
        self._outdated = False
        """Whether the read in progress is outdated, and must be repeated before anything is shown."""

    def on_mount(self) -> None:
        self.run_worker(self._update(), group="follow")
        self.set_interval(FOLLOW_SECONDS, self.follow)

    def on_screen_resume(self) -> None:
        if self.shown is not None:
            self.follow()

    def follow(self) -> None:
        if self.app.screen is self and not self._busy:
            self.run_worker(self._refresh_status(), group="follow")

    def changed(self) -> None:
        """Read again after a change by this screen. A read in progress may predate the change."""
        self._outdated = True
        self.follow()

    async def _refresh_status(self) -> None:
        before = self.shown.info if self.shown is not None else None
        if before is not None and not before.active and before.mode != "dump":
            now = await asyncio.to_thread(look, self.reads.path)
            if (before.status, before.ended, before.name) == (now.status, now.ended, now.name):
                return  # the run neither resumed nor ended in another way
        await self._update()

    async def _update(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            while True:
                self._outdated = False
                shown, curves = await self.reads.later(self.read)
                if not self._outdated:
                    break
            self.shown = shown
        except RecordError as error:
            self.show_problem(str(error))
            return
        finally:
            self._busy = False
        if self.is_attached:
            self.show(shown, curves)


class ChartKeys(WindowKeys, FollowsRun):
    """Loads the requested curves: all their steps, and the window in more detail."""

    def __init__(self, reads: Reads) -> None:
        super().__init__(reads)
        self.chart_view = ChartView()
        self.curves: dict[str, Points] = {}
        """Whole curves by metric."""
        self.near: dict[str, Points] = {}
        """The part of each curve in the window, in more detail."""
        self.x = Along()
        self.chart = Chart("chart")
        self.kl = Chart("kl")

    def read(self, reader: RunReader) -> tuple[Reading, CurvesRead]:
        reading, view = read(reader, _LOG_LINES), self.chart_view
        shown = replace(view, kind=reading.kind)
        names = metrics_of((*shown.chart.metrics, *KL), reading.names)
        near = read_curves(reader, names, view.window) if view.window is not None else {}
        return reading, (view, read_curves(reader, names), near, self._along(reader, reading, shown))

    @staticmethod
    def _along(reader: RunReader, reading: Reading, view: ChartView) -> Along:
        times = reader.metrics.step_times() if view.axis == "time" else []
        tokens = reader.metrics.points(metric.TOKENS_TOTAL, max_points=400) if view.axis == "tokens" else []
        return along(view.axis, reading.kind, times, tokens, reading.info.created)

    def take_curves(self, shown: Reading, read: CurvesRead) -> None:
        """Store the curves, except those of a window or axis that changed during the read."""
        self.chart_view = replace(self.chart_view, kind=shown.kind)
        view, curves, near, x = read
        self.curves.update(curves)
        if view.window == self.chart_view.window:
            self.near = near
        if view.axis == self.chart_view.axis:
            self.x = x
        self.show_chart()
        self.run_worker(self._prefetch(shown.names), group="prefetch", exclusive=True)

    async def _prefetch(self, recorded: Sequence[str]) -> None:
        following = self.chart_view.next_chart(recorded)
        names = [n for n in metrics_of(following.chart.metrics, recorded) if n not in self.curves]
        if names and self.is_attached:
            self.curves.update(await self.reads.later(lambda reader: read_curves(reader, names)))

    def look_at(self, view: ChartView) -> None:
        before, self.chart_view = self.chart_view, view
        if self.shown is None:
            return
        names = metrics_of((*view.chart.metrics, *KL), self.shown.names)
        # reads a few hundred rows on this thread, because a second paint would be slower
        self.near = read_curves(self.reads.now, names, view.window) if view.window is not None else {}
        self.curves.update(read_curves(self.reads.now, [n for n in names if n not in self.curves]))
        if before.axis != view.axis:
            self.x = self._along(self.reads.now, self.shown, view)
        self.show_chart()

    def show_chart(self) -> None:
        shown, view = self.shown, self.chart_view
        if shown is None:
            return
        curves = {**self.curves, **self.near}
        for chart in (self.chart, self.kl):
            chart.x_name, chart.x_whole = self.x.name, self.x.whole
            chart.window = None if view.window is None else (self.x(view.window[0]), self.x(view.window[1]))
        self.chart.smoothing, self.chart.log = view.weight, view.log
        self.chart.panels = view.chart.panels
        names = metrics_of(view.chart.metrics, shown.names)
        wait = "not recorded; m: next chart" if shown.complete else "appears after the first step; m: next chart"
        self.chart.put(view.heading, series_of(names, curves, shown.latest, self.x), wait)
        reason = "not recorded" if shown.complete else "KL appears after the first update"
        reason = "KL is not measured: beta is 0" if shown.latest.get(metric.BETA) == 0 else reason
        self.kl.put(KL_HEADING, kl_series(shown, curves, self.x), reason)

    def ends(self) -> tuple[float, float]:
        ends = [points[-1][0] for points in self.curves.values() if points]
        return 1.0, float(max([self.shown.info.step if self.shown else 1, *ends], default=1))

    def action_next_chart(self) -> None:
        self.look_at(self.chart_view.next_chart(self.shown.names if self.shown else ()))
        self.shell.memory.run(self.reads.path.name)["chart"] = self.chart_view.at

    def action_choose_metrics(self) -> None:
        names = list(self.shown.names) if self.shown else []
        if not names:
            self.say("No metric was recorded yet.")
            return

        def answer(chosen: tuple[str, ...] | None) -> None:
            if chosen is not None:
                self.look_at(replace(self.chart_view, chosen=chosen))

        self.app.push_screen(MetricPicker(names, metrics_of(self.chart_view.chart.metrics, names)), answer)

    def action_smooth(self) -> None:
        self.look_at(replace(self.chart_view, smoothing=self.chart_view.smoothing + 1))

    def action_log_scale(self) -> None:
        self.look_at(replace(self.chart_view, log=not self.chart_view.log))

    def action_next_axis(self) -> None:
        self.look_at(replace(self.chart_view, x=self.chart_view.x + 1))
        if self.x.name in ("step", "request") and self.chart_view.axis != "step":
            self.say(f"The record has no {self.chart_view.axis}. The axis shows {self.x.name}s.")
