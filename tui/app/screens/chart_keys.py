"""The chart of the dashboard and its keys: which metrics, which steps, how smooth, on which axes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ....configs import metric_names as metric
from ....engine.runs.read.reader import RunReader
from ..data import Reads
from ..live_charts import KL, KL_HEADING, Along, ChartView, along, kl_series, metrics_of, series_of
from ..live_data import Points, Reading, read_curves
from ..widgets.chart import Chart
from .following import FollowsRun
from .metric_picker import MetricPicker


class ChartKeys(FollowsRun):
    """Loaded curves: all steps of the requested ones, and the window in more detail."""

    def __init__(self, reads: Reads) -> None:
        super().__init__(reads)
        self.chart_view = ChartView()
        self.curves: dict[str, Points] = {}
        """Whole curves, by metric."""
        self.near: dict[str, Points] = {}
        """The part of them that the window shows."""
        self.x = Along()
        self.chart = Chart("chart")
        self.kl = Chart("kl")

    def _names(self, names: Any) -> list[str]:
        return metrics_of((*self.chart_view.chart.metrics, *KL), names)

    def also(self) -> Callable[[RunReader, Reading], Any]:
        view = self.chart_view

        def curves(reader: RunReader, reading: Reading) -> tuple[ChartView, Any, Any, Along]:
            shown = replace(view, kind=reading.kind)
            names = metrics_of((*shown.chart.metrics, *KL), reading.names)
            near = read_curves(reader, names, view.window) if view.window is not None else {}
            return view, read_curves(reader, names), near, self._along(reader, reading, shown)

        return curves

    @staticmethod
    def _along(reader: RunReader, reading: Reading, view: ChartView) -> Along:
        times = reader.metrics.step_times() if view.axis == "time" else []
        tokens = reader.metrics.points(metric.TOKENS_TOTAL, max_points=400) if view.axis == "tokens" else []
        return along(view.axis, reading.kind, times, tokens, reading.info.created)

    def take_curves(self, extra: tuple[ChartView, dict[str, Points], dict[str, Points], Along]) -> None:
        """Store the curves, unless the window or axis changed during the read."""
        assert self.shown is not None
        self.chart_view = replace(self.chart_view, kind=self.shown.kind)
        asked, whole, near, x = extra
        self.curves.update(whole)
        if asked.window == self.chart_view.window:
            self.near = near
        if asked.axis == self.chart_view.axis:
            self.x = x
        self.show_chart()
        self.run_worker(self._prefetch(), group="prefetch", exclusive=True)

    async def _prefetch(self) -> None:
        if self.shown is None:
            return
        following = self.chart_view.next_chart(self.shown.names)
        names = [n for n in metrics_of(following.chart.metrics, self.shown.names) if n not in self.curves]
        if names and self.is_attached:
            self.curves.update(await self.reads.later(lambda reader: read_curves(reader, names)))

    def look_at(self, view: ChartView) -> None:
        before, self.chart_view = self.chart_view, view
        if self.shown is None:
            return
        names = self._names(self.shown.names)
        # a few hundred rows are read at once: a second paint would be slower
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
        wait = "not recorded; m: next chart" if shown.is_dump else "appears with the first step; m: next chart"
        self.chart.put(view.heading, series_of(names, curves, shown.latest, self.x), wait)
        why = "not recorded" if shown.is_dump else "KL appears with the first update"
        why = "KL is not measured: beta is 0" if shown.latest.get(metric.BETA) == 0 else why
        self.kl.put(KL_HEADING, kl_series(shown, curves, self.x), why)

    def _ends(self) -> tuple[float, float]:
        ends = [points[-1][0] for points in self.curves.values() if points]
        return 1.0, float(max([self.shown.step if self.shown else 1, *ends], default=1))

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
            self.say(f"This record does not know its {self.chart_view.axis}: {self.x.name}s are shown.")

    def action_zoom_in(self) -> None:
        self.look_at(self.chart_view.zoomed(0.5, *self._ends()))

    def action_zoom_out(self) -> None:
        self.look_at(self.chart_view.zoomed(2.0, *self._ends()))

    def action_zoom_all(self) -> None:
        self.look_at(replace(self.chart_view, window=None))

    def action_pan(self, by: int) -> None:
        if self.chart_view.window is not None:
            self.look_at(self.chart_view.panned(by, *self._ends()))
