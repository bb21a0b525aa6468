"""`grpo-tui check`: what is wrong with a run, or with rollouts of another framework, for people and for CI."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from .common import ExitCode, RunsDir, fail, json_line, say

HELP = """Look for what can go wrong with rewards, in a run or in a dump of another framework.

Prints each finding with the rollouts that show it, and exits with 1 when there is one (0: nothing was found), so that
a job in CI can stop on it.
"""


def check(
    reference: Annotated[str, typer.Argument(metavar="RUN_OR_DUMP", help="A run, or a file or folder of rollouts.")],
    as_json: Annotated[bool, typer.Option("--json", help="One finding a line, as JSON.")] = False,
    maps: Annotated[
        list[str] | None, typer.Option("--map", metavar="ROLE=KEY", help="What a key of a file means.")
    ] = None,
    importers: Annotated[
        list[str] | None, typer.Option("--importer", metavar="FILE.py", help="A format of your own.")
    ] = None,
    runs_dir: RunsDir = None,
) -> None:
    """Print findings; the exit code says whether there are any."""
    from ...engine.imports.check import findings
    from ...engine.imports.readers import open_reader
    from ...engine.runs.errors import RecordError
    from ...engine.runs.paths import runs_dir as resolve_runs_dir
    from ..text import literal
    from .dumps import is_path_of_dump, opened_dump
    from .runs import find

    home = resolve_runs_dir(runs_dir)
    if maps or importers or is_path_of_dump(reference, home):
        info, _ = opened_dump(reference, maps or (), importers or (), whole=True)
    else:
        info = find(home, reference)
    try:
        with closing(open_reader(Path(info.path))) as reader:
            found = findings(reader)
            total = reader.rollouts.total()
    except RecordError as error:
        fail(f"{reference} cannot be read: {error}")
    for each in found:
        finding = each.finding
        if as_json:
            say(json_line({**vars(finding), "step": each.step, "steps": each.count}))
            continue
        where = "" if each.step is None else f"step {each.step}: "
        say(literal(f"{finding.grade}: {where}{finding.message}"))
        for id_ in finding.trajectories:
            say(literal(f"  grpo-tui inspect {reference} --trajectory {id_}"))
    if not found and not as_json:
        say(f"nothing found in {total:,} rollouts")
    if any(each.finding.grade in ("warning", "failure") for each in found):
        raise typer.Exit(ExitCode.FAILED)
