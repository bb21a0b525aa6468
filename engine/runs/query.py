"""Which rollouts of a run, in which order: what a list shows and what "next" means beside it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Query:
    """A filter expression (`filters.py`), a full-text search (`search.py`) and an order; both texts may be empty."""

    filter: str = ""
    search: str = ""
    sort: str = "n"
    descending: bool = False

    @property
    def everything(self) -> bool:
        """Neither filter nor search: all rollouts, in whatever order."""
        return not self.filter and not self.search

    @property
    def plain(self) -> bool:
        """All of them in the order of recording: neighbours are read by key."""
        return self.everything and self.sort == "n"

    def describe(self) -> str:
        """The query in words, for headers."""
        parts = [self.filter, f"“{self.search}”" if self.search else ""]
        if self.sort != "n" or self.descending:
            parts.append(f"by {self.sort} {'▼' if self.descending else '▲'}")
        return " · ".join(p for p in parts if p)


EVERYTHING = Query()
"""All rollouts of a run in the order of recording."""
