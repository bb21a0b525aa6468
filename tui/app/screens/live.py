"""The dashboard of a run: is it learning, from which reward, is it cheating, what holds it. Follows a run that goes on.

The record is read in a thread, once a second while the run goes on, and the screen is redrawn at most four times a
second; a finished run is read once.
"""

from __future__ import annotations

import time
from typing import Any

from ....engine.runs.control import Command, request
from ....engine.runs.errors import RecordError
from ....engine.runs.query import Query
from ....engine.runs.reader import RunReader
from ....engine.runs.types import Event
from ...format import count, duration, number, percent, progress
from ...status import status_sign, status_style
from ..bindings import LIVE, bindings
from ..data import Reads
from ..destinations import Trajectories
from ..live_data import (
    CHARTS,
    FOLLOW_SECONDS,
    KL,
    Points,
    Snapshot,
    chart_names,
    chart_series,
    kl_series,
    read_curves,
    read_snapshot,
)
from ..widgets.action_bars import ActionBars
from ..widgets.alerts import Alerts
from ..widgets.chart import SMOOTHING, Chart
from ..widgets.component_table import ComponentTable
from ..widgets.frame import Box, Part, split
from ..widgets.line import Line
from ..widgets.log_panel import LogPanel
from ..widgets.pane import Pane
from ..widgets.policy_panel import PolicyPanel
from ..widgets.snapshots_panel import SnapshotsPanel
from ..widgets.speed_panel import SpeedPanel
from .base import AppScreen

_LOG_LINES = 60


class LiveScreen(AppScreen):
    """Chart and components, actions, policy and snapshots, speed and log, alerts."""

    view = LIVE
    BINDINGS = bindings(LIVE)

    def __init__(self, reads: Reads) -> None:
        super().__init__()
        self.reads = reads
        self.shown: Snapshot | None = None
        self.chart_at = 0
        self.chosen: tuple[str, ...] = ()
        self.window: tuple[float, float] | None = None
        self.smoothing = 0
        self._seen_answer: int | None = None
        self.curves: dict[str, Points] = {}
        """Whole curves, by metric."""
        self.near: dict[str, Points] = {}
        """The part of them that the window shows."""
        self._busy = False
        self.chart = Chart("chart")
        self.kl = Chart("kl")
        self.components = ComponentTable()
        self.actions = ActionBars()
        self.policy = PolicyPanel()
        self.snapshots = SnapshotsPanel()
        self.speed = SpeedPanel()
        self.log_panel = LogPanel()
        self.alerts = Alerts()

    def panes(self) -> list[Pane]:
        """All parts; which are on screen depends on its size."""
        return [
            self.chart, self.kl, self.components, self.actions, self.policy, self.snapshots, self.speed, self.log_panel,
            self.alerts,
        ]  # fmt: skip

    def plan(self, width: int, height: int) -> list[Box]:
        """Rows from the top. What goes first when there is no room: log, speed, snapshots, policy, actions."""
        if width < 64 or height < 14:
            return self._small(width, height)
        alerts = 4 if height < 30 else 5 if height < 45 else 7
        rows = [Part(9, 1.5), Part(7, 0.55, 13)]
        extra = height >= 38
        if extra:
            rows.append(Part(8, 0.3, 10))
        rows.append(Part(alerts, 0.0))
        tops = split(height, rows)
        boxes: list[Box] = []
        (y, h) = tops[0]
        table = 44 if width < 110 else 60 if width < 150 else min(86, int(width * 0.42))
        table = min(table, width - 34)
        if width < 80:
            table = 38
        (cx, cw), (tx, tw) = split(width, [Part(width - table + 1, 0), Part(table, 0)])
        boxes.append(Box("chart", cx, y, cw, h))
        need = len(self.components.names()) + 5
        if h >= need + 7:
            boxes += [Box("components", tx, y, tw, need), Box("kl", tx, y + need - 1, tw, h - need + 1)]
        else:
            boxes.append(Box("components", tx, y, tw, h))
        (y, h) = tops[1]
        if width >= 100:
            parts = [Part(cw, 0.0), Part(30, 1.0), Part(26, 0.7)]
            if width < 110 or tw < 58:
                parts = [Part(34, 1.2), Part(32, 1.0), Part(30, 0.8)]
            (ax, aw), (px, pw), (sx, sw) = split(width, parts)
            boxes += [Box("actions", ax, y, aw, h), Box("policy", px, y, pw, h), Box("snapshots", sx, y, sw, h)]
        else:
            boxes += [Box("actions", cx, y, cw, h), Box("policy", tx, y, tw, h)]
        if extra:
            (y, h) = tops[2]
            boxes += [Box("speed", cx, y, cw, h), Box("log", tx, y, tw, h)]
        (y, h) = tops[-1]
        boxes.append(Box("alerts", 0, y, width, h))
        return boxes

    @staticmethod
    def _small(width: int, height: int) -> list[Box]:
        if height < 10:
            return [Box("chart", 0, 0, width, height)]
        half = max(6, height // 2)
        boxes = [Box("chart", 0, 0, width, half)]
        if height - half >= 9:
            (y1, h1), (y2, h2) = split(height - half + 1, [Part(6, 1.0), Part(4, 0.3)])
            return [*boxes, Box("components", 0, half - 1 + y1, width, h1), Box("alerts", 0, half - 1 + y2, width, h2)]
        return [*boxes, Box("components", 0, half - 1, width, height - half + 1)]

    def header(self, width: int) -> tuple[Line, Line]:
        """What runs on the left; how far it is on the right."""
        p = self.palette
        left = Line(p).add(self.reads.path.name, p.title, cells=min(20, len(self.reads.path.name)))
        if self.shown is None:
            return left, Line(p).add("reading…", p.faint)
        info = self.shown.info
        for text in (info.mode, info.environment, info.model, info.name):
            if text and left.width + len(text) + 3 <= width * 0.45:
                left.add(" · ", p.faint).add(text, p.muted)
        right = Line(p).add(f"{status_sign(info.status)} {info.status}", status_style(p, info.status))
        if width >= 130 and info.status in ("starting", "running") and self.shown.phase:
            right.add(f" · {self.shown.phase}", p.muted, cells=min(len(self.shown.phase) + 3, 40))
        step = max(info.step, int(self.shown.latest.get("step", 0)))
        right.add("  step ", p.muted).add(count(step), p.strong)
        if info.total_steps:
            share = step / info.total_steps
            right.add(f"/{count(info.total_steps)} ", p.muted)
            if width >= 90:
                right.add(progress(share, 14 if width < 150 else 24), p.accent).gap()
            right.add(percent(min(share, 1.0)), p.text)
        seconds = self.shown.latest.get("time/step")
        if seconds and width >= 110:
            right.add(f"  {number(seconds)} s/step", p.muted)
            if info.total_steps and info.status == "running" and step < info.total_steps:
                right.add("  ETA ", p.muted).add(duration((info.total_steps - step) * seconds), p.text)
        return left, right

    # -- reading ------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Read now; then again while the run goes on."""
        self._active = "chart"
        kept = self.shell.memory.run(self.reads.path.name)
        at = kept.get("chart", 0)
        self.chart_at = at if isinstance(at, int) and 0 <= at < len(CHARTS) else 0
        self.run_worker(self._update(), group="live")
        self.set_interval(FOLLOW_SECONDS, self._tick)

    def on_screen_resume(self) -> None:
        """Back from another screen: what happened meanwhile."""
        if self.shown is not None:
            self._tick()

    def _tick(self) -> None:
        if self.app.screen is not self or self._busy:
            return
        if self.shown is None or self.shown.info.active:
            self.run_worker(self._update(), group="live")

    async def _update(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            wanted, window = (*self._wanted(), *KL), self.window

            def read(reader: RunReader) -> tuple[Snapshot, dict[str, Points], dict[str, Points]]:
                made = read_snapshot(reader, _LOG_LINES)
                names = chart_names(wanted, made.names)
                near = read_curves(reader, names, window) if window is not None else {}
                return made, read_curves(reader, names), near

            self.shown, whole, near = await self.reads.later(read)
        except RecordError as error:
            self.chart.put("", [], str(error))
            return
        finally:
            self._busy = False
        self.curves.update(whole)
        if window == self.window:
            self.near = near
        if self.is_attached:
            self._show()
            self.run_worker(self._prefetch(), group="prefetch", exclusive=True)

    def _wanted(self) -> tuple[str, ...]:
        return self.chosen or CHARTS[self.chart_at][1]

    async def _prefetch(self) -> None:
        """The curves of the other charts, one by one while nobody waits, so that they are there when asked for."""
        if self.shown is None:
            return
        for _, wanted in CHARTS:
            names = [n for n in chart_names(wanted, self.shown.names) if n not in self.curves]
            if names and self.is_attached:
                self.curves.update(await self.reads.later(lambda reader, names=names: read_curves(reader, names)))

    def _reread(self) -> None:
        """The chart shows something else: read what is not here (a part of a curve is read more finely than all of it).

        Some hundred rows a curve are read by key, at once: a second painting would come later than they do.
        """
        names = chart_names((*self._wanted(), *KL), self.shown.names if self.shown else [])
        self.near = read_curves(self.reads.now, names, self.window) if self.window is not None else {}
        self.curves.update(read_curves(self.reads.now, [n for n in names if n not in self.curves]))
        self._show_chart()

    def _show(self) -> None:
        shown = self.shown
        assert shown is not None
        before = len(self.components.names())
        self.components.put(shown.latest, shown.trends)
        if len(self.components.names()) != before:
            self.frame.replan()
        self._show_chart()
        self.actions.put(shown.latest, shown.trends)
        self.policy.put(shown.latest, shown.trends, shown.betas)
        self.snapshots.put(shown.latest, shown.versions)
        self.speed.put(shown.latest)
        self.log_panel.put(shown.log)
        alerts = shown.alerts[::-1] + shown.answers[::-1]
        if shown.problem:
            alerts.insert(0, Event("record", shown.problem))
        if shown.info.error:
            alerts.insert(0, Event("error", shown.info.error, step=shown.info.step))
        self.alerts.put(alerts)
        self._acknowledge(shown.answers)
        self.frame.refresh_header()

    def _acknowledge(self, answers: list[Event]) -> None:
        """Say what the run answered since the screen was opened."""
        last = answers[-1].id if answers else 0
        if self._seen_answer is not None and last > self._seen_answer:
            self.say(answers[-1].message)
        self._seen_answer = last

    def _show_chart(self) -> None:
        shown = self.shown
        if shown is None:
            return
        heading = ", ".join(self.chosen) if self.chosen else CHARTS[self.chart_at][0]
        if SMOOTHING[self.smoothing]:
            heading += f"  smoothed {SMOOTHING[self.smoothing]:g}"
        self.chart.window = self.window
        self.chart.smoothing = SMOOTHING[self.smoothing]
        curves = {**self.curves, **self.near}
        series = chart_series(chart_names(self._wanted(), shown.names), curves)
        self.chart.put(heading, series, "this metric appears with the first step; m shows the next chart")
        self.kl.window = self.window
        self.kl.put("KL, nats per token", kl_series(shown.latest, curves), "KL appears with the first update")

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_open(self) -> None:
        """Trajectories; on an alert that is chosen, its evidence."""
        if self._active == "alerts" and self.alerts.current is not None:
            self._evidence(self.alerts.current)
            return
        self.shell.open(Trajectories(self.reads.path))

    def _evidence(self, event: Event) -> None:
        ids = [str(i) for i in event.data.get("trajectories") or ()]
        if ids:
            quoted = " or ".join('id:"' + i.replace('"', "") + '"' for i in ids[:50])
            self.shell.open(Trajectories(self.reads.path, Query(filter=quoted)))
        elif event.step:
            self.shell.open(Trajectories(self.reads.path, Query(filter=f"step={event.step}")))
        else:
            self.say(event.message)

    def action_search(self) -> None:
        """Search all trajectories."""
        from ..widgets.prompt_bar import ask

        def found(text: str) -> None:
            if text:
                self.shell.open(Trajectories(self.reads.path, Query(search=text)))

        ask(self, "Search all trajectories", "", found)

    def _request(self, command: Command) -> None:
        if self.shown is not None and not self.shown.info.active:
            self.say(f"The run is {self.shown.info.status}; nobody would hear “{command}”.", "warning")
            return
        try:
            request(self.reads.path, command)
        except (OSError, RecordError) as error:
            self.say(f"“{command}” could not be asked for: {error}", "error")
            return
        self.say(f"Asked the run: {command}. It answers after this step.")

    def action_pause(self) -> None:
        """Pause or go on."""
        paused = self.shown is not None and self.shown.info.status == "paused"
        self._request("resume" if paused else "pause")

    def action_checkpoint(self) -> None:
        """Save now."""
        self._request("checkpoint")

    def action_stop(self) -> None:
        """Save and stop, when confirmed."""
        from .dialogs import confirm

        if self.shown is not None and not self.shown.info.active:
            self._request("stop")
            return

        def answer(choice: object) -> None:
            if choice == 0:
                self._request("stop")

        text = f"Stop {self.reads.path.name}? It ends this step, saves a checkpoint, and can be resumed."
        self.app.push_screen(confirm(text, "Yes, save and stop", "No, let it go on"), answer)

    def action_next_chart(self) -> None:
        """The next chart that has something to show."""
        names = self.shown.names if self.shown else []
        self.chosen = ()
        for by in range(1, len(CHARTS) + 1):
            at = (self.chart_at + by) % len(CHARTS)
            if any(n.startswith(w[:-1]) if w.endswith("*") else n == w for w in CHARTS[at][1] for n in names):
                self.chart_at = at
                break
        self.shell.memory.run(self.reads.path.name)["chart"] = self.chart_at
        self._reread()

    def action_choose_metrics(self) -> None:
        """Choose any metrics."""
        from .dialogs import Dialog

        names = self.shown.names if self.shown else []
        if not names:
            self.say("No metric was recorded yet.")
            return
        checked = {names.index(n) for n in chart_names(self._wanted(), names)}

        def answer(choice: object) -> None:
            if isinstance(choice, set):
                self.chosen = tuple(names[i] for i in sorted(choice))
                self._reread()

        self.app.push_screen(
            Dialog("Metrics of the chart · space checks · enter shows", names, checked=checked), answer
        )

    def action_smooth(self) -> None:
        """More smoothing; after the most, none."""
        self.smoothing = (self.smoothing + 1) % len(SMOOTHING)
        self._show_chart()

    def _range(self) -> tuple[float, float]:
        """The steps of the whole run."""
        info = self.shown.info if self.shown else None
        ends = [points[-1][0] for points in self.curves.values() if points]
        return 1.0, float(max([info.step if info else 1, *ends], default=1))

    def _zoom(self, factor: float) -> None:
        low, high = self._range()
        a, b = self.window or (low, high)
        half = (b - a) * factor / 2
        if half * 2 >= high - low:
            self.window = None
        else:
            middle = min(max((a + b) / 2 if self.window else high - half, low + half), high - half)
            half = max(half, 2.0)
            self.window = (middle - half, middle + half)
        self._reread()

    def action_zoom_in(self) -> None:
        """Half as many steps, the newest at first."""
        self._zoom(0.5)

    def action_zoom_out(self) -> None:
        """Twice as many steps."""
        self._zoom(2.0)

    def action_zoom_all(self) -> None:
        """All steps."""
        self.window = None
        self._reread()

    def action_pan(self, by: int) -> None:
        """Earlier or later steps, when zoomed in."""
        if self.window is None:
            return
        low, high = self._range()
        a, b = self.window
        shift = by * (b - a) / 4
        shift = max(low - a, min(shift, high - b))
        self.window = (a + shift, b + shift)
        self._reread()

    def action_actions_over_time(self) -> None:
        """Actions now, or over time."""
        self.actions.toggle()
        self.frame.refresh_lines()

    def action_pager(self) -> None:
        """The log in $PAGER."""
        from ...export import open_outside

        files = sorted((self.reads.path / "logs").glob("*.log"))
        if not files:
            self.say("This run has no log yet.")
            return
        newest = max(files, key=lambda f: f.stat().st_mtime)
        open_outside(
            self.app, newest.read_text(encoding="utf-8", errors="backslashreplace")[-2_000_000:], "PAGER", newest.name
        )

    def action_export(self) -> None:
        """The dashboard as a picture (SVG)."""
        from ...export import write

        svg = self.app.export_screenshot(title=f"grpo-tui · {self.reads.path.name}")
        name = f"dashboard-{time.strftime('%Y%m%d-%H%M%S')}.svg"
        self.say(f"Written: {write(self.reads.path, name, svg)}")

    def on_pane_hit(self, message: Pane.Hit) -> None:
        """A click on an alert opens its evidence; on an action or component, the trajectories that have it."""
        what: Any = message.what
        match what:
            case ("alert", int(index)):
                self.alerts.cursor = index
                self._evidence(self.alerts.events[index])
            case ("action", str(name)):
                quoted = '"' + name.replace('"', "") + '"'
                self.shell.open(Trajectories(self.reads.path, Query(filter=f"action:{quoted}")))
            case ("component", "penalty"):
                self.shell.open(Trajectories(self.reads.path, Query(filter="penalties>0")))
            case ("component", str(name)):
                self.chosen = (f"rewards/raw/{name}", f"rewards/normalized/{name}")
                self._reread()
