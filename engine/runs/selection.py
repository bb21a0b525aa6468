"""Which rows a filter and a search leave, as SQL: the one place that knows how SQLite is best asked for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Selection:
    """A condition over the table `rows` (`filters.py`) and a full-text expression (`search.py`); both may be empty."""

    where: str = ""
    params: tuple[object, ...] = ()
    match: str = ""

    @property
    def everything(self) -> bool:
        """Neither filter nor search."""
        return not self.where and not self.match

    @property
    def reads_text(self) -> bool:
        """Whether the full-text index is asked."""
        return bool(self.match) or "FROM search" in self.where

    def source(self, order: str = "") -> tuple[str, list[object], str]:
        """FROM and WHERE over `rows`, their parameters, and the name of n there.

        A search drives the join: its postings come in order of n. Without one, a scan beats every index that SQLite
        would choose for a filter, unless an order is asked for (`order`: the name of its index).
        """
        if self.match and order:  # along another order: each row is looked up among the postings
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
        """The same for counting alone: a search without a filter need not touch the rows."""
        if self.match and not self.where:
            return "FROM search WHERE search MATCH ?", [self.match], "rowid"
        return self.source()
