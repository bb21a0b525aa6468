"""Store repeated names of a record as small integers, and sets of actions and penalty rules as bit masks.

The actions of a trajectory are one 63-bit integer, so a scan for `action:X` costs one AND per row. The first 62 names
of a kind have their own bit. Later names share bit 62 and are listed in the table `overflow`, because a model may write
anything as a tool name, and that must not break the record.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable

_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Return text that SQLite can hold: lone surrogates become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text)
    return text


BITS = 62
OVERFLOW = 1 << BITS


class Labels:
    """The names of one database by kind, as one connection knows them."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.ids: dict[tuple[str, str], int] = {}
        self.names: dict[int, str] = {}
        self.bits: dict[int, int] = {}
        self.counts: dict[str, int] = {}
        self.last = 0

    def refresh(self) -> None:
        for id_, kind, name, bit in self.db.execute(
            "SELECT id, kind, name, bit FROM labels WHERE id > ? ORDER BY id", (self.last,)
        ):
            self._remember(id_, kind, name, bit)

    def forget(self) -> None:
        self.__init__(self.db)

    def of_kind(self, kind: str) -> dict[str, int]:
        return {name: id_ for (k, name), id_ in self.ids.items() if k == kind}

    def intern(self, kind: str, name: str) -> int:
        """Return the id of a name. Add a new name inside the caller's transaction."""
        known = self.ids.get((kind, name))
        if known is not None:
            return known
        bit = self.counts.get(kind, 0)
        name = clean(name[:200]) if bit < 4096 else "(other)"  # all names after so many count as one
        known = self.ids.get((kind, name))
        if known is not None:
            return known
        cursor = self.db.execute("INSERT INTO labels (kind, name, bit) VALUES (?, ?, ?)", (kind, name, bit))
        id_ = int(cursor.lastrowid or 0)
        self._remember(id_, kind, name, bit)
        return id_

    def mask(self, ids: Iterable[int]) -> tuple[int, list[int]]:
        """Return the mask of a set of label ids, and the ids without their own bit."""
        mask, rest = 0, []
        for id_ in ids:
            bit = self.bits[id_]
            if bit < BITS:
                mask |= 1 << bit
            else:
                mask |= OVERFLOW
                rest.append(id_)
        return mask, rest

    def of_mask(self, kind: str, mask: int) -> tuple[str, ...]:
        """Return the names whose bits are set. `…` represents names without their own bit."""
        names = [n for n, id_ in self.of_kind(kind).items() if self.bits[id_] < BITS and mask >> self.bits[id_] & 1]
        return (*names, "…") if mask & OVERFLOW else tuple(names)

    def _remember(self, id_: int, kind: str, name: str, bit: int) -> None:
        self.ids[kind, name] = id_
        self.names[id_] = name
        self.bits[id_] = bit
        self.counts[kind] = max(self.counts.get(kind, 0), bit + 1)
        self.last = max(self.last, id_)
