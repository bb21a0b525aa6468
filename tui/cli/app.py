"""The commands' way into the terminal app, on a run or on a dump.

A separate process opens a dump. It starts before this one loads anything, because both take about as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ...engine.imports.background import Opening
from .output import own_importers

if TYPE_CHECKING:
    from ...engine.runs.types import RunInfo
    from ..app.destinations import Destination

PLAIN = {"keys": {}, "importers": []}
"""`Options.to_json()` of a dump without options. Importing `Options` would load the readers of files."""


def open_run(runs_dir: Path, run: RunInfo, start: Destination | None = None) -> None:
    """Open the app on one run, by default on the dashboard of an active run, the trajectories of an ended one.

    Leaving it leaves the run going and prints how to return.
    """
    from ..app.app import run_app
    from ..app.destinations import Live, Trajectories

    run_app(runs_dir, start or (Live if run.active else Trajectories)(Path(run.path)))
    # afterwards, so that nobody waits for Typer before the first paint
    from ...engine.runs.control.status import look
    from .common import say

    after = look(Path(run.path))
    if after.active:
        total = f"/{after.total_steps}" if after.total_steps else ""
        say(f"run {run.id} continues ({after.status}, step {after.step}{total})")
        say(f"open it again: grpo-tui inspect {run.reference} · save and stop: grpo-tui stop {run.reference}")


def open_dumped(
    runs_dir: Path,
    reference: str,
    maps: Sequence[str] | None = None,
    importers: Sequence[str] | None = None,
    start: Callable[[RunInfo], Destination | None] | None = None,
) -> None:
    """Open the app as soon as the first rows are read. The reading process continues and follows growing files.

    start: where the app opens, instead of the list. Without rollouts it is the dashboard. A dump that cannot be opened
    ends the command with one line.
    """
    options = PLAIN
    if maps or importers or own_importers():
        from .dumps import options_of

        options = options_of(maps, importers).to_json()
    with Opening(reference, options) as opening:
        from ..app.app import run_app
        from ..app.destinations import Live, Trajectories
        from .common import fail
        from .dumps import dump_notes, info_of, opened_dump

        dump = opening.opened()
        if isinstance(dump, str):
            fail(dump)
        if dump is None:
            dump = opened_dump(reference, maps, importers, whole=False)[1]
        first = start(info_of(dump.folder)) if start is not None else None
        place = Trajectories(dump.folder) if dump.more or dump.summary["rollouts"] else Live(dump.folder)
        # the recognised formats, and the skipped parts
        greeting = [text for text in dump_notes(dump.summary) if not text.startswith("not in ")][:4]
        run_app(runs_dir, first or place, greeting="\n".join(greeting))
