"""Rollouts as a Parquet table."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..cli.output import fail

BATCH = 1000


def write_parquet(path: Path, rows: Iterable[dict[str, Any]]) -> int:
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
