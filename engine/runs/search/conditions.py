"""Translate the terms of a filter into SQL for one record."""

from __future__ import annotations

import difflib
import fnmatch
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..columns import COLUMNS, Flag, Kind
from ..labels import OVERFLOW, Labels
from ..learning import BIT, LEARNED_FROM, MARKS
from ..notes import Note

_LEARNED = sum(BIT[kind] for kind in LEARNED_FROM)
OF_USES = {
    "learned_at": (
        f"((uses & {BIT['trained']}) != 0 AND step {{0}} OR "
        f"n IN (SELECT n FROM uses WHERE mask & {_LEARNED} AND step {{0}}))"
    ),
    "weight": "(n IN (SELECT n FROM uses WHERE weight {0}))",
}
"""Numbers of updates that used a rollout: the step of an update that learned from it, and its weight in that update."""
NUMBERS = ("n", *(column.name for column in COLUMNS if column.numeric), *OF_USES)
FLAGS = {
    "correct": "correct = 1",
    "wrong": "correct = 0",
    "unlabelled": "correct IS NULL",
    "penalised": "penalties > 0",
    **{(flag.name or "").lower(): f"(flags & {int(flag)}) != 0" for flag in Flag},
    "learned": f"coalesce((uses & {_LEARNED}) != 0, 0)",
    **{mark: f"coalesce((uses & {BIT[mark]}) != 0, 0)" for mark in MARKS},
}
LABELS = {
    "action": "actions",
    "penalty": "rules",
    **{column.name: column.name for column in COLUMNS if column.kind is Kind.NAME},
}
CLOSED = "closed"
"""`gate:closed` matches every reason for not learning from a request."""
NAMES = {"group": ("grp", "groups"), "prompt": ("prompt", "prompts")}
TEXTS = ("text", "agent", "observation", "answer")
NOTES = ("note", "label")
"""People's notes (`notes.py`): `note:copied`, `label:hack`, or `note:*` for any note."""
KEYS = (*LABELS, *NAMES, "id", *TEXTS, *NOTES)

OWN_COLUMNS = ("extra.", "component.")
"""The record's own columns: `extra.difficulty>3`, `component.format=0.5`, `extra.source:web*`."""


@dataclass
class Conditions:
    """Turns filter terms into conditions on the table `rows` of one record, and collects their parameters.

    `notes`: names that the record lacks, with the nearest existing names.
    """

    names: Labels | None
    said: Callable[[], Iterable[Note]]
    sql: str = ""
    params: list[object] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def bound(self, sql: str, *values: object) -> str:
        self.params.extend(values)
        return sql

    def known(self, kind: str) -> dict[str, int]:
        return {} if self.names is None else self.names.of_kind(kind)

    def unknown(self, what: str, value: str, name: str, known: dict[str, int]) -> str:
        """Return a condition that never matches, for a name that the record lacks, and note the nearest names."""
        near = difflib.get_close_matches(name, known, 3, 0.4) or sorted(known)[:5]
        if what == "column":
            near = [n if n.startswith("component.") else f"extra.{n}" for n in near]
        self.notes.append(f"this run has no {what} {value!r}" + (f"; it has {', '.join(near)}" if near else ""))
        return "(0)"

    def number(self, key: str, comparison: str, values: tuple[float, ...]) -> str:
        """Return the condition on a number of the row or of updates that used it. `comparison`: SQL such as `< ?`."""
        condition = OF_USES.get(key, f"({key} {{0}})")
        return self.bound(condition.format(comparison), *values * condition.count("{0}"))

    def column(self, key: str, condition: str, values: tuple[object, ...]) -> str:
        """Return the condition on one of the record's own columns. If the record lacks it, nothing matches and a note
        explains why."""
        known = self.known("extra")
        name = key if key.lower().startswith("component.") else key[len("extra.") :]
        ids = [known[name]] if name in known else [i for n, i in known.items() if n.lower() == name.lower()]
        if not ids:
            return self.unknown("column", key, name, known)
        inside = f"SELECT n FROM extras WHERE name IN ({','.join('?' * len(ids))}) AND {condition}"
        return self.bound(f"(n IN ({inside}))", *ids, *values)

    def label(self, key: str, text: str) -> str:
        """Return the condition on a name: exact, case-insensitive, the last part of a dotted path, or a pattern."""
        known = self.known(key)
        if key == "gate" and text.lower() == CLOSED:
            return self.bound("(gate IS NOT NULL AND gate <> ?)", known.get("open", 0))
        ids = resolve(known, text)
        if self.names is None or not ids:
            return self.unknown(key, text, text, known)
        column = LABELS[key]
        if column not in ("actions", "rules"):
            return self.bound(f"({column} IN ({','.join('?' * len(ids))}))", *ids)
        mask, rest = self.names.mask(ids)
        parts = []
        if mask & ~OVERFLOW:
            parts.append(self.bound(f"({column} & ?) != 0", mask & ~OVERFLOW))
        if rest:
            inside = f"SELECT n FROM overflow WHERE label IN ({','.join('?' * len(rest))})"
            parts.append(self.bound(f"(({column} & ?) != 0 AND n IN ({inside}))", OVERFLOW, *rest))
        return f"({' OR '.join(parts)})"

    def noted(self, key: str, text: str) -> str:
        """Return the condition on rollouts whose note contains a text or has a label."""
        pattern = text.lower()

        def fits(note: Note) -> bool:
            if key == "label":
                return any(fnmatch.fnmatchcase(label.lower(), pattern.removeprefix("#")) for label in note.labels)
            return fnmatch.fnmatchcase(note.text.lower(), f"*{pattern}*")

        ids = [note.id for note in self.said() if fits(note)]
        if not ids:
            self.notes.append(f"no note of this run has {key} {text!r}")
            return "(0)"
        condition = "(n IN (SELECT n FROM cards WHERE id IN (SELECT value FROM json_each(?))))"
        return self.bound(condition, json.dumps(ids))


def resolve(known: dict[str, int], text: str) -> list[int]:
    """Return the ids of the recorded names that a text refers to."""
    if text in known:
        return [known[text]]
    lower = text.lower()
    if any(c in text for c in "*?["):
        return [id_ for name, id_ in known.items() if fnmatch.fnmatchcase(name.lower(), lower)]
    exact = [id_ for name, id_ in known.items() if name.lower() == lower]
    return exact or [id_ for name, id_ in known.items() if re.split(r"[.:/]", name.lower())[-1] == lower]
