"""`grpo-tui inspect`: the app on a run, or its facts for scripts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from ...engine.imports.background import is_path_of_dump
from ...engine.runs.masking import mask_text
from ...engine.runs.read.reader import RunReader
from ...engine.runs.remote.address import address_of
from ...engine.runs.search.conditions import TEXTS
from ...engine.runs.search.query import Query
from ...engine.runs.types import RunInfo, TrajectoryRow
from ..app.destinations import Destination, Live, Stepper, Trajectories
from ..format import count, mark, number, step_text
from ..plain import read_whole, trajectory_data
from ..text import line
from .app import open_dumped, open_run
from .common import ExitCode, Home, Importers, Maps, RunReference, fail, json_line, on_terminal, say, warn
from .dumps import argument_of, dump_notes, matching, named_run, opened, opened_dump, run_or_dump

EVENTS_SHOWN = 200


def inspect(
    run: RunReference,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text, one object per line.")] = False,
    trajectory: Annotated[
        str | None, typer.Option(metavar="ID", help="Print one whole trajectory, by id or number.")
    ] = None,
    filter_: Annotated[
        str | None,
        typer.Option("--filter", metavar="EXPR", help="Show matching trajectories, e.g. 'reward<0.2 and not correct'."),
    ] = None,
    search: Annotated[str | None, typer.Option(metavar="TEXT", help="Full-text search.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="List at most this many trajectories.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="N/STEP", help="Open the app at a rollout (number or id) and step.")
    ] = None,
    text: Annotated[
        bool, typer.Option("--text", help="With --at: print the rollout, or that step, as the stepper renders it.")
    ] = False,
    live: Annotated[bool, typer.Option("--live", help="Open the app at the dashboard.")] = False,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page for sharing (.html), or a picture (.svg).")
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="RUN", help="With --report: compare with another run or dump.")
    ] = None,
    maps: Maps = None,
    importers: Importers = None,
    *,
    home: Home,
) -> None:
    """Inspect a running or finished run, in the app on a terminal, otherwise as a summary.

    RUN can also be a file or folder of rollouts from another framework: TRL, verl, verifiers, prime-rl, inspect-ai and
    others, recognised by content (docs/importing.md). Runs and files can be on another machine: s3://…, hf://…,
    ssh://HOST/FOLDER, https://….

    --at, --live and --filter set where the app opens. --json, --trajectory, --limit and --report print or write plain
    data instead, and so does --filter without a terminal. --at N --text prints rollout N as the stepper renders it.
    A --report page can be filtered and stepped through without a server. --filter and --search choose its rollouts,
    and --against adds a second run.
    """
    options = InspectOptions(as_json, trajectory, filter_, search, limit, at, text, live, report, against)
    options.check()
    is_dump = bool(maps or importers) or is_path_of_dump(run, home)
    if not options.plain and is_dump:
        if at is not None:  # its rollout may be the last one
            opened_dump(run, maps, importers, whole=True)
        return open_dumped(home, run, maps, importers, options.start)
    info = options.open_dump(run, maps, importers) if is_dump else named_run(run, home)
    if not options.plain:
        return open_run(home, info, options.start(info))
    if report is not None:
        from .report import write_report

        others = [] if against is None else [run_or_dump(against, home, maps, importers)]
        return write_report(home, [info, *others], report, options.query)
    with opened(info) as reader:
        options.print(reader, info)


@dataclass(frozen=True)
class InspectOptions:
    """The options of `inspect`."""

    as_json: bool
    trajectory: str | None
    filter: str | None
    search: str | None
    limit: int | None
    at: str | None
    text: bool
    live: bool
    report: Path | None
    against: str | None

    @property
    def query(self) -> Query:
        return Query(self.filter or "", self.search or "")

    @property
    def listing(self) -> bool:
        """Whether the rollouts that match are printed. A report holds them instead."""
        listed = self.filter is not None or self.search is not None
        return self.report is None and (listed or (self.limit is not None and self.trajectory is None))

    @property
    def plain(self) -> bool:
        """Whether plain data is printed or written, instead of opening the app."""
        printing = self.as_json or self.text or self.limit is not None or self.trajectory is not None
        return printing or self.report is not None or not on_terminal()

    def check(self) -> None:
        """End the command where options exclude each other."""
        opens = self.at is not None or self.live
        if self.text and (self.at is None or self.as_json):
            fail("--text prints one rollout: give it with --at, and leave --json out", ExitCode.USAGE)
        if opens and self.plain and not self.text:
            fail("--at and --live open the app: they need a terminal and no option that prints", ExitCode.USAGE)
        ways = (self.trajectory is not None, self.listing, self.report is not None, self.at is not None, self.live)
        if sum(ways) > 1:
            wrong = "--trajectory, --filter (with --search), --report, --at and --live exclude each other; give one"
            fail(wrong, ExitCode.USAGE)
        if self.against is not None and self.report is None:
            fail("--against needs --report; to compare in the app, mark two runs in the list", ExitCode.USAGE)

    def open_dump(self, path: str, maps: list[str] | None, importers: list[str] | None) -> RunInfo:
        """Open a dump as a run, with a full-text index if these options search in texts, and print its notes."""
        texts = bool(self.search) or any(f"{key}:" in (self.filter or "") for key in TEXTS)
        info, dump = opened_dump(path, maps, importers, whole=True, searchable=texts)
        for note in dump_notes(dump.summary) if not self.as_json else ():
            warn(note)
        return info

    def start(self, info: RunInfo) -> Destination | None:
        """Return where the app opens; None: where the run is best looked at."""
        path = Path(info.path)
        if self.live:
            return Live(path)
        with opened(info) as reader:
            if self.at is not None:
                n, step = _place(reader, self.at)
                return Stepper(path, n, step=step or 0)
            if not self.query.everything:
                reader.rollouts.least(self.query)  # an error of the filter is reported before the app opens
                return Trajectories(path, self.query)
        return None

    def print(self, reader: RunReader, info: RunInfo) -> None:
        if self.at is not None:
            from ..app.printed import page_width, text_lines

            n, step = _place(reader, self.at)
            for text in text_lines(reader.bodies.trajectory(n), step, page_width()):
                say(text)
        elif self.trajectory is not None:
            _print_one(reader, info, self.trajectory, as_json=self.as_json)
        elif self.listing:
            for row in matching(reader, self.filter or "", self.search or "", self.limit):
                say(json_line(row) if self.as_json else _row_text(row))
        elif self.as_json:
            say(json_line(summary(reader, info)))
        else:
            _print_summary(reader, info)


def _place(reader: RunReader, at: str) -> tuple[int, int | None]:
    """Return number and step (from 0; None if none is named) of the value of `--at`."""
    reference, slash, step = at.rpartition("/")
    try:
        return reader.bodies.number(at), None  # an id may contain a slash
    except LookupError:
        if not (slash and step.isdecimal()):
            reference, step = at, "1"
    try:
        n = reader.bodies.number(reference)
    except LookupError as error:
        fail(f"--at: {error}", ExitCode.NOT_FOUND)
    if int(step) > (steps := len(reader.bodies.trajectory(n).trajectory.steps)):
        fail(f"--at: rollout {n} has {count(steps, 'step')}, and no step {int(step)}", ExitCode.NOT_FOUND)
    return n, max(0, int(step) - 1)


def summary(reader: RunReader, info: RunInfo) -> dict[str, object]:
    """Return the facts of a run that fit on a page, as plain data."""
    kinds = {"alerts": ("alert",), "evaluations": ("eval",), "beta": ("beta",), "snapshots": ("snapshot",)}
    return {
        "run": info,
        "trajectories": reader.rollouts.total(),
        "latest": reader.metrics.latest(),
        **{name: reader.events(kinds=kind, limit=EVENTS_SHOWN) for name, kind in kinds.items()},
        "events": reader.events(limit=EVENTS_SHOWN),
    }


def _print_summary(reader: RunReader, info: RunInfo) -> None:
    dump = info.facts.get("dump")
    name = argument_of(info)
    step, stored = step_text(info), count(reader.rollouts.total(), "trajectory", "trajectories")
    if dump:
        where = f"up to step {step}" if step != "–" else "without steps"
        say(f"dump {quote(str(dump))}: {info.environment}, {stored} {where}")
        means = ", ".join(f"{k} {number(v)}" for k, v in (info.facts.get("means") or {}).items())
        if means:
            say(f"means of all rollouts: {means}")
    else:
        place = mask_text(address_of(Path(info.path)) or info.path)
        say(f"run {info.id}: {info.status} at step {step}, mode {info.mode or 'not recorded'}, in {place}")
        say(f"environment {info.environment or '–'}, model {info.model or '–'}, {stored}")
    if info.error:
        say(f"error: {(info.error.strip().splitlines() or ['unknown'])[-1]}")
    for metric, value in sorted(reader.metrics.latest().items()):
        say(f"  {metric:44} {number(value)}")
    for event in reader.events(kinds=("alert", "eval", "record", "error"), limit=20):
        say(f"  {f'step {event.step}: ' if event.step or not dump else ''}{event.message}")
    if not reader.rollouts.total():
        return
    what, shown = ("all rollouts", "''") if dump else ("penalised rollouts", "'penalties>0'")
    say(f"{what}: grpo-tui inspect {name} --filter {shown}, then --trajectory ID")


def _row_text(row: TrajectoryRow) -> str:
    actions = " ▸ ".join(row.actions) if row.words is None else row.words
    step = "–" if row.step is None else row.step
    return (
        f"{row.n:>8} {line(row.id, 36)} step {step:>5} {mark(row.correct)} reward {number(row.reward):>6} "
        f"A {number(row.advantage, signed=True):>6} penalties {row.penalties:>2}  {line(actions, 100)}"
    )


def _print_one(reader: RunReader, info: RunInfo, reference: str, *, as_json: bool) -> None:
    from ..app.printed import page_width, whole_lines

    try:
        rollout = read_whole(reader, reference)
    except LookupError as error:
        fail(f"{error}; list the ids with `grpo-tui inspect {argument_of(info)} --filter ''`", ExitCode.NOT_FOUND)
    if as_json:
        say(json_line(trajectory_data(rollout)))
        return
    for text in whole_lines(rollout, page_width()):
        say(text)
