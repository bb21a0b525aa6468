"""`grpo-tui export`: the trajectories of a run in the formats of `exporting/formats.py`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...engine.runs.read.reader import RunReader
from ...engine.runs.types import RunInfo, TrajectoryRow
from ..plain import Whole, read_whole
from .common import ExitCode, Home, Importers, Maps, RunReference, fail, say
from .dumps import matching, opened, run_or_dump

if TYPE_CHECKING:
    from ..exporting.formats import ExportFormat


Format = StrEnum("Format", ["jsonl", "parquet", "messages", "openai", "sharegpt", "dpo", "atif", "inspect", "sts"])
"""The keys of `FORMATS`, which is loaded when it is needed."""


def export(
    run: RunReference,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file or folder to write. Default: RUN.jsonl, … here. - writes to a pipe."
        ),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="The format (see above).")] = Format.jsonl,
    filter_: Annotated[
        str | None, typer.Option("--filter", metavar="EXPR", help="Export only matching trajectories.")
    ] = None,
    best: Annotated[
        bool,
        typer.Option("--best-of-group", help="Export only the match with the highest reward in each group."),
    ] = False,
    maps: Maps = None,
    importers: Importers = None,
    *,
    home: Home,
) -> ExitCode:
    """Write the trajectories of a run, or of a dump of another framework, with their rewards, to a file.

    jsonl, parquet: everything. messages: conversations for `sft.data` of `--mode sft`. openai, sharegpt: conversations
    with tool calls, for SFT, for example with --filter 'reward>0.9' --best-of-group. dpo: the best and the worst
    rollout of each group, for TRL's DPOTrainer. inspect: a log of inspect-ai. atif, sts: a folder with one file per
    rollout, as ATIF or as sessions of the trace viewer of the Hugging Face Hub.

    Unrecorded numbers are null. `recomputed` holds an advantage that was computed from the rewards of the group. If a
    part of the record cannot be read, the rest is written, and the exit code is 1.
    """
    from ..exporting.formats import FORMATS

    chosen = FORMATS[format_]
    if out == Path("-"):
        return _print(chosen, run_or_dump(run, home, maps, importers), filter_ or "", best)
    info = run_or_dump(run, home, maps, importers)
    named = out is not None
    out = out or Path(f"{Path(info.id).name}.{chosen.suffix}")
    _refuse(out, chosen, named)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with opened(info) as reader:
            count = chosen.write(part, _rollouts(reader, filter_ or "", best), info)
            problems = reader.problems
        os.replace(part, out)
    except OSError as error:
        fail(f"--out: {out} cannot be written: {error.strerror}")
    finally:
        shutil.rmtree(part, ignore_errors=True) if part.is_dir() else part.unlink(missing_ok=True)
    what = "trajectory" if count == 1 else "trajectories"
    what = f"{'pair' if count == 1 else 'pairs'} of trajectories" if format_ is Format.dpo else what
    say(f"wrote {count:,} {what} to {out}")
    return ExitCode.FAILED if problems else ExitCode.OK


def _refuse(out: Path, chosen: ExportFormat, named: bool) -> None:
    if not out.parent.is_dir():
        fail(f"--out: there is no folder {out.parent}; create it first", ExitCode.USAGE)
    if not out.exists():
        return
    if not (out.is_file() or out.is_dir()):
        fail(f"--out: {out} is not a file; --out - writes to a pipe", ExitCode.USAGE)
    if not named:
        replacing = "" if chosen.folder else ", or --out this one to replace it"
        fail(f"{out} already exists; choose another with --out{replacing}", ExitCode.USAGE)
    if chosen.folder or out.is_dir():
        fail(f"{out} already exists; choose another", ExitCode.USAGE)


def _print(chosen: ExportFormat, info: RunInfo, filter_: str, best: bool) -> ExitCode:
    if chosen.folder:
        fail("--out -: this format writes a folder; give a folder", ExitCode.USAGE)
    if sys.stdout.isatty():  # texts of a model may hold codes for the terminal
        fail("--out - is for a pipe or a file; `grpo-tui inspect` shows trajectories in a terminal", ExitCode.USAGE)
    with tempfile.TemporaryDirectory() as folder, opened(info) as reader:
        part = Path(folder) / "part"
        chosen.write(part, _rollouts(reader, filter_, best), info)
        with part.open("rb") as file:
            shutil.copyfileobj(file, sys.stdout.buffer)
        return ExitCode.FAILED if reader.problems else ExitCode.OK


def _rollouts(reader: RunReader, filter_: str, best: bool) -> Iterator[Whole]:
    rows = matching(reader, filter_, "", None)
    group_of = lru_cache(16)(reader.rollouts.group)
    for row in _best(rows) if best else rows:
        whole = read_whole(reader, row.n, group_of)
        yield replace(whole, record=replace(whole.record, token_count=row.tokens), step=row.step)


def _best(rows: Iterator[TrajectoryRow]) -> Iterator[TrajectoryRow]:
    """Yield the row with the highest reward of each group, the first of equal ones. Unknown rewards do not count."""
    found: dict[str, TrajectoryRow] = {}
    for row in rows:
        if row.reward is not None and row.reward == row.reward:
            before = found.setdefault(row.group, row)
            if before.reward is not None and row.reward > before.reward:
                found[row.group] = row
    yield from found.values()
