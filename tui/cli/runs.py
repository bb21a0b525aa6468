"""`grpo-tui runs`, `live`, `stop` and `repair`."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Annotated

import typer

from ...engine.launch import LaunchError
from ...engine.launch.find import find_run, list_runs
from ...engine.launch.stop import living, stop_run
from ...engine.runs.errors import RecordError
from ...engine.runs.read.record import damage
from ..app.destinations import Live
from .common import ExitCode, Home, RunReference, fail, known_runs, on_terminal, say


def runs(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    *,
    home: Home,
) -> None:
    """List the runs, newest first."""
    from .run_table import print_runs

    print_runs(home, as_json=as_json)


def stop(
    run: RunReference,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the run to save.")] = 120.0,
    force: Annotated[bool, typer.Option("--force", help="Kill processes that still run after the timeout.")] = False,
    *,
    home: Home,
) -> None:
    """Save and stop a run."""

    info = find_run(home, run)
    left = living(Path(info.path))
    if not info.active and not left:
        say(f"run {info.id} is not running ({info.status} at step {info.step})")
        return
    if not info.active:
        say(f"run {info.id} has {info.status}; stopping its other processes: {', '.join(left)}")
    try:
        after = stop_run(info, timeout=timeout, force=force)
    except LaunchError as error:
        fail(str(error))
    still = living(Path(info.path))
    if after.active or still:
        what = f"run {info.id}" if after.active else f"the process {still[0]!r} of run {info.id}"
        fail(f"{what} has not stopped after {timeout:g} s and may still be saving; give a longer --timeout, or --force")
    say(f"run {after.id} {after.status} at step {after.step}")
    if after.resume_command:
        say(f"resume with: {after.resume_command}")


def repair(run: RunReference, *, home: Home) -> None:
    """Save the readable part of a run's damaged record into a new one. The damaged file is kept."""
    from ...engine.runs.health.repair import repair as repaired

    info = find_run(home, run)
    path = Path(info.path)
    if info.active or living(path):
        fail(f"run {info.id} is {info.status}: stop it before you repair its record")
    problem = damage(path)
    say(problem or "the record has no damaged pages; rebuilding it from its trajectories")
    try:
        done = repaired(path)
    except RecordError as error:
        fail(f"nothing can be saved: {error}; to start a new record, move that file away and run repair again")
    except (OSError, sqlite3.Error) as error:
        fail(f"the new record cannot be written: {getattr(error, 'strerror', None) or error}")
    lost = done.expected - done.saved
    say(
        f"saved {done.saved:,} of {done.expected:,} trajectories, {done.metrics:,} metric values and "
        f"{done.events:,} events" + (f"; {lost:,} trajectories are lost" if lost else "")
    )
    if done.kept is not None:
        say(f"the old record is kept as {done.kept}")


def live(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run's id, or a unique prefix of it.", autocompletion=known_runs),
    ] = None,
    *,
    home: Home,
) -> None:
    """Open the dashboard of the newest active run.

    With RUN, open the dashboard of that run, active or ended. It works in any terminal, also over ssh.
    """

    if not on_terminal():
        fail(
            "the dashboard needs a terminal; for plain output use `grpo-tui runs` or `grpo-tui inspect RUN`",
            ExitCode.USAGE,
        )
    if run is not None:
        info = find_run(home, run)
    else:
        runs = list_runs(home)
        info = next((r for r in runs if r.active), None)
        if info is None:
            last = f"; the newest run has ended: grpo-tui inspect {runs[0].reference}" if runs else ""
            fail(f"no run is active in {home}{last}", ExitCode.NOT_FOUND)
    from .app import open_run

    open_run(home, info, Live(Path(info.path)))
