"""The table of export formats: the content of a file, its suffix, and its writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engine.runs.types import RunInfo, Trajectory
from ..cli.output import fail, json_line, whole_text
from ..plain import Whole, trajectory_data
from ..text import file_name
from .chat import demonstration, openai, pairs, session, sharegpt
from .logs import atif, write_inspect

Write = Callable[[Path, Iterable[Whole], RunInfo], int]
Rows = Callable[[Iterable[Whole]], Iterable[dict[str, object]]]


@dataclass(frozen=True)
class ExportFormat:
    """suffix: of the default file, or of the default folder if `folder`. write: returns the number of rows."""

    suffix: str
    write: Write
    folder: bool = False


def _json_rows(wholes: Iterable[Whole]) -> Iterator[dict[str, object]]:
    for whole in wholes:
        yield {"n": whole.n, "step": whole.step} | trajectory_data(whole)


def _lines(rows: Rows) -> Write:
    return lambda path, wholes, info: _write_lines(path, rows(wholes))


def _each(convert: Callable[[Trajectory], dict[str, object]]) -> Write:
    """Return a writer of one line per rollout that has a turn."""
    return _lines(lambda wholes: (convert(w.record.trajectory) for w in wholes if w.record.trajectory.steps))


def _write_lines(path: Path, rows: Iterable[dict[str, object]]) -> int:
    with path.open("w", encoding="ascii") as file:
        return sum(1 for row in rows if file.write(json_line(row) + "\n"))


def _files(suffix: str, rows: Callable[[Whole, RunInfo], Iterable[dict[str, object]]]) -> Write:
    """Return a writer of a folder with one file per rollout."""

    def write(path: Path, wholes: Iterable[Whole], info: RunInfo) -> int:
        path.mkdir()
        names = ((whole, f"{whole.n:06}-{file_name(whole.record.trajectory.id)}.{suffix}") for whole in wholes)
        return sum(1 for whole, name in names if _write_lines(path / name, rows(whole, info)))

    return write


FORMATS = {
    "jsonl": ExportFormat("jsonl", _lines(_json_rows)),
    "parquet": ExportFormat("parquet", lambda path, wholes, info: write_parquet(path, _json_rows(wholes))),
    "messages": ExportFormat("messages.jsonl", _each(demonstration)),
    "openai": ExportFormat("openai.jsonl", _each(openai)),
    "sharegpt": ExportFormat("sharegpt.jsonl", _each(sharegpt)),
    "dpo": ExportFormat("dpo.jsonl", _lines(pairs)),
    "atif": ExportFormat("atif", _files("json", lambda whole, info: [atif(whole, info)]), folder=True),
    "sts": ExportFormat("sts", _files("jsonl", lambda whole, info: session(whole)), folder=True),
    "inspect": ExportFormat("eval", write_inspect),
}


BATCH = 1000
_OF_TRAJECTORY = ("id", "env", "group", "prompt_id", "prompt", "answer", "expected", "stop_reason", "error")
_AS_JSON = ("note", "breakdown", "advantage_formula", "recomputed", "not_recorded", "uses", "served")


def write_parquet(path: Path, rows: Iterable[Mapping[str, object]]) -> int:
    """Write a table. Fields to group by are columns. Nested fields that differ by environment are JSON text."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        fail("--format parquet needs pyarrow: pip install pyarrow; or write --format jsonl")

    types = {name: pa.string() for name in ("split", *_OF_TRAJECTORY, "task", "steps", "extra", *_AS_JSON)}
    types |= {name: pa.int64() for name in ("n", "step", "rollout", "policy_version")}
    types |= {name: pa.float64() for name in ("reward", "advantage")} | {"correct": pa.bool_()}
    types |= {"step_advantages": pa.list_(pa.float64())}
    types |= {name: pa.list_(pa.string()) for name in ("actions", "penalties")}
    schema = pa.schema(types)
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        batch: list[dict[str, object]] = []
        for row in rows:
            batch.append(_flat(row))
            count += 1
            if len(batch) == BATCH:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, schema=schema))
    return count


def _flat(row: Mapping[str, Any]) -> dict[str, object]:
    t, breakdown = row["trajectory"], row["breakdown"]
    penalties = [p["rule"] for s in breakdown["steps"] for p in s["penalties"]] if breakdown else []
    nested = {"task": t["task"], "steps": t["steps"], "extra": t.get("extra") or {}, **{k: row[k] for k in _AS_JSON}}
    flat = {
        **{name: t.get(name) for name in (*_OF_TRAJECTORY, "rollout", "correct")},
        **{name: row[name] for name in ("n", "step", "split", "policy_version", "advantage", "reward")},
        "step_advantages": [float(a) for a in row["step_advantages"]],
        "actions": [s["action"] or "?" for s in t["steps"]],
        "penalties": penalties,
        **{name: json_line(value) for name, value in nested.items()},
    }
    return {name: _whole_texts(value) for name, value in flat.items()}


def _whole_texts(value: object) -> object:
    if isinstance(value, list):
        return [_whole_texts(each) for each in value]
    return whole_text(value) if isinstance(value, str) else value
