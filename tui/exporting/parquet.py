"""Rollouts as a Parquet table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..cli.output import fail

BATCH = 1000
_OF_TRAJECTORY = ("id", "env", "group", "prompt_id", "prompt", "answer", "expected", "stop_reason", "error")
_AS_JSON = ("note", "breakdown", "advantage_formula", "recomputed", "not_recorded", "uses", "served")


def write_parquet(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a table. Fields that people group by are columns; nested fields that differ by environment are JSON
    text."""
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
        batch: list[dict[str, Any]] = []
        for row in rows:
            batch.append(_flat(row))
            count += 1
            if len(batch) == BATCH:
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, schema=schema))
    return count


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    t, breakdown = row["trajectory"], row["breakdown"]
    penalties = [p["rule"] for s in breakdown["steps"] for p in s["penalties"]] if breakdown else []
    nested = {"task": t["task"], "steps": t["steps"], "extra": t.get("extra") or {}, **{k: row[k] for k in _AS_JSON}}
    return {
        **{name: t.get(name) for name in (*_OF_TRAJECTORY, "rollout", "correct")},
        **{name: row[name] for name in ("n", "step", "split", "policy_version", "advantage")},
        "reward": breakdown["total"] if breakdown else None,
        "step_advantages": [float(a) for a in row["step_advantages"]],
        "actions": [s["action"] or "?" for s in t["steps"]],
        "penalties": penalties,
        **{name: json.dumps(value, default=str) for name, value in nested.items()},
    }
