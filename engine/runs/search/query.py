"""A query for rollouts of a run, as a person states it (`Query`) and as SQL (`Selection`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import FilterError
from ..schema import SEARCH_COLUMNS


@dataclass(frozen=True)
class Query:
    """A filter (`filters.py`), a full-text search (`match_expression`) and an order. Both texts may be empty."""

    filter: str = ""
    search: str = ""
    sort: str = "n"
    descending: bool = False

    @property
    def everything(self) -> bool:
        return not self.filter and not self.search

    @property
    def plain(self) -> bool:
        """Whether the query covers all rollouts in recording order, so that neighbours are read by key."""
        return self.everything and self.sort == "n"

    def describe(self) -> str:
        parts = [self.filter, f"“{self.search}”" if self.search else ""]
        if self.sort != "n" or self.descending:
            parts.append(f"by {self.sort} {'▼' if self.descending else '▲'}")
        return " · ".join(p for p in parts if p)


EVERYTHING = Query()
"""All rollouts of a run in recording order."""


@dataclass(frozen=True)
class Selection:
    """A condition on the table `rows` (`filters.py`) and a full-text expression (`match_expression`), both optional."""

    where: str = ""
    params: tuple[object, ...] = ()
    match: str = ""

    @property
    def everything(self) -> bool:
        return not self.where and not self.match

    @property
    def reads_text(self) -> bool:
        return bool(self.match) or "FROM search" in self.where

    def source(self, order: str = "") -> tuple[str, list[object], str]:
        """Return FROM and WHERE over `rows`, their parameters, and the name of n there.

        A search drives the join because its postings are ordered by n. Without a search, a scan beats every index that
        SQLite would choose for a filter, unless an order is needed (`order`: the name of its index).
        """
        if self.match and order:  # in another order, look up each row among the postings
            found = "EXISTS (SELECT 1 FROM search WHERE search MATCH ? AND rowid = n)"
            source = f"FROM rows INDEXED BY {order} WHERE ({self.where or 1}) AND {found}"
            return source, [*self.params, self.match], "n"
        if self.match:
            hits = "(SELECT rowid AS hit FROM search WHERE search MATCH ?)"
            source = f"FROM {hits} CROSS JOIN rows ON rows.n = hit WHERE {self.where or 1}"
            return source, [self.match, *self.params], "hit"
        hint = f"INDEXED BY {order}" if order else "NOT INDEXED"
        return f"FROM rows {hint} WHERE {self.where or 1}", list(self.params), "n"

    def counted(self) -> tuple[str, list[object], str]:
        """Return the same for counting only, because a search without a filter need not read the rows."""
        if self.match and not self.where:
            return "FROM search WHERE search MATCH ?", [self.match], "rowid"
        return self.source()


_TERM = re.compile(r"(?P<sign>-?)(?:(?P<column>[A-Za-z]+):)?(?:\"(?P<phrase>[^\"]*)\"?(?P<pstar>\*?)|(?P<word>\S+))")

_BETWEEN = re.compile(r"(?:[^\w\u0300-\u036f]|_)+")


def match_expression(text: str) -> str:
    """Return the MATCH expression of a search; empty for an empty text. Raises FilterError for text without words."""
    included: list[str] = []
    unwanted: list[str] = []
    for found in _TERM.finditer(text):
        column, word = found["column"], found["phrase"] if found["phrase"] is not None else found["word"]
        if column is not None and column.lower() not in SEARCH_COLUMNS:
            column, word = None, f"{found['column']}:{word}"  # the colon belongs to ordinary text
        star = found["pstar"] == "*" or (found["phrase"] is None and word.endswith("*"))
        if not any(c.isalnum() for c in word):
            continue
        quoted = '"' + word.replace("\x00", " ").replace('"', '""') + '"' + (" *" if star else "")
        term = f"{column.lower()} : {quoted}" if column else quoted
        (unwanted if found["sign"] else included).append(f"({term})")
    if not included:
        if not text.strip():
            return ""
        raise FilterError("nothing to search for: give at least one word or number that must occur")
    expression = " AND ".join(included)
    return f"({expression}) NOT ({' OR '.join(unwanted)})" if unwanted else expression


def needles(text: str) -> tuple[str, ...]:
    """Return the phrases and words that must occur, with blanks for characters that the index ignores."""
    found = []
    for term in _TERM.finditer(text):
        word = term["phrase"] if term["phrase"] is not None else term["word"].rstrip("*")
        words = _BETWEEN.sub(" ", word).strip()
        if not term["sign"] and words:
            found.append(words)
    return tuple(found)
