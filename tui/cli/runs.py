"""`grpo-tui runs` and `grpo-tui stop`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ...engine.runs.headline import Headline, of_record, of_status
from ...engine.runs.types import RunInfo
from .common import ExitCode, RunReference, RunsDir, fail, json_line, say

RUNS_HELP = "List the runs, newest first."
STOP_HELP = "Let a run save and stop."

HEADS = ("run", "status", "mode", "environment", "model", "step", "reward", "success", "age")


def find(home: Path, reference: str) -> RunInfo:
    """The run that `reference` means; ends the command with the nearest ids when there is none."""
    from ...engine.launch import find_run
    from ...engine.runs.errors import RunNotFound

    try:
        return find_run(home, reference)
    except RunNotFound as error:
        fail(str(error), ExitCode.NOT_FOUND)


def facts(run: RunInfo) -> dict[str, Any]:
    """A run as plain data, with its reward and success."""
    said = headline(run)
    fields = {name: getattr(run, name) for name in run.__dataclass_fields__}
    return {**fields, "reward": said.reward, "success": said.success}


def headline(run: RunInfo) -> Headline:
    """Reward and success of a run; the record is opened only where the status file does not say them."""
    said = of_status(run)
    if said is not None:
        return said
    from ...engine.imports.readers import open_reader
    from ...engine.runs.errors import RecordError

    try:
        with open_reader(Path(run.path)) as reader:
            return of_record(reader)
    except (RecordError, OSError):
        return Headline()


def runs(
    as_json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Print the runs."""
    from ...engine.launch import list_runs
    from ...engine.runs.paths import runs_dir as resolve_runs_dir

    home = resolve_runs_dir(runs_dir)
    found = list_runs(home)
    if as_json:
        for run in found:
            say(json_line(facts(run)))
        return
    if not found:
        say(f"no runs in {home} yet; start one with `grpo-tui train`")
        return
    from ..format import ago, number
    from ..text import line

    rows: list[tuple[str, ...]] = [HEADS]
    for run in found:
        data = facts(run)
        step = f"{run.step}/{run.total_steps}" if run.total_steps else str(run.step)
        environment = run.environment.rpartition(".")[2].rpartition(":")[2]
        age = ago(time.time() - run.created) if run.created else "–"
        rows.append(
            (
                line(run.id, 40),
                run.status,
                line(run.mode, 8),
                line(environment, 24),
                line(run.model, 28),
                step,
                number(data["reward"]),
                number(data["success"]),
                age,
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    for row in rows:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def stop(
    run: RunReference,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for the run to save.")] = 120.0,
    force: Annotated[bool, typer.Option("--force", help="Kill what still runs after the timeout.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Ask the run to finish its step, save a checkpoint and end; wait for it."""
    from ...engine.launch import LaunchError, stop_run
    from ...engine.launch.stop import living
    from ...engine.runs.paths import runs_dir as resolve_runs_dir

    info = find(resolve_runs_dir(runs_dir), run)
    left = living(Path(info.path))
    if not info.active and not left:
        say(f"run {info.id} is not running ({info.status} at step {info.step})")
        return
    if not info.active:
        say(f"run {info.id} has {info.status}; what is left of it is told to end: {', '.join(left)}")
    try:
        after = stop_run(info, timeout=timeout, force=force)
    except LaunchError as error:
        fail(str(error))
    still = living(Path(info.path))
    if after.active or still:
        what = f"run {info.id}" if after.active else f"the process {still[0]!r} of run {info.id}"
        fail(f"{what} has not stopped after {timeout:g} s; it still saves, or give a longer --timeout, or --force")
    say(f"run {after.id} {after.status} at step {after.step}")
    say(f"go on with: {after.resume_command}")
