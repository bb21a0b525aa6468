"""Rows of lists, read from the tables that hold their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .labels import Labels
from .learning import marks_of
from .record import Record
from .schema import ADDED, FLAG_SENT
from .types import TrajectoryRow

_SOME = 500
"""Numbers in one query."""


_COLUMNS = {
    "n": "rows.n",
    "id": "cards.id",
    "step": "step",
    "group": "groups.name",
    "prompt_id": "prompts.name",
    "rollout": "rollout",
    "env": "env",
    "split": "split",
    "reward": "reward",
    "advantage": "advantage",
    "correct": "correct",
    "turns": "turns",
    "tokens": "tokens",
    "penalties": "penalties",
    "stop": "stop",
    "actions": "cards.actions",
    "prompt": "prompts.head",
    "answer": "cards.answer",
    "rules": "rules",
    "policy_version": "version",
    "uses": "uses",
    "gate": "gate",
    "confidence": "confidence",
    "flags": "flags",
}
"""What a row of a list is made of, by name, and where it stands in the database."""
_TABLES = (
    "rows JOIN cards ON cards.n = rows.n LEFT JOIN groups ON groups.id = rows.grp "
    "LEFT JOIN prompts ON prompts.id = rows.prompt"
)


def by_number(record: Record, numbers: Sequence[int]) -> list[TrajectoryRow]:
    """The rows with these numbers, in this order; those that are not there are left out."""
    found: dict[int, TrajectoryRow] = {}
    for start in range(0, len(numbers), _SOME):
        part = numbers[start : start + _SOME]
        before = record.damages
        rows = where(record, f"rows.n IN ({','.join('?' * len(part))})", part)
        if record.damages > before:  # a damaged page: one by one, so that it costs only its own rows
            rows = [row for n in part for row in where(record, "rows.n = ?", (n,))]
        found.update((row.n, row) for row in rows)
    return [found[n] for n in numbers if n in found]


def where(record: Record, condition: str, params: Sequence[Any]) -> list[TrajectoryRow]:
    """The rows of which a condition holds; it may end in ORDER BY and LIMIT."""
    # columns that an older record has not are NULL
    columns = ("NULL" if c in ADDED and c not in record.columns else c for c in _COLUMNS.values())
    found = record.all(f"SELECT {', '.join(columns)} FROM {_TABLES} WHERE {condition}", params)
    labels = record.labels() if found else None
    if labels is None:
        return []
    extras = _extras(record, labels, [row[0] for row in found])
    return [_row(dict(zip(_COLUMNS, row, strict=True)), labels, extras.get(row[0], {})) for row in found]


def _extras(record: Record, labels: Labels, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
    """The record's own columns of some rows, by number. Most records have none."""
    names = labels.of_kind("extra")
    values: dict[int, dict[str, Any]] = {}
    if not names:
        return values
    for start in range(0, len(numbers), _SOME):
        part = numbers[start : start + _SOME]
        sql = (
            f"SELECT n, name, number, text FROM extras WHERE name IN ({','.join('?' * len(names))}) "
            f"AND n IN ({','.join('?' * len(part))})"
        )
        for n, name, number, text in record.all(sql, [*names.values(), *part]):
            values.setdefault(n, {})[labels.names[name]] = number if text is None else text
    return values


def _row(row: dict[str, Any], labels: Labels, extra: dict[str, Any]) -> TrajectoryRow:
    names = labels.names
    return TrajectoryRow(
        n=row["n"],
        id=row["id"],
        step=row["step"],
        group=row["group"] or "",
        prompt_id=row["prompt_id"] or "",
        rollout=row["rollout"],
        env=names.get(row["env"], ""),
        split=names.get(row["split"], ""),
        reward=row["reward"],
        advantage=row["advantage"],
        correct=None if row["correct"] is None else bool(row["correct"]),
        turns=row["turns"],
        tokens=row["tokens"],
        penalties=row["penalties"],
        stop_reason=names.get(row["stop"], ""),
        actions=tuple(names.get(int(a), "?") for a in row["actions"].split(",") if a),
        prompt=row["prompt"] or "",
        answer=row["answer"],
        rules=labels.of_mask("penalty", row["rules"]) if row["rules"] else (),
        policy_version=row["policy_version"],
        uses=None if row["uses"] is None else marks_of(row["uses"]),
        gate=names.get(row["gate"], ""),
        confidence=row["confidence"],
        sent=None if row["gate"] is None else bool(row["flags"] & FLAG_SENT),
        extra=extra,
    )
