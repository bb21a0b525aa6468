"""The list of runs: what runs, what ended how, and which is worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ....engine.runs.errors import RecordError
from ....engine.runs.types import RunInfo
from ...format import ago, fixed, percent, sparkline
from ...status import status_sign, status_style
from ..bindings import RUNS, bindings
from ..destinations import Compare, Live, Trajectories
from ..widgets.chart import Chart, Series
from ..widgets.frame import Box, Part, split
from ..widgets.line import Line
from ..widgets.pane import Pane
from ..widgets.run_card import RunCard
from ..widgets.table import Column, Table
from .base import AppScreen

SORTS = ("created", "status", "success", "reward", "step", "mode", "environment", "model", "id")
CURVES = (
    ("rewards/total/mean", "reward"),
    ("success/train", "success"),
    ("success/eval_greedy", "eval greedy"),
    ("online/success", "success"),
)
RELOAD_SECONDS = 2.0
FIRST_HINT = "enter opens a run · space marks two to compare · ? shows all keys"


@dataclass
class RunRow:
    """One run of the list with what is read from its record later."""

    info: RunInfo
    success: float | None = None
    reward: float | None = None
    curve: list[float] = field(default_factory=list)
    step: int = 0
    known: bool = False


class RunsScreen(AppScreen):
    """Opened by `grpo-tui` alone."""

    view = RUNS
    BINDINGS = bindings(RUNS)

    def __init__(self, runs_dir: Path) -> None:
        super().__init__()
        self.runs_dir = runs_dir
        self.all: dict[str, RunRow] = {}
        self.rows: list[RunRow] = []
        self.marks: list[str] = []
        self.text = ""
        self.sorting = ("created", True)
        self.loaded = False
        self.problem = ""
        self._busy = False
        self.table = Table("table", self._columns, self._fetch, self._empty)
        self.chart = Chart("chart")
        self.card = RunCard()
        self.table.marked = lambda row: "●" if row.info.path in self.marks else " "

    def panes(self) -> list[Pane]:
        """The table takes the keys."""
        return [self.table, self.chart, self.card]

    def plan(self, width: int, height: int) -> list[Box]:
        """The run under the cursor is shown below from 22 lines on, beside its curves from 90 cells on."""
        if height < 22 or not self.rows:
            return [Box("table", 0, 0, width, height)]
        top = min(max(7, len(self.rows) + 2), height * 3 // 5)
        below = height - top
        boxes = [Box("table", 0, 0, width, top + 1)]
        if width < 90:
            return [*boxes, Box("chart", 0, top, width, below)]
        (cx, cw), (tx, tw) = split(width, [Part(52, 1.6), Part(36, 1.0, 80)])
        return [*boxes, Box("chart", cx, top, cw, below), Box("card", tx, top, tw, below)]

    def header(self, width: int) -> tuple[Line, Line]:
        """Where the runs are, and how many."""
        p = self.palette
        left = Line(p).add("grpo-tui", p.title).add(" · runs in ", p.muted)
        place = str(self.runs_dir)
        home = str(Path.home())
        place = "~" + place[len(home) :] if place.startswith(home + "/") else place
        left.add(place, p.text, cells=max(4, min(len(place), width - 50)))
        if self.text:
            left.add(" · ", p.faint).add(self.text, p.accent)
        running = sum(r.info.status in ("running", "starting", "paused") for r in self.rows)
        right = Line(p)
        if self.marks:
            right.add(f"● {len(self.marks)} marked  ", p.warn_bold)
        elif not self.shell.memory.get("seen_hint", False) and self.rows and width >= 100:
            right.add(FIRST_HINT + "  ", p.accent)
        if running:
            right.add(f"● {running} running  ", p.good)
        return left, right.add(f"{len(self.rows)} run{'' if len(self.rows) == 1 else 's'}", p.muted)

    # -- reading ------------------------------------------------------------------------------------------------

    def on_mount(self) -> None:
        """Look into the folder; again every two seconds."""
        self._active = "table"
        kept = self.shell.memory.get("runs_sort", ["created", True])
        if len(kept) == 2 and kept[0] in SORTS:
            self.sorting = (str(kept[0]), bool(kept[1]))
        self.run_worker(self._load(), group="runs")
        self.set_interval(RELOAD_SECONDS, self._tick)

    def _tick(self) -> None:
        if self.app.screen is self and not self._busy:
            self.run_worker(self._load(), group="runs")

    def on_screen_resume(self) -> None:
        """Back from a run."""
        if self.loaded:
            self._tick()

    async def _load(self) -> None:
        import asyncio

        if self._busy:
            return
        self._busy = True
        try:
            infos = await asyncio.to_thread(_list, self.runs_dir)
            before = self.all
            self.all = {}
            for info in infos:
                row = before.get(info.path) or RunRow(info)
                stale = row.info.step != info.step or row.info.status != info.status
                row.info = info
                row.known = row.known and not stale
                _summarise(row)
                self.all[info.path] = row
            self.problem = ""
        except (OSError, RecordError) as error:
            self.problem = str(error)
        finally:
            self._busy = False
        self.loaded = True
        self._arrange()
        for row in list(self.rows):
            if not row.known and self.is_attached:
                await asyncio.to_thread(_look, row)
                if row in self.rows:
                    self.table.repaint()

    def _arrange(self) -> None:
        """Filter and sort; the cursor stays on its run."""
        here = self.table.current
        wanted = self.text.casefold().split()

        def matches(row: RunRow) -> bool:
            i = row.info
            text = f"{i.id} {i.name} {i.status} {i.mode} {i.environment} {i.model}".casefold()
            return all(w in text for w in wanted)

        name, descending = self.sorting
        rows = [r for r in self.all.values() if matches(r)]
        rows.sort(key=lambda r: (_sort_key(r, name), r.info.created), reverse=descending)
        self.rows = rows
        self.table.sort = self.sorting
        at = next((i for i, r in enumerate(rows) if here is not None and r.info.path == here.info.path), 0)
        if len(rows) != self.table.total:
            self.frame.replan()
        self.table.reset(len(rows), at)
        self._show_card()
        self.marks = [m for m in self.marks if m in self.all]
        self.frame.refresh_lines()

    def _fetch(self, offset: int, limit: int) -> None:
        self.table.deliver(offset, self.rows[offset : offset + limit])

    def _columns(self, table: Any) -> Sequence[Column]:
        p = self.palette
        now = self.shell.clock()

        def status(r: RunRow) -> tuple[str, Any]:
            return f"{status_sign(r.info.status)} {r.info.status}", status_style(p, r.info.status)

        def steps(r: RunRow) -> tuple[str, Any]:
            step = max(r.info.step, r.step)
            return (f"{step:,}/{r.info.total_steps:,}" if r.info.total_steps else f"{step:,}"), p.text

        longest = max((len(r.info.id) for r in self.rows), default=4)
        return (
            Column("id", "run", min(max(6, longest), 24), lambda r: (r.info.id, p.strong)),
            Column("status", "status", 10, status),
            Column("mode", "mode", 6, lambda r: (r.info.mode, p.text), drop=3),
            Column("environment", "environment", 12, lambda r: (r.info.environment, p.text), drop=4, grow=0.6),
            Column("model", "model", 10, lambda r: (r.info.model, p.muted), drop=6, grow=0.6),
            Column("step", "step", 11, steps, ">", drop=1),
            Column("success", "success", 8, lambda r: (percent(r.success), p.strong), ">"),
            Column("reward", "reward", 7, lambda r: (fixed(r.reward), p.text), ">", drop=2),
            Column("", "reward over steps", 18, lambda r: (sparkline(r.curve, 18), p.accent), drop=5),
            Column(
                "created",
                "age",
                6,
                lambda r: (ago(now - r.info.created) if r.info.created else "–", p.muted),
                ">",
                drop=7,
            ),
            Column(
                "",
                "name",
                8,
                lambda r: (r.info.name or (r.info.error or ""), p.bad if r.info.error else p.muted),
                drop=8,
                grow=1.0,
            ),
        )

    def _empty(self) -> list[str]:
        if self.problem:
            return ["The runs cannot be read.", "", self.problem]
        if not self.loaded:
            return ["looking…"]
        if self.text and self.all:
            return ["No run matches.", "", "f changes the filter"]
        return [
            "No runs here yet.",
            "",
            "grpo-tui train",
            "trains the small built-in policy and shows it here",
            "",
            f"looked in {self.runs_dir}",
            "--runs-dir looks elsewhere · ? shows the keys",
        ]

    # -- keys ---------------------------------------------------------------------------------------------------

    @property
    def current(self) -> RunRow | None:
        """The run under the cursor."""
        return self.table.current

    def action_scroll(self, by: int) -> None:
        """One row."""
        self.table.move(by)

    def action_page(self, by: int) -> None:
        """One page."""
        self.table.move(by * max(1, self.table.body_height - 1))

    def action_first(self) -> None:
        """The first run."""
        self.table.move_to(0)

    def action_last(self) -> None:
        """The last run."""
        self.table.move_to(self.table.total - 1)

    def on_table_moved(self, message: Table.Moved) -> None:
        """The run below is the one under the cursor."""
        self._show_card()

    def _show_card(self) -> None:
        row = self.current
        self.card.put(row.info if row is not None else None)
        series = []
        summary = row.info.facts.get("summary") if row is not None else None
        if row is not None and isinstance(summary, dict):
            last = float(max(row.info.step, 1))
            for name, title in CURVES:
                curve = (summary.get(name) or {}).get("curve") or []
                if curve:
                    xs = [last * (i + 1) / len(curve) for i in range(len(curve))]
                    series.append(Series(title, xs, list(curve)))
        self.chart.put(row.info.id if row is not None else "", series, "nothing recorded yet")

    def on_table_selected(self, message: Table.Selected) -> None:
        """A click on the run under the cursor."""
        self.action_open()

    def action_open(self) -> None:
        """Live when it runs, else what was last looked at, else its trajectories."""
        row = self.current
        if row is None:
            return
        last = self.shell.memory.run(row.info.id).get("view")
        going = row.info.active
        if going or last == "live":
            self.action_live()
        else:
            self.action_trajectories()

    def _opening(self, view: str) -> RunRow | None:
        row = self.current
        if row is not None:
            self.shell.memory.put("seen_hint", True)
            self.shell.memory.run(row.info.id)["view"] = view
        return row

    def action_live(self) -> None:
        """The dashboard."""
        row = self._opening("live")
        if row is not None:
            self.shell.open(Live(Path(row.info.path)))

    def action_trajectories(self) -> None:
        """The trajectories."""
        row = self._opening("trajectories")
        if row is not None:
            self.shell.open(Trajectories(Path(row.info.path)))

    def action_mark(self) -> None:
        """Mark or unmark, and go on to the next."""
        row = self.current
        if row is None:
            return
        path = row.info.path
        if path in self.marks:
            self.marks.remove(path)
        else:
            self.marks.append(path)
        self.table.repaint()
        self.table.move(1)
        self.frame.refresh_header()

    def action_compare(self) -> None:
        """The marked runs over each other."""
        if len(self.marks) < 2:
            self.say("Mark two runs or more with space, then compare.")
            return
        self.shell.open(Compare(tuple(self.all[m].info for m in self.marks if m in self.all)))

    def action_reload(self) -> None:
        """Look again."""
        for row in self.all.values():
            row.known = False
        self._tick()

    def action_filter(self) -> None:
        """Type words that a run must hold."""
        from ..widgets.prompt_bar import ask

        ask(self, "Runs with", self.text, self._filtered, hint="words of id, name, status, mode, environment or model")

    def _filtered(self, text: str) -> None:
        self.text = text
        self._arrange()

    def action_sort(self) -> None:
        """The next column."""
        name = SORTS[(SORTS.index(self.sorting[0]) + 1) % len(SORTS)]
        self._sort(name, name in ("created", "success", "reward", "step"))

    def _sort(self, name: str, descending: bool) -> None:
        self.sorting = (name, descending)
        self.shell.memory.put("runs_sort", [name, descending])
        self._arrange()

    def on_pane_hit(self, message: Pane.Hit) -> None:
        """A click on a heading sorts."""
        match message.what:
            case ("sort", str(name)):
                self._sort(name, not self.sorting[1] if name == self.sorting[0] else True)

    def action_copy(self) -> None:
        """Copy the run's id."""
        if self.current is not None:
            self.app.copy_to_clipboard(self.current.info.id)
            self.say(f"Copied {self.current.info.id}")

    def action_stop_run(self) -> None:
        """Ask it to save and stop, when confirmed."""
        row = self.current
        if row is None:
            return
        if not row.info.active or row.info.status == "stopping":
            self.say(f"{row.info.id} is {row.info.status}.")
            return
        from ....engine.runs.control import request
        from .dialogs import confirm

        def answer(choice: object) -> None:
            if choice == 0:
                request(Path(row.info.path), "stop")
                self.say(f"Asked {row.info.id} to save and stop.")

        self.app.push_screen(confirm(f"Stop {row.info.id}? It saves a checkpoint first.", "Yes, save and stop"), answer)

    def action_rename(self) -> None:
        """Another name for people; the id stays."""
        row = self.current
        if row is None:
            return
        from ..widgets.prompt_bar import ask

        ask(self, f"Name of {row.info.id}", row.info.name, lambda text: self._rename(row, text))

    def _rename(self, row: RunRow, text: str) -> None:
        from .dialogs import confirm

        def answer(choice: object) -> None:
            if choice == 0:
                from ....engine.launch import LaunchError, rename_run

                try:
                    rename_run(row.info, text)
                except LaunchError as error:
                    self.say(str(error), "error")
                self._tick()

        if text != row.info.name:
            shown = f"“{text}”" if text else "no name"
            self.app.push_screen(confirm(f"Rename {row.info.id} to {shown}?", "Yes, rename"), answer)

    def action_delete(self) -> None:
        """Delete the run's folder, when confirmed; a run that goes on is not deleted."""
        row = self.current
        if row is None:
            return
        if row.info.active:
            self.say(f"{row.info.id} is {row.info.status}; stop it first (x).", "warning")
            return
        from .dialogs import confirm

        def answer(choice: object) -> None:
            if choice == 0:
                from ....engine.launch import LaunchError, delete_run

                self.shell.forget_run(row.info.path)
                try:
                    delete_run(row.info)
                except LaunchError as error:
                    self.say(str(error), "error")
                self._tick()

        text = f"Delete {row.info.id} and everything it recorded, with its checkpoints? This cannot be undone."
        self.app.push_screen(confirm(text, "Yes, delete it"), answer)


def _list(folder: Path) -> list[RunInfo]:
    from ....engine.launch import list_runs

    return list_runs(folder)


def _summarise(row: RunRow) -> None:
    """Success, reward and its curve from the run's status file, where the writer keeps them."""
    summary = row.info.facts.get("summary")
    if not isinstance(summary, dict):
        return
    row.known = True
    reward = summary.get("rewards/total/mean") or {}
    row.reward, row.curve = reward.get("last"), list(reward.get("curve") or ())
    for name in ("success/eval_greedy", "success/train", "online/success"):
        if name in summary:
            row.success = summary[name].get("last")
            break


def _look(row: RunRow) -> None:
    """Read the same from a run's record when the status file lacks it; a damaged one shows none."""
    from ....engine.imports.readers import open_reader

    row.known = True
    try:
        reader = open_reader(Path(row.info.path))
    except (RecordError, OSError):
        return
    try:
        latest = reader.metrics.latest()
        row.curve = [v for _, v in reader.metrics.points("rewards/total/mean", max_points=36)]
        row.reward = latest.get("rewards/total/mean")
        row.success = latest.get("success/eval_greedy", latest.get("success/train", latest.get("online/success")))
        row.step = int(latest.get("step", 0))
    except (RecordError, OSError):
        return
    finally:
        reader.close()


def _sort_key(row: RunRow, name: str) -> Any:
    match name:
        case "success" | "reward":
            value = getattr(row, name)
            return -1e9 if value is None else value
        case "status":
            order = ("running", "starting", "paused", "stopping", "crashed", "stopped", "finished")
            return order.index(row.info.status) if row.info.status in order else len(order)
        case _:
            return getattr(row.info, name)
