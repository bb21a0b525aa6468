"""The dashboard of a run: learning, rewards, reward hacking, speed.

Each kind of run has its own panels (`live_layout.PANES`). `chart_keys` reads the run and handles the keys of the chart,
`live_layout` places the panels, and `live_header` shows the progress.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Sequence, Set
from dataclasses import replace
from functools import partial
from pathlib import Path

from ....configs import metric_names as metric
from ....engine.runs.control.requests import Command, RunRequest, asked, request, withdraw
from ....engine.runs.control.status import look
from ....engine.runs.errors import RecordError
from ....engine.runs.health.checkpoints import checkpoint_folder, policies
from ....engine.runs.search.filters import term
from ....engine.runs.search.query import Query
from ...text import literal
from ..data import Reads
from ..destinations import Behavior, Chatting, Further, Trajectories
from ..live_charts import CHARTS
from ..live_data import LiveFinding, Reading, State, findings
from ..live_header import header
from ..live_layout import PANES, LayoutInputs, plan
from ..widgets.alerts import Alerts
from ..widgets.frame import Box
from ..widgets.learning_panels import ActionBars, ComponentTable, PolicyPanel
from ..widgets.live_panels import LogPanel, ServingPanel, SnapshotsPanel, SpeedPanel
from ..widgets.pane import Line, Pane
from ..widgets.prompt_bar import ask
from ..widgets.writing_panel import WritingPanel
from .base import open_outside
from .chart_keys import ChartKeys, CurvesRead, FollowsRun
from .dialogs import confirm


class RequestKeys(FollowsRun):
    """Pause, checkpoint and stop."""

    _answered: Set[str] | None = None
    """Ids of requests whose answer was already shown, or existed when the screen opened."""

    @property
    def _online(self) -> bool:
        return self.shown is not None and self.shown.kind == "online"

    def tell_answers(self, requests: Sequence[RunRequest]) -> None:
        answered = {a.id: a for a in requests if a.answers}
        if self._answered is not None:
            for id_ in answered.keys() - self._answered:
                what = answered[id_]
                self.say(f"{what.command.capitalize()}: {' · '.join(dict.fromkeys(what.answers.values()))}.")
        self._answered = set(answered)

    def _look_again(self) -> None:
        if self.shown is not None:
            self.shown = replace(self.shown, asked=asked(self.reads.path))
        self.frame.refresh_lines()
        self.changed()

    def ask_run(self, command: Command, message: str) -> None:
        if self.shown is not None and not self.shown.info.active:
            self.say(f"The run is {self.shown.info.status} and cannot take the request “{command}”.", "warning")
            return
        if self.shown is not None and self.shown.foreign:
            self.say(f"Another script records this run and takes no request: {command} it there.", "warning")
            return
        try:
            request(self.reads.path, command)
        except (OSError, RecordError) as error:
            self.say(f"The request “{command}” failed: {error}", "error")
            return
        self.say(message)
        self._look_again()

    def action_pause(self) -> None:
        shown = self.shown
        if shown is None:
            return
        what = "learning" if self._online else "the run"
        if shown.state == "running":
            when = "answers continue" if self._online else "after this step"
            self.ask_run("pause", f"Asked {what} to pause ({when}). Press space to undo.")
        elif shown.state == "paused":
            self.ask_run("resume", f"Asked {what} to resume.")
        elif shown.state not in ("pausing", "resuming") or shown.pending is None:
            reasons: dict[State, str] = {
                "stopping": "The run is already saving and stopping.",
                "cannot": "This run only serves: it has no learning to pause.",
            }
            self.say(reasons.get(shown.state, f"The run is {shown.info.status} and cannot pause."), "warning")
        elif withdraw(self.reads.path, shown.pending.id):
            self.say(f"Undone: {what} {'continues' if shown.state == 'pausing' else 'stays paused'}.")
            self._look_again()
        else:
            self.say("It is too late to undo: the run has answered.")
            self.changed()

    def action_checkpoint(self) -> None:
        if self.shown is not None and self.shown.waits_for("checkpoint"):
            self.say("A checkpoint was already requested. The run saves it after this step.")
            return
        online = self._online
        what = "publish a version" if online else "save a checkpoint"
        paused = self.shown is not None and self.shown.info.status == "paused"
        self.ask_run("checkpoint", f"Asked the run to {what}{'' if online or paused else ' after this step'}.")

    def action_stop(self) -> None:
        message = "Asked the run to save and stop."
        if self.shown is not None and (self.shown.foreign or not self.shown.info.active):
            self.ask_run("stop", message)
            return
        text = f"Stop {self.reads.path.name}? It finishes this step and saves a checkpoint. You can resume it."
        confirm(self, text, "Yes, save and stop", partial(self.ask_run, "stop", message), "No, let it continue")


_PAUSE_HINTS: dict[State, str] = {
    "running": "pause", "pausing": "don't pause", "paused": "resume", "resuming": "stay paused",
}  # fmt: skip


class LiveScreen(ChartKeys, RequestKeys):
    """The panels of a run and the targets of their keys and clicks."""

    view = "live"

    def __init__(self, reads: Reads) -> None:
        super().__init__(reads)
        self.wanted = LayoutInputs()
        self.components = ComponentTable()
        self.actions = ActionBars()
        self.writing = WritingPanel()
        self.panels = (
            self.components, self.actions, PolicyPanel(), ServingPanel(), SnapshotsPanel(), SpeedPanel(), LogPanel(),
            self.writing,
        )  # fmt: skip
        self.alerts = Alerts()

    def panes(self) -> list[Pane]:
        return [self.chart, self.kl, *self.panels, self.alerts]

    def plan(self, width: int, height: int) -> list[Box]:
        return plan(self.wanted, width, height)

    def header(self, width: int) -> tuple[Line, Line]:
        return header(self.palette, self.reads.path.name, self.shown, self.shell.clock(), width)

    def hint_label(self, action: str, label: str) -> str:
        shown = self.shown
        if action == "chat" and (shown is None or shown.foreign or shown.info.active != self._online):
            return ""
        of_running = action in ("pause", "stop", "checkpoint", "next_text(1)")
        if of_running and shown is not None and (shown.foreign or shown.state == "ended"):
            return ""
        return _PAUSE_HINTS.get(shown.state, "") if action == "pause" and shown is not None else label

    def on_mount(self) -> None:
        self._active = "chart"
        chart = self.shell.memory.run(self.reads.path.name).get("chart", 0)
        if isinstance(chart, int) and 0 <= chart < max(map(len, CHARTS.values())):
            self.chart_view = replace(self.chart_view, at=chart)

    def show_problem(self, problem: str) -> None:
        self.chart.put("", [], problem)

    def show(self, shown: Reading, curves: CurvesRead) -> None:
        for pane in self.panels:
            pane.put(shown)
        found = findings(shown)
        components = len(self.components.names())
        self.take_curves(shown, curves)
        writing = shown.info.active and (shown.live is not None or shown.kind == "rft")
        inputs = replace(self.wanted, kind=shown.kind, components=components, findings=len(found))
        self._want(replace(inputs, writing=writing, empty=self._empty(shown)))
        self.alerts.put(found)
        self.tell_answers(shown.asked)

    def _empty(self, shown: Reading) -> frozenset[str]:
        """Return the empty panels of one of our own runs. The other panels take their room."""
        if shown.foreign:
            return frozenset()
        has = {
            "chart": any(series.ys for series in self.chart.series),
            "components": bool(self.components.names()),
            "kl": any(series.ys for series in self.kl.series),
            "actions": any(name in metric.ACTION_SHARE for name in shown.latest),
            "learning": metric.LOSS in shown.latest,
            "speed": metric.STEP_SECONDS in shown.latest,
            "versions": bool(shown.versions),
        }
        return frozenset(name for name, present in has.items() if not present)

    def _want(self, inputs: LayoutInputs) -> None:
        if inputs != self.wanted:
            self.wanted = inputs
            self.frame.replan()

    def activate(self, name: str) -> None:
        super().activate(name)
        self._want(replace(self.wanted, focus=name))
        if name == "alerts":
            self.call_after_refresh(self.alerts.reveal)

    # -- keys ---------------------------------------------------------------------------------------------------

    def action_next_pane(self, by: int) -> None:
        names = PANES[self.wanted.kind]
        shown = names if self.wanted.whole else [b.name for b in self.frame.boxes]
        order = [n for n in names if n in shown]
        index = order.index(self._active) if self._active in order else -1
        self.activate(order[(index + by) % len(order)])

    def action_whole(self) -> None:
        self._want(replace(self.wanted, whole=not self.wanted.whole, focus=self._active))
        self.writing.whole = self.wanted.whole
        self.writing.changed(keep_scroll=False)

    def action_next_text(self, by: int) -> None:
        self.writing.step(by)

    def action_open(self) -> None:
        if self._active == "writing" and not self.wanted.whole:
            self.action_whole()
            return
        if self._active == "alerts" and self.alerts.current is not None:
            self._evidence(self.alerts.current)
        else:
            self._trajectories(Query())

    def _trajectories(self, query: Query) -> None:
        if self.wanted.kind == "sft" and self.reads.now.rollouts.total() == 0:
            self.say("Supervised training records no rollouts: it learns from demonstrations.")
            return
        self.shell.open(Trajectories(self.reads.path, query))

    def _evidence(self, found: LiveFinding) -> None:
        if found.trajectories:
            self._trajectories(Query(filter=" or ".join(term("id", i) for i in found.trajectories[:50])))
        elif found.last:
            self._trajectories(Query(filter=f"step={found.last}"))
        else:
            self.say(found.message)

    def action_chat(self) -> Awaitable[None] | None:
        shown = self.shown
        if shown is None:
            return None
        if shown.kind == "online":
            self.shell.open(Further(self.reads.path, "Chat"))
            return None
        kept = list(policies(checkpoint_folder(self.reads.path)))
        if shown.info.mode not in ("rft", "sft"):
            self.say("You can only chat with policies that grpo-tui trained.")
            return None
        hint = f"steps {', '.join(map(str, kept[-12:])) or 'none'} · base: before training · empty: the last step"

        def start(step: str) -> None:
            from ....engine.evaluation.subjects import start_chat  # imported here: it loads the configuration classes

            self.say("Starting a process that serves this policy…")
            policy = f"{self.reads.path}@{step}" if step else str(self.reads.path)
            self.in_background(
                lambda: start_chat(policy, self.reads.path.parent),
                lambda run: self.shell.open(Chatting(Path(run.path))),
            )

        return ask(self, "Chat with the checkpoint", "", start, hint=hint)

    def action_timeline(self) -> None:
        self.shell.open(Further(self.reads.path, "Timeline"))

    def action_search(self) -> Awaitable[None] | None:
        def found(text: str) -> None:
            if text:
                self._trajectories(Query(search=text))

        return ask(self, "Search all trajectories", "", found)

    def action_behavior(self) -> None:
        self.shell.open(Behavior(self.reads.path))

    def action_pager(self) -> None:
        from ....engine.launch.logs import log_path  # imported here to keep the first paint fast

        newest = log_path(look(self.reads.path))
        if newest is None:
            self.say("This run has no log yet.")
            return
        try:
            with newest.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - 2_000_000))
                text = file.read().decode("utf-8", "backslashreplace")
        except OSError as error:
            self.say(f"The log cannot be read: {error.strerror}.", "error")
            return
        open_outside(self.app, text, "PAGER", newest.name)

    def action_export(self) -> None:
        svg = self.app.export_screenshot(title=literal(f"grpo-tui · {self.reads.path.name}"))
        name = f"dashboard-{time.strftime('%Y%m%d-%H%M%S')}.svg"
        self.export(self.reads.path, name, lambda: svg)

    def on_pane_hit(self, message: Pane.Hit) -> None:
        what: object = message.what
        match what:
            case ("alert", int(index)):
                if self._active == "alerts" and self.alerts.cursor == index:
                    self._evidence(self.alerts.found[index])
                else:
                    self.alerts.cursor = index
                    self.activate("alerts")
            case ("action", str(name)):
                self._trajectories(Query(filter=term("action", name)))
            case ("component", "penalty"):
                self._trajectories(Query(filter="penalties>0"))
            case ("component", str(name)):
                chosen = (metric.COMPONENT_RAW(name), metric.COMPONENT_NORMALIZED(name))
                self.look_at(replace(self.chart_view, chosen=chosen))
