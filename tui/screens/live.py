"""The dashboard of a run: is it learning, from which reward, is it cheating, what holds it. Follows a run that goes on.

The record is read in a thread, once a second while the run goes on, and the screen is redrawn at most four times a
second; a finished run is read once.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from ...engine.runs.control import Command, request
from ...engine.runs.errors import RecordError
from ...engine.runs.reader import RunReader
from ...engine.runs.types import Event, RunInfo
from ..bindings import LIVE, bindings
from ..data import Query, Reads
from ..format import count, duration, number, percent, progress
from ..status import status_sign, status_style
from ..widgets.action_bars import PREFIX, ActionBars
from ..widgets.alerts import Alerts
from ..widgets.chart import Chart, Series
from ..widgets.component_table import ComponentTable
from ..widgets.frame import Box, Part, split
from ..widgets.line import Line
from ..widgets.log_panel import LogPanel
from ..widgets.pane import Pane
from ..widgets.policy_panel import PolicyPanel
from ..widgets.snapshots_panel import SnapshotsPanel
from ..widgets.speed_panel import SpeedPanel
from .base import View

CHARTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "Reward mean ± std, task success",
        ("rewards/total/mean", "success/train", "success/eval_greedy", "success/eval_sampled"),
    ),
    ("Components, raw", ("rewards/raw/*",)),
    ("Components, contribution to the reward", ("rewards/contribution/*",)),
    ("Components, running mean ± std", ("rewards/running_mean/*",)),
    ("KL divergence and its target, nats per token", ("kl/mean", "kl/reverse", "kl/target", "online/mean_kl")),
    ("Beta", ("kl/beta", "online/current_beta")),
    ("Loss", ("train/loss",)),
    ("Entropy and clipped share", ("train/entropy", "train/clip_fraction")),
    ("Gradient norm", ("train/grad_norm",)),
    ("Groups filtered, samples replayed", ("grpo/filtering_rate", "grpo/replay_share")),
    ("Tokens and turns", ("tokens/agent", "tokens/total")),
    ("Seconds a step", ("time/step", "time/generate", "time/environment", "time/logprobs", "time/backward")),
    (
        "Online: gate, flips, success",
        ("online/gate_rate", "online/flip_rate", "online/success", "online/delta_validation"),
    ),
)
KL = ("kl/mean", "online/mean_kl", "kl/target")
SPREADS = {"rewards/total/mean": "rewards/total/std"}
SMOOTHING = (0.0, 0.6, 0.9, 0.97)
POINTS = 800
"""Points of a curve that are read; a wide terminal shows about 400 columns of dots."""
TREND = 40
_LOG_LINES = 60
_FOLLOWED = ("starting", "running", "paused", "stopping")


@dataclass
class Snapshot:
    """Everything the dashboard shows, as read at one moment."""

    info: RunInfo
    names: list[str] = field(default_factory=list)
    latest: dict[str, float] = field(default_factory=dict)
    trends: dict[str, list[float]] = field(default_factory=dict)
    series: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    problem: str = ""


def wanted_trends(names: list[str]) -> list[str]:
    """Metrics whose recent course is drawn small."""
    keep = ("rewards/raw/", PREFIX, "kl/mean", "kl/beta", "rewards/total/mean", "train/", "grpo/", "turns/", "online/")
    return [n for n in names if n.startswith(keep)]


class LiveScreen(View):
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
        self._seen_control = 0
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
        kept = self.grpo.memory.run(self.reads.path.name)
        at = kept.get("chart", 0)
        self.chart_at = at if isinstance(at, int) and 0 <= at < len(CHARTS) else 0
        self.run_worker(self._update(), group="live")
        self.set_interval(1.0, self._tick)

    def on_screen_resume(self) -> None:
        """Back from another screen: what happened meanwhile."""
        if self.shown is not None:
            self._tick()

    def _tick(self) -> None:
        if self.app.screen is not self or self._busy:
            return
        if self.shown is None or self.shown.info.status in _FOLLOWED:
            self.run_worker(self._update(), group="live")

    async def _update(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            self.shown = await self.reads.later(self._read)
        except RecordError as error:
            self.chart.put("", [], str(error))
            return
        finally:
            self._busy = False
        if self.is_attached:
            self._show()

    def _read(self, reader: RunReader) -> Snapshot:
        """In the reading thread."""
        made = Snapshot(reader.info())
        try:
            made.names = reader.metric_names()
            made.latest = reader.latest()
            for name in wanted_trends(made.names):
                made.trends[name] = [v for _, v in reader.metric(name, max_points=TREND)]
            for name in (*self.chart_names(made.names), *(n for n in KL if n in made.names)):
                made.series[name] = list(reader.metric(name, max_points=POINTS))
                if name in SPREADS and SPREADS[name] in made.names:
                    made.series[SPREADS[name]] = list(reader.metric(SPREADS[name], max_points=POINTS))
            made.events = list(reader.events(limit=300))
        except RecordError as error:
            made.problem = str(error)
        made.problem = "; ".join(dict.fromkeys([made.problem, *reader.problems] if made.problem else reader.problems))
        made.log = self._log_tail(made.info)
        return made

    def _log_tail(self, info: RunInfo) -> list[str]:
        from ...engine.launch.logs import tail_log

        return tail_log(info, _LOG_LINES)

    def chart_names(self, names: list[str]) -> list[str]:
        """The metrics of the present chart that were recorded."""
        found: list[str] = []
        for pattern in self.chosen or CHARTS[self.chart_at][1]:
            if pattern.endswith("*"):
                found += [n for n in names if n.startswith(pattern[:-1])]
            elif pattern in names:
                found.append(pattern)
        return found

    def _show(self) -> None:
        shown = self.shown
        assert shown is not None
        now = shown.events
        before = len(self.components.names())
        self.components.put(shown.latest, shown.trends)
        if len(self.components.names()) != before:
            self.frame.replan()
        self._show_chart()
        self.actions.put(shown.latest, shown.trends)
        self.policy.put(shown.latest, shown.trends, [e for e in now if e.kind == "beta"])
        self.snapshots.put(shown.latest, [e for e in now if e.kind in ("snapshot", "checkpoint", "eval")])
        self.speed.put(shown.latest)
        self.log_panel.put(shown.log)
        alerts = [e for e in now if e.kind in ("alert", "error", "record", "control", "phase")]
        alerts.sort(key=lambda e: (e.kind in ("control", "phase"), -e.id))
        if shown.problem:
            alerts.insert(0, Event("record", shown.problem))
        if shown.info.error:
            alerts.insert(0, Event("error", shown.info.error, step=shown.info.step))
        self.alerts.put(alerts)
        acknowledged = [e for e in now if e.kind == "control"]
        if acknowledged and acknowledged[-1].id > self._seen_control:
            if self._seen_control:
                self.say(acknowledged[-1].message)
            self._seen_control = acknowledged[-1].id
        elif not acknowledged:
            self._seen_control = self._seen_control or -1
        self.frame.refresh_header()

    def _show_chart(self) -> None:
        shown = self.shown
        if shown is None:
            return
        heading = ", ".join(self.chosen) if self.chosen else CHARTS[self.chart_at][0]
        series = []
        for name in self.chart_names(shown.names):
            points = shown.series.get(name, [])
            spread = dict(shown.series.get(SPREADS.get(name, ""), []))
            xs, ys = [float(x) for x, _ in points], [y for _, y in points]
            wide = [spread.get(x, 0.0) for x, _ in points] if spread else None
            label = (
                name.removeprefix("rewards/raw/")
                .removeprefix("rewards/contribution/")
                .removeprefix("rewards/running_mean/")
            )
            label = {"rewards/total/mean": "reward", "success/train": "success"}.get(
                name, label.replace("success/eval_", "eval ")
            )
            series.append(Series(label, xs, ys, wide, dots=name.startswith("success/eval")))
        if SMOOTHING[self.smoothing]:
            heading += f"  smoothed {SMOOTHING[self.smoothing]:g}"
        self.chart.window = self.window
        self.chart.smoothing = SMOOTHING[self.smoothing]
        self.chart.put(heading, series, "this metric appears with the first step; m shows the next chart")
        self.kl.window, self.kl.smoothing = self.window, 0.0
        self.kl.put("KL, nats per token", self._kl_series(shown), "KL appears with the first update")

    def _kl_series(self, shown: Snapshot) -> list[Series]:
        """KL, and its target with the tolerance as a band."""
        made = []
        for name in KL:
            points = shown.series.get(name, [])
            if points:
                tolerance = shown.latest.get("kl/tolerance")
                band = [tolerance] * len(points) if name == "kl/target" and tolerance is not None else None
                xs, ys = [float(x) for x, _ in points], [y for _, y in points]
                made.append(Series("target" if name == "kl/target" else "KL", xs, ys, band))
        return made

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_open(self) -> None:
        """Trajectories; on an alert that is chosen, its evidence."""
        if self._active == "alerts" and self.alerts.current is not None:
            self._evidence(self.alerts.current)
            return
        from .trajectories import TrajectoriesScreen

        self.app.push_screen(TrajectoriesScreen(self.reads))

    def _evidence(self, event: Event) -> None:
        ids = [str(i) for i in event.data.get("trajectories") or ()]
        from .trajectories import TrajectoriesScreen

        if ids:
            quoted = " or ".join('id:"' + i.replace('"', "") + '"' for i in ids[:50])
            self.app.push_screen(TrajectoriesScreen(self.reads, Query(filter=quoted)))
        elif event.step:
            self.app.push_screen(TrajectoriesScreen(self.reads, Query(filter=f"step={event.step}")))
        else:
            self.say(event.message)

    def action_search(self) -> None:
        """Search all trajectories."""
        from ..widgets.prompt_bar import ask
        from .trajectories import TrajectoriesScreen

        def found(text: str) -> None:
            if text:
                self.app.push_screen(TrajectoriesScreen(self.reads, Query(search=text)))

        ask(self, "Search all trajectories", "", found)

    def _request(self, command: Command) -> None:
        if self.shown is not None and self.shown.info.status not in _FOLLOWED:
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

        if self.shown is not None and self.shown.info.status not in _FOLLOWED:
            self._request("stop")
            return

        def answer(choice: object) -> None:
            if choice == 0:
                self._request("stop")

        text = f"Stop {self.reads.path.name}? It ends this step, saves a checkpoint, and can be resumed."
        self.app.push_screen(confirm(text, "Yes, save and stop", "No, let it go on"), answer)

    def _reread(self) -> None:
        self.run_worker(self._update(), group="live")

    def action_next_chart(self) -> None:
        """The next chart that has something to show."""
        names = self.shown.names if self.shown else []
        self.chosen = ()
        for by in range(1, len(CHARTS) + 1):
            at = (self.chart_at + by) % len(CHARTS)
            if any(n.startswith(w[:-1]) if w.endswith("*") else n == w for w in CHARTS[at][1] for n in names):
                self.chart_at = at
                break
        self.grpo.memory.run(self.reads.path.name)["chart"] = self.chart_at
        self._reread()

    def action_choose_metrics(self) -> None:
        """Choose any metrics."""
        from .dialogs import Dialog

        names = self.shown.names if self.shown else []
        if not names:
            self.say("No metric was recorded yet.")
            return
        checked = {names.index(n) for n in self.chart_names(names)}

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
        xs = [
            x
            for name, points in (self.shown.series if self.shown else {}).items()
            for x, _ in (points[:1] + points[-1:])
        ]
        return (float(min(xs)), float(max(xs))) if xs else (0.0, 1.0)

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
        self._show_chart()

    def action_zoom_in(self) -> None:
        """Half as many steps, the newest at first."""
        self._zoom(0.5)

    def action_zoom_out(self) -> None:
        """Twice as many steps."""
        self._zoom(2.0)

    def action_zoom_all(self) -> None:
        """All steps."""
        self.window = None
        self._show_chart()

    def action_pan(self, by: int) -> None:
        """Earlier or later steps, when zoomed in."""
        if self.window is None:
            return
        low, high = self._range()
        a, b = self.window
        shift = by * (b - a) / 4
        shift = max(low - a, min(shift, high - b))
        self.window = (a + shift, b + shift)
        self._show_chart()

    def action_actions_over_time(self) -> None:
        """Actions now, or over time."""
        self.actions.toggle()
        self.frame.refresh_lines()

    def action_pager(self) -> None:
        """The log in $PAGER."""
        from ..export import open_outside

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
        from ..export import write

        svg = self.app.export_screenshot(title=f"grpo-tui · {self.reads.path.name}")
        name = f"dashboard-{time.strftime('%Y%m%d-%H%M%S')}.svg"
        self.say(f"Written: {write(self.reads.path, name, svg)}")

    def on_pane_hit(self, message: Pane.Hit) -> None:
        """A click on an alert opens its evidence; on an action or component, the trajectories that have it."""
        from .trajectories import TrajectoriesScreen

        what: Any = message.what
        match what:
            case ("alert", int(index)):
                self.alerts.cursor = index
                self._evidence(self.alerts.events[index])
            case ("action", str(name)):
                quoted = '"' + name.replace('"', "") + '"'
                self.app.push_screen(TrajectoriesScreen(self.reads, Query(filter=f"action:{quoted}")))
            case ("component", "penalty"):
                self.app.push_screen(TrajectoriesScreen(self.reads, Query(filter="penalties>0")))
            case ("component", str(name)):
                self.chosen = (f"rewards/raw/{name}", f"rewards/normalized/{name}")
                self._reread()
