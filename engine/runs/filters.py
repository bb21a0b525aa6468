"""Filter expressions over trajectories: `reward<0.2 and penalty:missing_prerequisite and not env:visual`.

Grammar (also in `HELP`): comparisons of numbers, flags, and `key:value`, joined by `and`, `or`, `not` and
parentheses; two terms side by side mean `and`. Parsing knows no database; `Expression.compile` turns names into the
masks and ids of one record.
"""

from __future__ import annotations

import difflib
import fnmatch
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NoReturn

from .errors import FilterError
from .labels import BITS, OVERFLOW, Labels
from .learning import BIT, LEARNED_FROM, MARKS
from .notes import Note
from .schema import ADDED, FLAG_AGREES, FLAG_DISAGREES, FLAG_ERROR, FLAG_NAN, FLAG_SENT, FLAG_UNPARSED
from .search import match_expression

_LEARNED = sum(BIT[kind] for kind in LEARNED_FROM)
COLUMNS = (
    "n", "step", "reward", "advantage", "turns", "tokens", "penalties", "rollout", "version", "confidence",
)  # fmt: skip
OF_USES = {
    "learned_at": (
        f"((uses & {BIT['trained']}) != 0 AND step {{0}} OR "
        f"n IN (SELECT n FROM uses WHERE mask & {_LEARNED} AND step {{0}}))"
    ),
    "weight": "(n IN (SELECT n FROM uses WHERE weight {0}))",
}
"""Numbers of the updates that used a rollout: the step at which one learned from it, and the weight that it had."""
NUMBERS = (*COLUMNS, *OF_USES)
FLAGS = {
    "correct": "correct = 1",
    "wrong": "correct = 0",
    "unlabelled": "correct IS NULL",
    "penalised": "penalties > 0",
    "error": f"(flags & {FLAG_ERROR}) != 0",
    "unparsed": f"(flags & {FLAG_UNPARSED}) != 0",
    "nan": f"(flags & {FLAG_NAN}) != 0",
    "sent": f"(flags & {FLAG_SENT}) != 0",
    "agrees": f"(flags & {FLAG_AGREES}) != 0",
    "disagrees": f"(flags & {FLAG_DISAGREES}) != 0",
    "learned": f"(uses & {_LEARNED}) != 0",
    **{mark: f"(uses & {BIT[mark]}) != 0" for mark in MARKS},
}
LABELS = {"action": "actions", "penalty": "rules", "env": "env", "split": "split", "stop": "stop", "gate": "gate"}
CLOSED = "closed"
"""As `gate:closed`: every reason for which a request was not learnt from."""
NAMES = {"group": ("grp", "groups"), "prompt": ("prompt", "prompts")}
TEXTS = ("text", "agent", "observation", "answer")
NOTES = ("note", "label")
"""What people put on rollouts (`notes.py`): `note:copied`, `label:hack`, `note:*` for any."""
KEYS = (*LABELS, *NAMES, "id", *TEXTS, *NOTES)

OWN_COLUMNS = ("extra.", "component.")
"""Columns of a record's own: `extra.difficulty>3`, `component.format=0.5`, `extra.source:web*`."""

HELP = (
    f"numbers: {', '.join(NUMBERS)} with < <= > >= = != (reward<0.2, step:100..200); "
    f"flags: {', '.join(FLAGS)}; "
    f"names: {', '.join(k + ':' for k in (*LABELS, *NAMES, 'id'))} (* matches anything); "
    f"words: {', '.join(k + ':' for k in TEXTS)}; "
    f"notes of people: note: (a word of it, * for any), label:; "
    f"columns of the record's own: extra.NAME, component.NAME; joined by and, or, not, ( )"
)

_ALIASES = {"rule": "penalty", "environment": "env", "tool": "action", "stop_reason": "stop", "penalized": "penalised"}
_TOKEN = re.compile(r"\s*(?:(?P<paren>[()])|(?P<op><=|>=|!=|==|[<>=:])|(?P<word>[^\s()<>=!:\"']+))")
_VALUE = re.compile(r"\s*(?:\"(?P<dq>[^\"]*)\"|'(?P<sq>[^']*)'|(?P<word>[^\s()]+))")
_RANGE = re.compile(r"(?P<low>[^.]*(?:\.\d+)?[^.]*)\.\.(?P<high>.*)")


@dataclass(frozen=True)
class Compiled:
    """A condition over the table `rows`. `notes`: names that this record does not hold, with the nearest it does."""

    sql: str
    params: tuple[object, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass
class _Build:
    names: Labels
    columns: frozenset[str]
    said: Callable[[], Iterable[Note]]
    params: list[object] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def holds(self, column: str, what: str) -> bool:
        """Whether the record has a column; otherwise a note says that it is too old for `what`."""
        if column not in ADDED or column in self.columns:
            return True
        note = f"this run was recorded by an older version, which did not record {what}"
        if note not in self.notes:
            self.notes.append(note)
        return False


_Node = Callable[[_Build], str]


@dataclass(frozen=True)
class Expression:
    """A parsed filter."""

    text: str
    node: _Node | None

    def compile(self, names: Labels, columns: frozenset[str], said: Callable[[], Iterable[Note]] = tuple) -> Compiled:
        """The condition for one record, whose `rows` have these columns; empty SQL for an empty filter. `said`: what
        people noted in this run."""
        if self.node is None:
            return Compiled("")
        build = _Build(names, columns, said)
        sql = self.node(build)
        return Compiled(sql, tuple(build.params), tuple(build.notes))


def parse(text: str) -> Expression:
    """Parse a filter. Raises FilterError saying where, what is wrong and what would be right."""
    parser = _Parser(text)
    if parser.peek() is None:
        return Expression(text, None)
    node = parser.either()
    if parser.peek() is not None:
        parser.fail("expected `and`, `or` or the end")
    return Expression(text, node)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self) -> re.Match[str] | None:
        found = _TOKEN.match(self.text, self.at)
        if found is None and self.text[self.at :].strip():
            self.fail("unexpected character")
        return found

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        while at < len(self.text) and self.text[at].isspace():
            at += 1
        shown = self.text[at : at + 20] or "the end"
        raise FilterError(f"filter, at character {at + 1} ({shown!r}): {message}", at)

    def word(self) -> str | None:
        found = self.peek()
        return found["word"].lower() if found is not None and found["word"] else None

    def accept(self, word: str) -> bool:
        found = self.peek()
        if found is not None and (found["word"] or found["paren"] or "").lower() == word:
            self.at = found.end()
            return True
        return False

    def either(self) -> _Node:
        nodes = [self.both()]
        while self.accept("or"):
            nodes.append(self.both())
        return nodes[0] if len(nodes) == 1 else lambda b: "(" + " OR ".join([n(b) for n in nodes]) + ")"

    def both(self) -> _Node:
        nodes = [self.negated()]
        while True:
            if not self.accept("and"):
                found = self.peek()
                if found is None or found["paren"] == ")" or self.word() == "or":
                    break
            nodes.append(self.negated())
        return nodes[0] if len(nodes) == 1 else lambda b: "(" + " AND ".join([n(b) for n in nodes]) + ")"

    def negated(self) -> _Node:
        if self.accept("not"):
            node = self.negated()
            return lambda b: f"NOT {node(b)}"
        if self.accept("("):
            node = self.either()
            if not self.accept(")"):
                self.fail("expected `)`")
            return node
        return self.term()

    def term(self) -> _Node:
        found = self.peek()
        if found is None or not found["word"]:
            self.fail(f"expected a term such as reward<0.2 or action:NAME; {HELP}")
        start = found.start("word")
        key = found["word"].lower()
        key = _ALIASES.get(key, key)
        self.at = found.end()
        following = _TOKEN.match(self.text, self.at)
        op = following["op"] if following is not None else None
        if op is not None and following is not None:
            self.at = following.end()
            op = "=" if op == "==" else op
            if key.startswith(OWN_COLUMNS):
                return self.column(found["word"], op)
            if key in NUMBERS:
                return self.number(key, op)
            if key in KEYS:
                if op not in (":", "=", "!="):
                    self.fail(f"{key} is a name, not a number: write {key}:value", following.start("op"))
                node = self.named(key)
                return node if op != "!=" else lambda b: f"NOT {node(b)}"
            if key in FLAGS:
                return self.flag_value(key, op)
        elif key in FLAGS:
            return lambda b: _flag(b, key)
        elif key.startswith(OWN_COLUMNS):
            self.fail(f"compare {found['word']} with a value: {found['word']}>3", start)
        elif key in NUMBERS:
            self.fail(f"compare {key} with a number: {key}<0.2", start)
        elif key in KEYS:
            self.fail(f"say which: {key}:value", start)
        known = (*NUMBERS, *FLAGS, *KEYS)
        near = difflib.get_close_matches(key, known, 1)
        self.fail(f"unknown name {key!r}" + (f"; did you mean {near[0]!r}?" if near else "") + f"; {HELP}", start)

    def value(self, key: str) -> tuple[str, int]:
        found = _VALUE.match(self.text, self.at)
        if found is None:
            self.fail(f"expected a value after {key}")
        kind = found.lastgroup or "word"
        self.at = found.end()
        return found[kind], found.start(kind)

    def number(self, key: str, op: str) -> _Node:
        text, at = self.value(key)
        span = _RANGE.fullmatch(text) if op in (":", "=") else None
        if span is not None:
            low, high = (self.parse_number(key, part, at) for part in (span["low"], span["high"]))
            return lambda b: _number(b, key, "BETWEEN ? AND ?", (low, high))
        number = self.parse_number(key, text, at)
        sql_op = {":": "=", "!=": "<>"}.get(op, op)
        return lambda b: _number(b, key, f"{sql_op} ?", (number,))

    def column(self, key: str, op: str) -> _Node:
        """A condition on a column of the record's own, whose values are numbers or texts."""
        text, at = self.value(key)
        span = _RANGE.fullmatch(text) if op in (":", "=") else None
        if span is not None:
            low, high = (self.parse_number(key, part, at) for part in (span["low"], span["high"]))
            return lambda b: _column(b, key, "number BETWEEN ? AND ?", (low, high))
        flags = {"true": 1.0, "false": 0.0}
        try:
            number = flags[text.lower()] if text.lower() in flags else float(text)
        except ValueError:
            if op not in (":", "=", "!="):
                self.fail(f"{key} needs a number after {op}", at)
            found = "text GLOB ?" if "*" in text else "text = ?"
            return lambda b: _column(b, key, f"NOT {found}" if op == "!=" else found, (text,))
        sql_op = {":": "=", "!=": "<>"}.get(op, op)
        either = f"(number {sql_op} ? OR text = ?)" if sql_op == "=" else f"number {sql_op} ?"
        return lambda b: _column(b, key, either, (number, text) if sql_op == "=" else (number,))

    def parse_number(self, key: str, text: str, at: int) -> float:
        try:
            number = float(text)
        except ValueError:
            self.fail(f"{key} needs a number", at)
        return number

    def flag_value(self, key: str, op: str) -> _Node:
        text, at = self.value(key)
        answer = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower())
        if text.lower() in ("unknown", "none", "null") and key == "correct":
            return lambda b: "(correct IS NULL)"
        if answer is None or op not in (":", "=", "!="):
            self.fail(f"{key} is yes or no: write {key}, not {key}, or {key}:no", at)
        wanted = answer == (op != "!=")
        return lambda b: _flag(b, key) if wanted else f"(NOT {_flag(b, key)})"

    def named(self, key: str) -> _Node:
        text, at = self.value(key)
        if not text:
            self.fail(f"expected a value after {key}", at)
        if key in LABELS:
            return lambda b: _label(b, key, text)
        if key in NAMES:
            column, table = NAMES[key]
            op = "GLOB" if "*" in text else "="
            return lambda b: _bound(b, f"({column} IN (SELECT id FROM {table} WHERE name {op} ?))", text)
        if key == "id":
            op = "GLOB" if "*" in text else "="
            return lambda b: _bound(b, f"(n IN (SELECT n FROM cards WHERE id {op} ?))", text)
        if key in NOTES:
            return lambda b: _noted(b, key, text)
        quoted = text if '"' in text or "*" in text else f'"{text}"'
        expression = match_expression(quoted if key == "text" else f"{key}:{quoted}")
        return lambda b: _bound(b, "(n IN (SELECT rowid FROM search WHERE search MATCH ?))", expression)


def _bound(build: _Build, sql: str, *values: object) -> str:
    """A condition and the values of its question marks."""
    build.params.extend(values)
    return sql


def _number(build: _Build, key: str, comparison: str, values: tuple[float, ...]) -> str:
    """Condition on a number of the row, or of the updates that used it; `comparison` as in `< ?`."""
    if key in COLUMNS:
        return _bound(build, f"({key} {comparison})", *values) if build.holds(key, key) else "(0)"
    if not build.holds("uses", "what updates did with a rollout"):
        return "(0)"
    condition = OF_USES[key]
    return _bound(build, condition.format(comparison), *values * condition.count("{0}"))


def _flag(build: _Build, key: str) -> str:
    """Condition on a flag, 1 or 0: a rollout of which nothing is known has it not."""
    column = "uses" if "(uses" in FLAGS[key] else "flags"
    if not build.holds(column, "what updates did with a rollout"):
        return "(0)"
    return f"coalesce({FLAGS[key]}, 0)" if column == "uses" else f"({FLAGS[key]})"


def _column(build: _Build, key: str, condition: str, values: tuple[object, ...]) -> str:
    """Condition for a column of the record's own; a record without it has no match, and a note says so."""
    known = build.names.of_kind("extra")
    name = key if key.lower().startswith("component.") else key[len("extra.") :]
    ids = [known[name]] if name in known else [i for n, i in known.items() if n.lower() == name.lower()]
    if not ids:
        near = difflib.get_close_matches(name, known, 3, 0.4) or sorted(known)[:5]
        shown = ", ".join(n if n.startswith("component.") else f"extra.{n}" for n in near)
        build.notes.append(f"this run has no column {key!r}" + (f"; it has {shown}" if shown else ""))
        return "(0)"
    build.params.extend((*ids, *values))
    return f"(n IN (SELECT n FROM extras WHERE name IN ({','.join('?' * len(ids))}) AND {condition}))"


def _label(build: _Build, key: str, text: str) -> str:
    """Condition for a name of a kind: exact, then ignoring case, then the last part of a dotted path, or a pattern."""
    if not build.holds(LABELS[key], "the gate of a request"):
        return "(0)"
    known = build.names.of_kind(key)
    if key == "gate" and text.lower() == CLOSED:
        return _bound(build, "(gate IS NOT NULL AND gate <> ?)", known.get("open", 0))
    ids = resolve(known, text)
    if not ids:
        near = difflib.get_close_matches(text, known, 3, 0.4) or sorted(known)[:5]
        held = f"; it has {', '.join(near)}" if near else ""
        build.notes.append(f"this run has no {key} {text!r}{held}")
        return "(0)"
    column = LABELS[key]
    if column not in ("actions", "rules"):
        build.params.extend(ids)
        return f"({column} IN ({','.join('?' * len(ids))}))"
    mask, rest = 0, []
    for id_ in ids:
        bit = build.names.bits[id_]
        if bit < BITS:
            mask |= 1 << bit
        else:
            rest.append(id_)
    parts = []
    if mask:
        build.params.append(mask)
        parts.append(f"({column} & ?) != 0")
    if rest:
        build.params.append(OVERFLOW)
        build.params.extend(rest)
        inside = f"SELECT n FROM overflow WHERE label IN ({','.join('?' * len(rest))})"
        parts.append(f"(({column} & ?) != 0 AND n IN ({inside}))")
    return "(" + " OR ".join(parts) + ")"


def _noted(build: _Build, key: str, text: str) -> str:
    """Condition for rollouts on which a person put a note that holds a text, or a label of a name."""
    wanted = text.lower()

    def fits(note: Note) -> bool:
        if key == "label":
            return any(fnmatch.fnmatchcase(label.lower(), wanted.removeprefix("#")) for label in note.labels)
        return fnmatch.fnmatchcase(note.text.lower(), f"*{wanted}*")

    ids = [note.id for note in build.said() if fits(note)]
    if not ids:
        build.notes.append(f"no note of this run has {key} {text!r}")
        return "(0)"
    condition = "(n IN (SELECT n FROM cards WHERE id IN (SELECT value FROM json_each(?))))"
    return _bound(build, condition, json.dumps(ids))


def resolve(known: dict[str, int], text: str) -> list[int]:
    """The ids of the recorded names that a person means by a text."""
    if text in known:
        return [known[text]]
    lower = text.lower()
    if any(c in text for c in "*?["):
        return [id_ for name, id_ in known.items() if fnmatch.fnmatchcase(name.lower(), lower)]
    exact = [id_ for name, id_ in known.items() if name.lower() == lower]
    return exact or [id_ for name, id_ in known.items() if re.split(r"[.:/]", name.lower())[-1] == lower]
