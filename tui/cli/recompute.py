"""`grpo-tui check --recompute`: compute the numbers of a record or dump again and name those that differ."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import typer

from ...configs.errors import ConfigError
from ...engine.imports.readers import open_reader
from ...engine.launch.settings import read_config
from ...engine.recompute import Report
from ...engine.recompute import recompute as recompute_run
from ...engine.recompute.dumps import FORMULAS, recompute_dump
from ...engine.recompute.trl import is_trl, recompute_trl
from ...engine.runs.errors import RecordError
from ...engine.runs.read.reader import RunReader
from ...engine.runs.types import RunInfo
from .common import ExitCode, fail, json_line, say, warn
from .dumps import run_or_dump


def recompute(
    reference: str, as_json: bool, home: Path, maps: Sequence[str], importers: Sequence[str], formula: str
) -> None:
    """Print each number that differs from its recomputation. Exits with 1 if there is one."""
    info = run_or_dump(reference, home, maps, importers)
    try:
        with closing(open_reader(Path(info.path))) as reader:
            report = report_of(info, reader, formula)
            problems = reader.problems
    except (RecordError, ConfigError) as error:
        fail(f"{reference} cannot be computed again: {error}")
    for wrong in report.wrong:
        say(json_line(vars(wrong)) if as_json else f"wrong: {wrong}")
    for problem in problems:
        warn(f"not read: {problem}")
    if not as_json:
        for what, why in report.given.items():
            say(f"taken as recorded: {what} ({why})")
        say(f"{report.total:,} numbers computed again, {len(report.wrong):,} wrong")
    if report.wrong or problems:
        raise typer.Exit(ExitCode.FAILED)


def report_of(info: RunInfo, reader: RunReader, formula: str) -> Report:
    """Compute again what the record declares: a training of this program, one of TRL, or rollouts of another one."""
    if formula and formula not in FORMULAS:
        fail(f"--formula {formula} is unknown; right would be one of {', '.join(FORMULAS)}", ExitCode.USAGE)
    if info.mode == "recorded" and not formula and is_trl(reader):
        return recompute_trl(reader)
    if info.mode in ("recorded", "dump"):
        return recompute_dump(reader, formula)
    config = read_config(info.path)
    if config.mode != "rft":
        fail(f"{info.id} has mode {config.mode}: only trainings by reinforcement (rft) can be computed again")
    return recompute_run(reader, config)
