"""Filter expressions over trajectories: `reward<0.2 and penalty:missing_prerequisite and not env:visual`.

Grammar (also in `HELP`): comparisons of numbers, flags, and `key:value`, joined by `and`, `or`, `not` and parentheses.
Two neighbouring terms mean `and`. `conditions.py` turns the terms into SQL. A filter can be checked without a record.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from ..errors import FilterError
from ..labels import Labels
from ..notes import Note
from .conditions import FLAGS, KEYS, LABELS, NAMES, NOTES, NUMBERS, OWN_COLUMNS, TEXTS, Conditions
from .query import match_expression

HELP = (
    f"numbers: {', '.join(NUMBERS)} with < <= > >= = != (reward<0.2, step:100..200); "
    f"flags: {', '.join(FLAGS)}; "
    f"names: {', '.join(k + ':' for k in (*LABELS, *NAMES, 'id'))} (* matches anything); "
    f"words: {', '.join(k + ':' for k in TEXTS)}; "
    f"notes of people: note: (a word in it, * for any), label:; "
    f"columns of the record's own: extra.NAME, component.NAME; joined by and, or, not, ( )"
)

_ALIASES = {"rule": "penalty", "environment": "env", "tool": "action", "stop_reason": "stop", "penalized": "penalised"}
_TOKEN = re.compile(r"\s*(?:(?P<paren>[()])|(?P<op><=|>=|!=|==|[<>=:])|(?P<word>[^\s()<>=!:\"']+))")
_VALUE = re.compile(r"\s*(?:\"(?P<dq>[^\"]*)\"|'(?P<sq>[^']*)'|(?P<word>[^\s()]+))")
_SQL = {":": "=", "!=": "<>"}
_RANGE = re.compile(r"(?P<low>[^.]*(?:\.\d+)?[^.]*)\.\.(?P<high>.*)")
MOST_TERMS, DEEPEST, LONGEST = 800, 12, 10_000
"""Maximum terms, nesting of parentheses and `not`, and characters of a value. SQLite limits all three."""


def parse(text: str, names: Labels | None = None, said: Callable[[], Iterable[Note]] = tuple) -> Conditions:
    """Translate a filter into SQL for the record with these names. An empty filter gives empty SQL.

    `said`: people's notes in the run. Raises FilterError with the position, the problem and the right form.
    """
    conditions = Conditions(names, said)
    parser = _Parser(text, conditions)
    if parser.peek() is not None:
        conditions.sql = parser.either()
        if parser.peek() is not None:
            parser.fail("expected `and`, `or` or the end")
    return conditions


class _Parser:
    def __init__(self, text: str, conditions: Conditions) -> None:
        self.text = text
        self.made = conditions
        self.at = 0
        self.terms = 0

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

    def accept(self, word: str) -> bool:
        found = self.peek()
        if found is not None and (found["word"] or found["paren"] or "").lower() == word:
            self.at = found.end()
            return True
        return False

    def either(self, depth: int = 0) -> str:
        parts = [self.both(depth)]
        while self.accept("or"):
            parts.append(self.both(depth))
        return parts[0] if len(parts) == 1 else f"({' OR '.join(parts)})"

    def both(self, depth: int) -> str:
        parts = [self.negated(depth)]
        while True:
            if not self.accept("and"):
                found = self.peek()
                if found is None or found["paren"] == ")" or (found["word"] or "").lower() == "or":
                    break
            parts.append(self.negated(depth))
        return parts[0] if len(parts) == 1 else f"({' AND '.join(parts)})"

    def negated(self, depth: int) -> str:
        if depth > DEEPEST:
            self.fail(f"more than {DEEPEST} nested parentheses and `not`")
        if self.accept("not"):
            return f"NOT {self.negated(depth + 1)}"
        if self.accept("("):
            inside = self.either(depth + 1)
            if not self.accept(")"):
                self.fail("expected `)`")
            return inside
        return self.term()

    def term(self) -> str:
        found = self.peek()
        if found is None or not found["word"]:
            self.fail(f"expected a term such as reward<0.2 or action:NAME; {HELP}")
        self.terms += 1
        if self.terms > MOST_TERMS:
            self.fail(f"a filter has at most {MOST_TERMS} terms")
        start = found.start("word")
        key = found["word"].lower()
        key = _ALIASES.get(key, key)
        self.at = found.end()
        following = _TOKEN.match(self.text, self.at)
        if following is not None and (op := following["op"]) is not None:
            self.at = following.end()
            op = "=" if op == "==" else op
            if key.startswith(OWN_COLUMNS):
                return self.column(found["word"], op)
            if key in NUMBERS:
                return self.number(key, op)
            if key in KEYS:
                if op not in (":", "=", "!="):
                    self.fail(f"{key} is a name, not a number: write {key}:value", following.start("op"))
                return f"NOT {self.named(key)}" if op == "!=" else self.named(key)
            if key in FLAGS:
                return self.flag_value(key, op)
        elif key in FLAGS:
            return f"({FLAGS[key]})"
        elif key.startswith(OWN_COLUMNS):
            self.fail(f"compare {found['word']} with a value: {found['word']}>3", start)
        elif key in NUMBERS:
            self.fail(f"compare {key} with a number: {key}<0.2", start)
        elif key in KEYS:
            self.fail(f"give a value: {key}:value", start)
        known = (*NUMBERS, *FLAGS, *KEYS)
        near = difflib.get_close_matches(key, known, 1)
        self.fail(f"unknown name {key!r}" + (f"; did you mean {near[0]!r}?" if near else "") + f"; {HELP}", start)

    def value(self, key: str) -> tuple[str, int]:
        found = _VALUE.match(self.text, self.at)
        if found is None:
            self.fail(f"expected a value after {key}")
        kind = found.lastgroup or "word"
        if len(found[kind]) > LONGEST:
            self.fail(f"a value has at most {LONGEST:,} characters", found.start(kind))
        self.at = found.end()
        return found[kind], found.start(kind)

    def number(self, key: str, op: str) -> str:
        return self.made.number(key, *self.comparison(key, op, *self.value(key)))

    def comparison(self, key: str, op: str, text: str, at: int) -> tuple[str, tuple[float, ...]]:
        """Return SQL such as `< ?` or `BETWEEN ? AND ?`, and its numbers."""
        span = _RANGE.fullmatch(text) if op in (":", "=") else None
        if span is not None:
            return "BETWEEN ? AND ?", tuple(self.parse_number(key, part, at) for part in span.group("low", "high"))
        return f"{_SQL.get(op, op)} ?", (self.parse_number(key, text, at),)

    def column(self, key: str, op: str) -> str:
        """Return a condition on one of the record's own columns, whose values are numbers or texts."""
        text, at = self.value(key)
        try:
            comparison, values = self.comparison(key, op, {"true": "1", "false": "0"}.get(text.lower(), text), at)
        except FilterError:
            if op not in (":", "=", "!=") or ".." in text:
                raise
            found = "text GLOB ?" if "*" in text else "text = ?"
            return self.made.column(key, f"NOT {found}" if op == "!=" else found, (text,))
        if comparison == "= ?":
            return self.made.column(key, "(number = ? OR text = ?)", (*values, text))
        return self.made.column(key, f"number {comparison}", values)

    def parse_number(self, key: str, text: str, at: int) -> float:
        try:
            number = float(text)
        except ValueError:
            self.fail(f"{key} needs a number", at)
        if number != number:
            self.fail("no number equals nan: the flag nan finds rewards and advantages that are nan or infinite", at)
        return number

    def flag_value(self, key: str, op: str) -> str:
        text, at = self.value(key)
        answer = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}.get(text.lower())
        if text.lower() in ("unknown", "none", "null") and key == "correct":
            return "(correct IS NULL)"
        if answer is None or op not in (":", "=", "!="):
            self.fail(f"{key} is yes or no: write {key}, not {key}, or {key}:no", at)
        return f"({FLAGS[key]})" if answer == (op != "!=") else f"(NOT ({FLAGS[key]}))"

    def named(self, key: str) -> str:
        text, at = self.value(key)
        if not text:
            self.fail(f"expected a value after {key}", at)
        op = "GLOB" if "*" in text else "="
        if key in LABELS:
            return self.made.label(key, text)
        if key in NAMES:
            column, table = NAMES[key]
            return self.made.bound(f"({column} IN (SELECT id FROM {table} WHERE name {op} ?))", text)
        if key == "id":
            return self.made.bound(f"(n IN (SELECT n FROM cards WHERE id {op} ?))", text)
        if key in NOTES:
            return self.made.noted(key, text)
        quoted = text if '"' in text or "*" in text else f'"{text}"'
        expression = match_expression(quoted if key == "text" else f"{key}:{quoted}")
        return self.made.bound("(n IN (SELECT rowid FROM search WHERE search MATCH ?))", expression)


def term(key: str, name: str) -> str:
    """Return the filter for one name, such as `action:"GET"`. If it has both kinds of quotes, `"` matches anything."""
    if "*" in name or ('"' in name and "'" in name):
        name = "".join(f"[{c}]" if c in "*?[" else "*" if c == '"' else c for c in name)
    quote = "'" if '"' in name else '"'
    return f"{key}:{quote}{name}{quote}"


_LAST = re.compile(r"(?P<key>[A-Za-z_]+)(?::|=)(?P<value>[^\s()\"']*)$|(?P<word>[A-Za-z_]+)$")
_MOST = 8
"""The maximum number of completions."""


def completions(text: str, names: Callable[[str], Sequence[str]]) -> list[str]:
    """Return completions of the filter's last word, nearest first, each as a whole filter.

    `names(kind)` returns the recorded names of a kind (`action`, `penalty`, …).
    """
    found = _LAST.search(text)
    if found is None:
        return []
    if found["word"] is not None:
        prefix, start = found["word"].lower(), found.start("word")
        words = [*(f"{key}:" for key in KEYS), *FLAGS, *NUMBERS]
        return [text[:start] + w for w in words if w.startswith(prefix) and w != prefix][:_MOST]
    key, prefix, start = found["key"].lower(), found["value"].lower(), found.start("value")
    if key not in LABELS:
        return []
    known = [n for n in names(key) if n.lower() != prefix]
    matches = [n for n in known if n.lower().startswith(prefix)] or [n for n in known if prefix in n.lower()]
    return [text[:start] + (n if re.fullmatch(r"[^\s()\"':]+", n) else f'"{n}"') for n in matches][:_MOST]
