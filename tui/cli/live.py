"""`grpo-tui live`: the dashboard of an active run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .common import ExitCode, RunsDir, fail, known_runs, on_terminal

HELP = """Open the dashboard of the active run; of several, the newest.

With RUN, open the dashboard of that run, active or ended. Any terminal will do, also over ssh.
"""


def live(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="A run's id, or a unique beginning of it.", autocompletion=known_runs),
    ] = None,
    runs_dir: RunsDir = None,
) -> None:
    """Find the run and open the app on it."""
    from ...engine.launch.find import list_runs
    from ...engine.runs.paths import runs_dir as resolve_runs_dir
    from .runs import find

    if not on_terminal():
        fail(
            "the dashboard needs a terminal; for plain output use `grpo-tui runs` or `grpo-tui inspect RUN`",
            ExitCode.USAGE,
        )
    home = resolve_runs_dir(runs_dir)
    if run is not None:
        info = find(home, run)
    else:
        runs = list_runs(home)
        info = next((r for r in runs if r.active), None)
        if info is None:
            last = f"; the newest run has ended: grpo-tui inspect {runs[0].id}" if runs else ""
            fail(f"nothing is being recorded in {home}{last}", ExitCode.NOT_FOUND)
    from ..app.destinations import Live
    from .app import open_run

    open_run(home, info, Live(Path(info.path)))
