"""Rows of lists, read from the tables that hold their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from ..columns import COLUMNS, Flag, Kind
from ..labels import Labels
from ..learning import marks_of
from ..types import TrajectoryRow
from .record import Record

_SOME = 500
"""Numbers in one query."""


_CARD = {
    "n": "rows.n",
    "id": "cards.id",
    "group": "groups.name",
    "prompt_id": "prompts.name",
    "prompt": "prompts.head",
    "actions": "cards.actions",
    "answer": "cards.answer",
}
"""Attributes of a row that are in other tables than `rows`."""
_SHOWN = [column for column in COLUMNS if column.kind is not Kind.LINK or column.name in ("penalties", "rules")]
_ATTRIBUTES = {field.name for field in fields(TrajectoryRow)}
_TABLES = (
    "rows JOIN cards ON cards.n = rows.n LEFT JOIN groups ON groups.id = rows.grp "
    "LEFT JOIN prompts ON prompts.id = rows.prompt"
)


def by_number(record: Record, numbers: Sequence[int]) -> list[TrajectoryRow]:
    """Return the rows with these numbers, in this order, without missing ones."""
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
    """Return the rows of a condition, which may end in ORDER BY and LIMIT."""
    columns = (*_CARD.values(), *(f"rows.{column.name}" for column in _SHOWN))
    found = record.all(f"SELECT {', '.join(columns)} FROM {_TABLES} WHERE {condition}", params)
    labels = record.labels() if found else None
    if labels is None:
        return []
    extras = _extras(record, labels, [row[0] for row in found])
    return [_row(row, labels, extras.get(row[0], {})) for row in found]


def _extras(record: Record, labels: Labels, numbers: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the record's own columns of some rows, by number. Most records have none."""
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


def _row(row: tuple[Any, ...], labels: Labels, extra: dict[str, Any]) -> TrajectoryRow:
    card = dict(zip(_CARD, row, strict=False))
    card["actions"] = tuple(labels.names.get(int(a), "?") for a in card["actions"].split(",") if a)
    for name in ("group", "prompt_id", "prompt"):
        card[name] = card[name] or ""
    values: dict[str, Any] = {}
    for column, value in zip(_SHOWN, row[len(_CARD) :], strict=True):
        if column.kind is Kind.NAME:
            value = labels.names.get(value, "")
        elif column.kind is Kind.BOOLEAN:
            value = None if value is None else bool(value)
        values[column.attribute] = value
    values["rules"] = labels.of_mask("penalty", values["rules"]) if values["rules"] else ()
    values["uses"] = None if values["uses"] is None else marks_of(values["uses"])
    flags = values.pop("flags")
    values["sent"] = bool(flags & Flag.SENT) if values["gate"] else None
    more = {name: values.pop(name) for name in values.keys() - _ATTRIBUTES}
    return TrajectoryRow(**card, **values, extra={**more, **extra})
