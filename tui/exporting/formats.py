"""The table of formats: what a file of each holds, its ending, and its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.runs.types import RunInfo
from ..cli.output import json_line
from ..plain import Whole, trajectory_data
from .chat import demonstration, openai, pairs, session, sharegpt
from .logs import atif, write_inspect
from .parquet import write_parquet

Write = Callable[[Path, Iterable[Whole], RunInfo], int]
Rows = Callable[[Iterable[Whole], RunInfo], Iterable[dict[str, Any]]]


@dataclass(frozen=True)
class Format:
    """suffix: of the file that is written by default; of a folder if `folder`. write: returns the number of rows."""

    suffix: str
    write: Write
    folder: bool = False


def _whole(wholes: Iterable[Whole], info: RunInfo) -> Iterator[dict[str, Any]]:
    for whole in wholes:
        yield {"n": whole.n, "step": whole.step} | trajectory_data(whole)


def _lines(rows: Rows) -> Write:
    """Return a writer of JSON lines."""

    def write(path: Path, wholes: Iterable[Whole], info: RunInfo) -> int:
        return _write_lines(path, rows(wholes, info))

    return write


def _each(made: Callable[[Any], dict[str, Any]]) -> Write:
    """Return a writer of one line for each rollout with a turn."""
    acting = lambda wholes: (w.record.trajectory for w in wholes if w.record.trajectory.steps)  # noqa: E731
    return _lines(lambda wholes, info: map(made, acting(wholes)))


def _write_lines(path: Path, rows: Iterable[dict[str, Any]]) -> int:
    count = 0
    with path.open("w", encoding="ascii") as file:
        for row in rows:
            file.write(json_line(row) + "\n")
            count += 1
    return count


def _write_sessions(path: Path, wholes: Iterable[Whole], info: RunInfo) -> int:
    path.mkdir()
    return sum(1 for w in wholes if _write_lines(path / f"{_name(w)}.jsonl", session(w)))


def _write_atif(path: Path, wholes: Iterable[Whole], info: RunInfo) -> int:
    path.mkdir()
    return sum(_write_lines(path / f"{_name(w)}.json", [atif(w, info)]) for w in wholes)


def _name(whole: Whole) -> str:
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "_" for c in whole.record.trajectory.id)
    return f"{whole.n:06}-{safe[:80]}"


FORMATS = {
    "jsonl": Format("jsonl", _lines(_whole)),
    "parquet": Format("parquet", lambda path, wholes, info: write_parquet(path, _whole(wholes, info))),
    "messages": Format("messages.jsonl", _each(demonstration)),
    "openai": Format("openai.jsonl", _each(openai)),
    "sharegpt": Format("sharegpt.jsonl", _each(sharegpt)),
    "dpo": Format("dpo.jsonl", _lines(lambda wholes, info: pairs(wholes))),
    "atif": Format("atif", _write_atif, folder=True),
    "sts": Format("sts", _write_sessions, folder=True),
    "inspect": Format("eval", write_inspect),
}
