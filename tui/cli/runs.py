"""`grpo-tui runs` and `grpo-tui stop`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .common import ExitCode, RunReference, RunsDir, fail, say

if TYPE_CHECKING:
    from ...engine.runs.types import RunInfo

RUNS_HELP = "List the runs, newest first."
STOP_HELP = "Let a run save and stop."


def find(home: Path, reference: str) -> RunInfo:
    """Return the run that `reference` names. Ends the command with the nearest ids if there is none."""
    from ...engine.launch import find_run
    from ...engine.runs.errors import RunNotFound

    try:
        return find_run(home, reference)
    except RunNotFound as error:
        fail(str(error), ExitCode.NOT_FOUND)


def runs(
    as_json: Annotated[bool, typer.Option("--json", help="One object a line.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Print the runs."""
    from .run_table import print_runs

    print_runs(runs_dir, as_json=as_json)


def stop(
    run: RunReference,
    timeout: Annotated[float, typer.Option("--timeout", min=0, help="Seconds to wait for the run to save.")] = 120.0,
    force: Annotated[bool, typer.Option("--force", help="Kill what still runs after the timeout.")] = False,
    runs_dir: RunsDir = None,
) -> None:
    """Ask the run to finish its step, save a checkpoint and end. Wait for it."""
    from ...engine.launch import LaunchError, stop_run
    from ...engine.launch.stop import living
    from ...engine.runs.paths import runs_dir as resolve_runs_dir

    info = find(resolve_runs_dir(runs_dir), run)
    left = living(Path(info.path))
    if not info.active and not left:
        say(f"run {info.id} is not running ({info.status} at step {info.step})")
        return
    if not info.active:
        say(f"run {info.id} has {info.status}; its other processes are told to end: {', '.join(left)}")
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
