"""The chart of the dashboard with its keys (metrics, steps, smoothing, axes), and the metric picker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from textual import events
from textual.binding import Binding, BindingType

from ....configs import metric_names as metric
from ....configs.metric_names import meaning
from ....engine.runs.read.reader import RunReader
from ..data import Reads
from ..live_charts import KL, KL_HEADING, Along, ChartView, along, kl_series, metrics_of, series_of
from ..live_data import Points, Reading, read_curves
from ..widgets.chart import Chart
from ..widgets.line import Line
from ..widgets.pane import Pane
from .base import AppScreen
from .dialogs import Modal
from .following import FollowsRun

_MOST_ROWS = 26


def matching(names: Sequence[str], typed: str) -> list[str]:
    """Return names that contain every typed word. Names with the first word at the start of a part come first."""
    words = typed.casefold().split()
    found = [n for n in names if all(w in n.casefold() for w in words)]
    if not words:
        return found

    def rank(name: str) -> tuple[bool, int]:
        position = name.casefold().find(words[0])
        return (position > 0 and name[position - 1].isalnum(), position)

    return sorted(found, key=rank)


class PickerPane(Pane):
    """The typed text, the matching names and a description of the current one."""

    def __init__(self, names: Sequence[str], chosen: Sequence[str]) -> None:
        super().__init__("picker")
        self.names = list(names)
        self.chosen = list(chosen)
        self.typed = ""
        self.cursor = 0
        self.touched = False
        """Whether the user chose anything by hand. Only then does a typed name join the chosen ones."""

    @property
    def found(self) -> list[str]:
        """Return the choices. If nothing is typed, chosen names come first."""
        if self.typed:
            return matching(self.names, self.typed)
        return [*self.chosen, *(n for n in self.names if n not in self.chosen)]

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        head = Line(p).add("› ", p.accent)
        head.add(self.typed, p.strong, most=max(1, width - 4)).add("▏", p.accent)
        if not self.typed:
            head.offer(Line(p).add(" type a part of a name", p.faint), width)
        lines = [head]
        found = self.found
        shows_meaning = height >= 4
        room = max(1, height - 1 - shows_meaning)
        first = max(0, min(self.cursor - room // 2, len(found) - room))
        for index, name in enumerate(found[first : first + room], first):
            selected = index == self.cursor
            number = self.chosen.index(name) + 1 if name in self.chosen else 0
            line = Line(p).add("▸" if selected else " ", p.accent)
            line.add(str(number) if number else "·", p.key if number else p.faint, cells=3, align=">").gap()
            line.add(name, p.strong if selected or number else p.text, cells=max(1, width - line.width))
            line.hits = [(0, width, index)]
            lines.append(line)
        if shows_meaning and self.cursor < len(found):
            lines.append(Line(p).gap(min(5, width)).add(meaning(found[self.cursor]), p.faint, cells=max(0, width - 5)))
        if not found:
            lines.append(Line(p).add("no metric has this name", p.faint, cells=width))
        return lines


class MetricPicker(Modal[tuple[str, ...] | None]):
    """Dismissed with the chosen metrics in order, or with None on escape."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", show=False),
        Binding("enter", "accept", show=False),
        Binding("space,tab", "check", show=False),
        Binding("down,ctrl+n", "move(1)", show=False),
        Binding("up,ctrl+p", "move(-1)", show=False),
        Binding("pagedown", "move(10)", show=False),
        Binding("pageup", "move(-10)", show=False),
        Binding("shift+up", "earlier(-1)", show=False),
        Binding("shift+down", "earlier(1)", show=False),
        Binding("backspace", "rub_out", show=False),
        Binding("ctrl+u", "clear", show=False),
    ]

    def __init__(self, names: Sequence[str], chosen: Sequence[str], title: str = "Metrics of the chart") -> None:
        self.pane, self._title = PickerPane(names, chosen), title
        super().__init__(self.pane, widest=64)

    def rows(self, width: int) -> int:
        return min(len(self.pane.names) + 2, _MOST_ROWS)

    def heading(self) -> Line:
        return Line(self.pane.palette).add(self._title, self.pane.palette.title)

    def hints(self, width: int) -> Line:
        p = self.pane.palette
        line = Line(p)
        for key, label in (("esc", "cancel"), ("enter", "show"), ("space", "choose"), ("shift+↑↓", "order")):
            line.offer(Line(p).add(key, p.key).add(f" {label}   ", p.muted), width)
        return line

    def on_key(self, event: events.Key) -> None:
        if event.character and event.character.isprintable() and event.character != " ":
            event.stop()
            event.prevent_default()
            self._type(self.pane.typed + event.character)

    def _type(self, text: str) -> None:
        self.pane.typed, self.pane.cursor = text, 0
        self.pane.changed()

    def action_rub_out(self) -> None:
        self._type(self.pane.typed[:-1])

    def action_clear(self) -> None:
        self._type("")

    def action_move(self, by: int) -> None:
        self.pane.cursor = max(0, min(self.pane.cursor + by, len(self.pane.found) - 1))
        self.pane.changed()

    def action_check(self) -> None:
        pane = self.pane
        if pane.cursor >= len(pane.found):
            return
        name = pane.found[pane.cursor]
        pane.touched = True
        if name in pane.chosen:
            pane.chosen.remove(name)
        else:
            pane.chosen.append(name)
        if pane.typed:
            self._type("")
            pane.cursor = pane.found.index(name)
        pane.changed()

    def action_earlier(self, by: int) -> None:
        pane = self.pane
        name = pane.found[pane.cursor] if pane.cursor < len(pane.found) else ""
        if name in pane.chosen and not pane.typed:
            index = pane.chosen.index(name)
            to = max(0, min(index + by, len(pane.chosen) - 1))
            pane.chosen.insert(to, pane.chosen.pop(index))
            pane.cursor = to
            pane.changed()

    def action_accept(self) -> None:
        """Accept the chosen names, or a typed one together with the names chosen by hand."""
        pane = self.pane
        if pane.typed and pane.cursor < len(pane.found):
            name = pane.found[pane.cursor]
            kept = [n for n in pane.chosen if n != name] if pane.touched else []
            self.dismiss((*kept, name))
        elif pane.chosen:
            self.dismiss(tuple(pane.chosen))
        else:
            self.dismiss(tuple(pane.found[pane.cursor : pane.cursor + 1]) or None)

    def on_pane_hit(self, message: Pane.Hit) -> None:
        if isinstance(message.what, int):
            self.pane.cursor = message.what
            self.action_check()


class WindowKeys(AppScreen):
    """Zooms and pans the window of steps of `chart_view`. Subclasses display it in `look_at`."""

    chart_view: ChartView

    def look_at(self, view: ChartView) -> None:
        raise RuntimeError(f"{type(self).__name__} must implement look_at")

    def ends(self) -> tuple[float, float]:
        raise RuntimeError(f"{type(self).__name__} must implement ends")

    def action_zoom(self, factor: float) -> None:
        self.look_at(self.chart_view.zoomed(factor, *self.ends()))

    def action_zoom_all(self) -> None:
        self.look_at(replace(self.chart_view, window=None))

    def action_pan(self, by: int) -> None:
        if self.chart_view.window is not None:
            self.look_at(self.chart_view.panned(by, *self.ends()))


CurvesRead = tuple[ChartView, dict[str, Points], dict[str, Points], Along]
"""The view for which curves were read, the curves, their parts in its window, and its x axis."""


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

    def read_more(self, reader: RunReader, reading: Reading) -> CurvesRead:
        view = self.chart_view
        shown = replace(view, kind=reading.kind)
        names = metrics_of((*shown.chart.metrics, *KL), reading.names)
        near = read_curves(reader, names, view.window) if view.window is not None else {}
        return view, read_curves(reader, names), near, self._along(reader, reading, shown)

    @staticmethod
    def _along(reader: RunReader, reading: Reading, view: ChartView) -> Along:
        times = reader.metrics.step_times() if view.axis == "time" else []
        tokens = reader.metrics.points(metric.TOKENS_TOTAL, max_points=400) if view.axis == "tokens" else []
        return along(view.axis, reading.kind, times, tokens, reading.info.created)

    def take_curves(self, shown: Reading, extra: CurvesRead) -> None:
        """Store the curves, except those of a window or axis that changed during the read."""
        self.chart_view = replace(self.chart_view, kind=shown.kind)
        view, curves, near, x = extra
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
        wait = "not recorded; m: next chart" if shown.is_dump else "appears after the first step; m: next chart"
        self.chart.put(view.heading, series_of(names, curves, shown.latest, self.x), wait)
        reason = "not recorded" if shown.is_dump else "KL appears after the first update"
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
