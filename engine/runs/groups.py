"""Groups as rows: the rollouts of one prompt in one step, folded into their count, mean and spread.

Group ids grow in order of recording, so a page of all groups is a range of the index on `grp`, at any size of the
run. Under a filter or a search the ids of the groups that hold a match are listed once.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from .reader import RunReader

_COLUMNS = (
    "grp, groups.name, min(rows.n), max(step), count(*), avg(reward), avg(reward * reward), sum(correct = 1), "
    "count(correct), sum(penalties), prompts.name, prompts.head"
)


@dataclass(frozen=True)
class GroupRow:
    """One group. `std` is the population standard deviation of its rewards; a group without spread has no gradient."""

    id: int
    group: str
    first_n: int
    step: int
    size: int
    mean: float | None
    std: float | None
    correct: int
    labelled: int
    penalties: int
    prompt_id: str
    prompt: str


class GroupList:
    """The groups of a run, or those with a match, in order of recording."""

    def __init__(self, reader: RunReader, filter: str = "", search: str = "") -> None:
        self.reader = reader
        self.filter, self.search = filter, search
        self._ids: array[int] | None = None

    def count(self) -> int:
        """How many groups there are."""
        if not self.filter and not self.search:
            return int(self.reader._scalar("SELECT max(grp) FROM rows") or 0)
        return len(self._matching())

    def first(self, limit: int) -> list[GroupRow]:
        """The first groups without listing the others: a screen is full of them before they are counted."""
        if (self.filter or self.search) and self._ids is None:
            return self._of(self._ids_of_matches(limit))
        return self.page(0, limit)

    def page(self, offset: int, limit: int) -> list[GroupRow]:
        """Groups `offset` … `offset + limit`. Raises FilterError for what cannot be understood."""
        if not self.filter and not self.search:
            return self._rows("grp > ? AND grp <= ?", (offset, offset + limit))
        return self._of(self._matching()[offset : offset + limit])

    def _of(self, ids: Sequence[int]) -> list[GroupRow]:
        return self._rows(f"grp IN ({','.join('?' * len(ids))})", ids) if ids else []

    def _matching(self) -> Sequence[int]:
        if self._ids is None:
            self._ids = self._ids_of_matches(-1)
        return self._ids

    def _ids_of_matches(self, limit: int) -> array[int]:
        """The groups with a match, at most `limit` of those that were recorded first; all with -1."""
        view = self.reader._view(self.filter, self.search)
        found: list[tuple[int | None]] = []
        if view is not None:
            source, params, _ = view.source()
            found = self.reader._all(f"SELECT DISTINCT grp {source} LIMIT ?", [*params, limit])
        return array("q", sorted(id_ for (id_,) in found if id_ is not None))

    def _rows(self, where: str, params: Sequence[int]) -> list[GroupRow]:
        rows = self.reader._all(
            f"SELECT {_COLUMNS} FROM rows LEFT JOIN groups ON groups.id = grp "
            "LEFT JOIN prompts ON prompts.id = rows.prompt "
            f"WHERE {where} GROUP BY grp ORDER BY grp",
            params,
        )
        made = []
        for id_, name, first, step, size, mean, square, correct, labelled, penalties, prompt, head in rows:
            std = None if mean is None else math.sqrt(max(0.0, square - mean * mean))
            made.append(
                GroupRow(
                    id_,
                    name or "",
                    first,
                    step,
                    size,
                    mean,
                    std,
                    correct or 0,
                    labelled,
                    penalties or 0,
                    prompt or "",
                    head or "",
                )
            )
        return made
