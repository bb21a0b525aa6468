"""The list of runs: which are active, how the others ended, and which are worth a look."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ....configs import metric_names as metric
from ....engine.launch.stop import delete_run, rename_run
from ....engine.runs.control.requests import request
from ....engine.runs.health.headline import Headline
from ....engine.runs.types import RunInfo
from ...format import count
from ..curves import Series
from ..destinations import Branching, Compare, Destination, Live, Trajectories
from ..live_charts import MEASURED_AT_TIMES, is_share
from ..run_list import (
    LARGEST_FIRST,
    NOTHING,
    SORTS,
    RunRow,
    arranged,
    is_branch,
    load,
    looked_into,
    over_seeds,
    seeds_line,
)
from ..widgets.chart import Chart
from ..widgets.frame import Box, SplitPart, split
from ..widgets.pane import Line, Pane
from ..widgets.prompt_bar import ask
from ..widgets.run_card import RunCard, columns
from ..widgets.table import Table
from .base import AppScreen
from .dialogs import confirm

CURVES = (
    (metric.REWARD_MEAN, "reward"),
    (metric.SUCCESS_TRAIN, "success"),
    (metric.SUCCESS_GREEDY, "held-out, greedy"),
    (metric.ONLINE_SUCCESS, "success"),
)
RELOAD_SECONDS = 2.0


class RunsScreen(AppScreen):
    """The list of runs, and below it a card of the run at the cursor."""

    view = "runs"

    def __init__(self) -> None:
        super().__init__()
        self.all: dict[str, RunRow] = {}
        self.loads: Sequence[tuple[RunInfo, Headline | None]] = ()
        self.read: dict[str, tuple[int | None, str, Headline]] = {}
        """Headlines from records by path, with the step and the status of the run at that time."""
        self.rows: list[RunRow] = []
        self.marks: list[str] = []
        self.text = ""
        self.sorting = ("created", True)
        self.loaded = False
        self.problem = ""
        self._busy = self._looking = False
        self.table = Table("table", lambda table: columns(self.palette, self.shell.clock(), self.rows), self._empty)
        self.chart = Chart("chart")
        self.card = RunCard()
        self.table.marked = lambda row: "●" if row.info.path in self.marks else " "

    def panes(self) -> list[Pane]:
        return [self.table, self.chart, self.card]

    def plan(self, width: int, height: int) -> list[Box]:
        if height < 22 or not self.rows:
            return [Box("table", 0, 0, width, height)]
        top = min(max(7, len(self.rows) + 2), height * 3 // 5)
        below = height - top
        boxes = [Box("table", 0, 0, width, top + 1)]
        if width < 90:
            return [*boxes, Box("chart", 0, top, width, below)]
        (cx, cw), (tx, tw) = split(width, [SplitPart(52, 1.6), SplitPart(36, 1.0, 80)])
        return [*boxes, Box("chart", cx, top, cw, below), Box("card", tx, top, tw, below)]

    def header(self, width: int) -> tuple[Line, Line]:
        p = self.palette
        left = Line(p).add("grpo-tui", p.title).add(" · runs in ", p.muted)
        folder = str(self.shell.runs_dir)
        home = os.path.expanduser("~")
        folder = "~" + folder[len(home) :] if folder.startswith(home + "/") else folder
        marked = self._marked(width - 40)
        left.add(folder, p.text, most=max(4, width - 48 - marked.width))
        if self.text:
            left.add(" · ", p.faint).add(self.text, p.accent)
        running = sum(r.info.status in ("running", "starting", "paused") for r in self.rows)
        right = Line(p)
        if self.marks:
            right.extend(marked)
        elif not self.shell.memory.get("seen_hint", False) and self.rows and width >= 100:
            right.add("enter opens a run · space marks two to compare · ? shows all keys  ", p.accent)
        if running:
            right.add(f"● {running} running  ", p.good)
        dumps = sum(row.dump for row in self.rows)
        counts = [(len(self.rows) - dumps, "run"), *([(dumps, "dump")] if dumps else [])]
        return left, right.add(" · ".join(count(n, what) for n, what in counts), p.muted)

    def _marked(self, width: int) -> Line:
        """Return the number of marked runs, with as many of their means as fit."""
        headlines = [self.all[mark].headline for mark in self.marks if mark in self.all]
        texts = [f"● {seeds_line(headlines, 'marked', names)}  " for names in (("success", "reward"), ("success",), ())]
        return Line(self.palette, next((t for t in texts if len(t) <= width), texts[-1]), self.palette.warn_bold)

    # -- reading ------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        kept = self.shell.memory.get("runs_sort", ["created", True])
        if len(kept) == 2 and kept[0] in SORTS:
            self.sorting = (str(kept[0]), bool(kept[1]))
        self.run_worker(self._load(), group="runs")
        self.set_interval(RELOAD_SECONDS, self._tick)

    def _tick(self) -> None:
        if self.app.screen is self and not self._busy:
            self.run_worker(self._load(), group="runs")

    def on_screen_resume(self) -> None:
        if self.loaded:
            self._tick()

    async def _load(self) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            self.loads, self.problem = await asyncio.to_thread(load, self.shell.runs_dir), ""
        except OSError as error:
            self.problem = str(error)
        finally:
            self._busy = False
        self.loaded = True
        self._arrange()
        if not self._looking:
            self._looking = True
            try:
                await self._look_into()
            finally:
                self._looking = False

    async def _look_into(self) -> None:
        """Read the records of runs whose status files lack a headline, one by one, again when the run advances."""
        without = (info for info, summary in self.loads if summary is None)
        unknown = [info for info in without if self.read.get(info.path, ())[:2] != (info.step, info.status)]
        for number, info in enumerate(unknown, 1):
            if not self.is_attached:
                return
            self.read[info.path] = (info.step, info.status, await asyncio.to_thread(looked_into, info))
            if number % 16 == 0 or number == len(unknown):  # an update for each record would cost more
                self._arrange()

    def _arrange(self) -> None:
        current = self.table.current
        headlines = ((info, summary or self.read.get(info.path, (NOTHING,))[-1]) for info, summary in self.loads)
        self.all = {info.path: RunRow(info, headline) for info, headline in headlines}
        self.rows = arranged(self.all.values(), self.text, *self.sorting)
        self.table.sort = self.sorting
        fallback = 0 if current is None or current.info.path in self.all else self.table.cursor
        position = next(
            (i for i, r in enumerate(self.rows) if current is not None and r.info.path == current.info.path), fallback
        )
        if len(self.rows) != self.table.total:
            self.frame.replan()
        self.table.put(self.rows, position)
        self._show_card()
        self.marks = [m for m in self.marks if m in self.all]

    def _empty(self) -> list[str]:
        if self.problem:
            return ["The runs cannot be read.", "", self.problem]
        if not self.loaded:
            return ["reading…"]
        if self.text and self.all:
            return ["No run matches.", "", "f changes the filter"]
        return [
            "No runs yet.",
            "",
            "grpo-tui train",
            "trains the small built-in policy and shows it here",
            "",
            f"folder: {self.shell.runs_dir}",
            "--runs-dir: another folder · ? shows the keys",
        ]

    # -- keys ---------------------------------------------------------------------------------------------------

    def on_table_moved(self, message: Table.Moved) -> None:
        self._show_card()

    def _show_card(self) -> None:
        row = self.table.current
        if row is None:
            self.card.put(None, NOTHING)
            self.chart.put("", [], "nothing recorded yet")
            return
        self.card.put(row.info, row.headline, over_seeds(row, self.all))
        self.chart.x_name = "request" if row.info.mode == "online" else "step"
        self.chart.put(row.info.id, list(_curves(row.headline)), "nothing recorded yet")

    def action_open(self) -> None:
        """Open the dashboard of an active run; otherwise the last view, or the trajectories."""
        row = self.table.wanted(self.action_open)
        if row is not None:
            live = row.info.active or self.shell.memory.run(row.info.id).get("view") == "live"
            self._go("live", Live) if live and not is_branch(row.info) else self.action_trajectories()

    def action_live(self) -> None:
        self._go("live", Live)

    def action_trajectories(self) -> None:
        row = self.table.wanted(self.action_trajectories)
        if row is not None:
            self._go("trajectories", Branching if is_branch(row.info) else Trajectories)

    def _go(self, view: str, destination_of: Callable[[Path], Destination]) -> None:
        row = self.table.wanted(partial(self._go, view, destination_of))
        if row is not None:
            self.shell.memory.put("seen_hint", True)
            self.shell.memory.run(row.info.id)["view"] = view
            self.shell.open(destination_of(Path(row.info.path)))

    def action_mark(self) -> None:
        row = self.table.current
        if row is None:
            return
        path = row.info.path
        if path in self.marks:
            self.marks.remove(path)
        else:
            self.marks.append(path)
        self.table.repaint()
        self.table.move_by(1)

    def action_compare(self) -> None:
        if len(self.marks) < 2:
            self.say("Mark at least two runs with space, then compare.")
            return
        self.shell.open(Compare(tuple(self.all[m].info for m in self.marks if m in self.all)))

    def action_reload(self) -> None:
        self.read.clear()
        self._tick()

    def action_copy(self) -> None:
        if self.table.current is not None:
            self.copy(self.table.current.info.id, self.table.current.info.id)

    def action_stop_run(self) -> None:
        row = self.table.current
        if row is None:
            return
        if not row.info.active or row.info.status == "stopping":
            self.say(f"{row.info.id} is {row.info.status}.")
            return
        if row.info.mode == "recorded":
            self.say(f"Another script records {row.info.id}: stop it there.", "warning")
            return

        def stop() -> None:
            try:
                request(Path(row.info.path), "stop")
            except OSError as error:
                self.say(f"The request to stop {row.info.id} failed: {error}", "error")
            else:
                self.say(f"Asked {row.info.id} to save and stop.")

        confirm(self, f"Stop {row.info.id}? It saves a checkpoint first.", "Yes, save and stop", stop)

    def action_rename(self) -> Awaitable[None] | None:
        row = self.table.current
        if row is not None:
            return ask(self, f"Name of {row.info.id}", row.info.name, lambda text: self._rename(row, text))

    def _rename(self, row: RunRow, text: str) -> None:
        if text != row.info.name:
            shown = f"“{text}”" if text else "no name"
            rename = partial(self._change, lambda: rename_run(row.info, text))
            confirm(self, f"Rename {row.info.id} to {shown}?", "Yes, rename", rename)

    def action_delete(self) -> None:
        row = self.table.current
        if row is None:
            return
        if row.info.active:
            self.say(f"{row.info.id} is {row.info.status}; stop it first (x).", "warning")
            return

        def delete() -> None:
            self.shell.forget_run(row.info.path)
            self._change(lambda: delete_run(row.info))

        text, yes = f"Delete {row.info.id} with its record and checkpoints?", "Yes, delete it"
        text += " This cannot be undone."
        if row.info.mode == "dump":
            text = f"Forget {row.info.id}? This deletes only its index. Its files stay unchanged."
            yes = "Yes, forget it"
        confirm(self, text, yes, delete)

    def _change(self, change: Callable[[], object]) -> None:
        self.in_background(change, lambda _: self._tick())

    def action_filter(self) -> Awaitable[None] | None:
        def put(text: str) -> None:
            self.text = text
            self._arrange()

        return ask(self, "Runs with", self.text, put, hint="words of id, name, status, mode, environment or model")

    def action_sort(self) -> None:
        name = SORTS[(SORTS.index(self.sorting[0]) + 1) % len(SORTS)]
        self._sort(name, name in LARGEST_FIRST)

    def _sort(self, name: str, descending: bool) -> None:
        self.sorting = (name, descending)
        self.shell.memory.put("runs_sort", [name, descending])
        self._arrange()

    def on_pane_hit(self, message: Pane.Hit) -> None:
        match message.what:
            case ("sort", str(name)):
                self._sort(name, not self.sorting[1] if name == self.sorting[0] else True)


def _curves(headline: Headline) -> Iterator[Series]:
    for name, title in CURVES:
        if points := headline.curves.get(name):
            curve = Series.of(title, points, is_share(name))
            yield replace(curve, dots=name in MEASURED_AT_TIMES, last=headline.values.get(name))
