"""`grpo-tui export`: the trajectories of a run as JSON lines, Parquet or demonstrations."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .common import ExitCode, Home, Importers, Maps, RunReference, fail, json_line, say

if TYPE_CHECKING:
    from ...engine.runs.read.reader import RunReader
    from ...engine.runs.types import Trajectory


BATCH = 1000


class Format(StrEnum):
    """The values of `--format`."""

    jsonl = "jsonl"
    parquet = "parquet"
    messages = "messages"


SUFFIXES = {Format.jsonl: "jsonl", Format.parquet: "parquet", Format.messages: "messages.jsonl"}


def export(
    run: RunReference,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="The file to write; else RUN.jsonl or RUN.parquet here."),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="jsonl, parquet or messages.")] = Format.jsonl,
    filter_: Annotated[str | None, typer.Option("--filter", metavar="EXPR", help="Only those that match.")] = None,
    maps: Maps = None,
    importers: Importers = None,
    *,
    home: Home,
) -> None:
    """Write the trajectories of a run, or of a dump of another framework, with their rewards, to a file.

    --format messages writes only the conversations, as `sft.data` of `--mode sft` takes them. --filter correct keeps
    the right ones.

    Numbers that were not recorded are null; an advantage computed from the rewards of the group is in `recomputed`.
    """
    from .dumps import opened, run_or_dump

    if out is not None and not out.parent.is_dir():
        fail(f"--out: there is no folder {out.parent}; make it first", ExitCode.USAGE)
    info = run_or_dump(run, home, maps or (), importers or ())
    if out is None and (out := Path(f"{Path(info.id).name}.{SUFFIXES[format_]}")).exists():
        fail(f"{out} is there already; name another file with --out, or this one to replace it", ExitCode.USAGE)
    part = out.with_name(f".{out.name}.{os.getpid()}.part")
    try:
        with opened(info) as reader:
            rows = _records(reader, filter_ or "", demonstrations=format_ is Format.messages)
            count = _write_parquet(part, rows) if format_ is Format.parquet else _write_jsonl(part, rows)
        os.replace(part, out)
    except OSError as error:
        fail(f"--out: {out} cannot be written: {error.strerror}")
    finally:
        part.unlink(missing_ok=True)
    say(f"wrote {count:,} trajectories to {out}")


def _records(reader: RunReader, filter_: str, *, demonstrations: bool) -> Iterator[dict[str, Any]]:
    from ..plain import read_whole, trajectory_data
    from .dumps import matching

    for row in matching(reader, filter_, "", None):
        whole = read_whole(reader, row.n)
        if not demonstrations:
            yield {"n": row.n, "step": row.step} | trajectory_data(whole)
        elif whole.record.trajectory.steps:
            yield demonstration(whole.record.trajectory)


def demonstration(t: Trajectory) -> dict[str, Any]:
    """Return a trajectory as a conversation: the agent's turns verbatim, the observations as the user's messages."""
    messages = [{"role": m.role, "content": m.text} for m in t.messages] or [{"role": "user", "content": t.prompt}]
    for step in t.steps:
        messages.append({"role": "assistant", "content": step.text})
        messages.append({"role": "user", "content": step.observation})
    tools = [tool.schema for tool in t.tools if tool.name in t.meta.get("offered", ())]
    return {"messages": messages[:-1], **({"tools": tools} if tools else {})}


def _write_jsonl(path: Path, rows: Iterator[dict[str, Any]]) -> int:
    count = 0
    with path.open("w", encoding="ascii") as file:
        for row in rows:
            file.write(json_line(row) + "\n")
            count += 1
    return count


def _write_parquet(path: Path, rows: Iterator[dict[str, Any]]) -> int:
    """Write a table. Fields that people group by are columns; nested fields that differ by environment are JSON
    text."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        fail("--format parquet needs pyarrow: pip install pyarrow; or write --format jsonl")

    text, integer, real = pa.string(), pa.int64(), pa.float64()
    schema = pa.schema(
        [
            ("n", integer),
            ("step", integer),
            ("id", text),
            ("env", text),
            ("split", text),
            ("group", text),
            ("prompt_id", text),
            ("rollout", integer),
            ("policy_version", integer),
            ("prompt", text),
            ("answer", text),
            ("expected", text),
            ("correct", pa.bool_()),
            ("stop_reason", text),
            ("error", text),
            ("reward", real),
            ("advantage", real),
            ("step_advantages", pa.list_(real)),
            ("actions", pa.list_(text)),
            ("penalties", pa.list_(text)),
            ("task", text),
            ("steps", text),
            ("breakdown", text),
            ("advantage_formula", text),
            ("recomputed", text),
            ("note", text),
            ("not_recorded", text),
            ("extra", text),
            ("uses", text),
            ("served", text),
        ]
    )
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        batch: list[dict[str, Any]] = []
        for row in rows:
            batch.append(_flat(row))
            count += 1
            if len(batch) == BATCH:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, schema=schema))
    return count


_AS_JSON = ("note", "breakdown", "advantage_formula", "recomputed", "not_recorded", "uses", "served")


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    t, breakdown = row["trajectory"], row["breakdown"]
    penalties = [p["rule"] for s in breakdown["steps"] for p in s["penalties"]] if breakdown else []
    same = ("id", "env", "group", "prompt_id", "rollout", "prompt", "answer", "expected", "correct", "stop_reason")
    return {name: t.get(name) for name in (*same, "error")} | {
        "n": row["n"],
        "step": row["step"],
        "split": row["split"],
        "policy_version": row["policy_version"],
        "reward": breakdown["total"] if breakdown else None,
        "advantage": row["advantage"],
        "step_advantages": [float(a) for a in row["step_advantages"]],
        "actions": [s["action"] or "?" for s in t["steps"]],
        "penalties": penalties,
        "task": json.dumps(t["task"], default=str),
        "steps": json.dumps(t["steps"], default=str),
        "extra": json.dumps(t.get("extra") or {}, default=str),
        **{name: json.dumps(row[name], default=str) for name in _AS_JSON},
    }
