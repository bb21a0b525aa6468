"""Collect the rows of one file's documents and write them in one transaction."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ..runs import codec
from ..runs.columns import Flag, Listed
from ..runs.labels import clean
from ..runs.types import Split
from .containers.base import FoundDocument
from .convert import columns, identity, lacks, listed_of, split_of, with_turns_of_prompt
from .coverage import NO_FORMAT
from .dump import format_of
from .format import NOT_WRITTEN, Format, Origin
from .index_store import IndexStore
from .reached import MEASURED, is_low, is_silent, words_reached
from .rollout import Amendment, Expected, Message, Named, Numbers, Rollout

PART_BYTES = 4 << 20
PART_ROLLOUTS = 512
PART_SECONDS = 0.1
_TAIL = 4096
UNKNOWN = "(unknown)"
"""The format name of documents that no format recognises."""


class FilePart:
    """Rows of one file that are not yet committed."""

    def __init__(
        self, store: IndexStore, formats: Sequence[Format], source: int, origin: Origin, seconds: float = PART_SECONDS
    ) -> None:
        self.store = store
        self.formats = formats
        self.source = source
        self.origin = origin
        self.seconds = seconds
        self.format: Format | None = None
        self.keys: tuple[object, ...] | None = None
        self.documents = 0
        self.strange: list[tuple[int, str]] = []
        self.unknown = 0
        self.measured = 0
        self.last: tuple[tuple[Message, ...], int | None, int | None] = ((), None, None)
        """The conversation of the previous rollout, and its position in this part or its number."""
        self._clear()

    def _clear(self) -> None:
        self.began = time.monotonic()
        self.bytes = 0
        self.after: int | None = None
        self.line = 0
        self.rows: list[Listed] = []
        self.places: list[tuple[int, int, int, int]] = []
        """Source, offset, length, and the position in the document (`~n`: the turns in the prompt belong to it)."""
        self.numbers: list[Numbers] = []
        self.amendments: list[tuple[Amendment, int, int]] = []
        self.named: list[str] = []
        self.problems: list[tuple[int | None, str]] = []
        self.seen: dict[str, tuple[int, int]] = {}
        self.lacking: Counter[tuple[str, str]] = Counter()
        self.words: Counter[str] = Counter()
        self.again: list[tuple[str, Rollout]] = []
        self.known: dict[str, tuple[int | None, int | None]] = {}
        """By id, the position in this part or the number of each row that a later rollout may replace."""
        self.replaced: list[tuple[str, str]] = []
        """Groups that a resumed training wrote again, and the new group names of their earlier rollouts."""
        self.read: dict[int, tuple[Listed, tuple[int, int, int, int]]] = {}

    @property
    def full(self) -> bool:
        large = self.bytes >= PART_BYTES or len(self.rows) >= PART_ROLLOUTS
        return large or time.monotonic() - self.began > self.seconds  # packed text takes longer than its size suggests

    def take(self, found: FoundDocument) -> None:
        self.after, self.line = found.after, found.line
        self.documents += 1
        self.bytes += max(found.length, 256)
        if found.problem is not None:
            self.problems.append((found.line, found.problem))
            return
        try:
            reader = self._format(found.document)
        except Exception as error:  # the user's code
            reason = f"its format cannot be recognised ({type(error).__name__}: {str(error)[:160]})"
            self.problems.append((found.line, reason))
            return
        if reader is None:
            self._count_format(UNKNOWN, 0)
            document, member = found.document, ""
            if isinstance(document, dict) and document.keys() == {"member", "document"}:
                member, document = f"{document['member']}: ", document["document"]
            if isinstance(document, dict) and self.unknown < 3:
                self.unknown += 1
                keys = ", ".join(str(k)[:30] for k in list(document)[:6])
                self.strange.append((found.line, f"{member}{NO_FORMAT} (its keys: {keys}); see --map"))
            return
        rows = len(self.rows)
        try:
            items = list(reader.open(found.document, self.origin))
            rollouts = [item for item in items if isinstance(item, Rollout)]
            for part, rollout in enumerate(rollouts):
                self._add(rollout, found, part, self.store.scope(reader.name))
            read = len(self.rows)
            for item in items:
                if isinstance(item, Expected):
                    self._expect(item, item.format or reader.name)
        except Exception as error:  # a document may hold anything, and a format may be the user's code
            del self.rows[rows:], self.places[rows:]
            self.last = ((), None, None)
            self.known = {id_: row for id_, row in self.known.items() if row[0] is None or row[0] < rows}
            reason = f"{reader.name}: it cannot be read ({type(error).__name__}: {str(error)[:160]})"
            deep = isinstance(error, RecursionError)
            self.problems.append((found.line, "it is nested too deeply" if deep else reason))
            return
        self._count_format(reader.name, read - rows)
        self._measure(reader, found, rollouts)
        for item in items:
            if isinstance(item, Numbers):
                self.numbers.append(item)
            elif isinstance(item, Named):
                self.named += item.ids
            elif isinstance(item, Amendment):
                self.amendments.append((item, found.offset, found.length))

    def _measure(self, reader: Format, found: FoundDocument, rollouts: list[Rollout]) -> None:
        """Count the values missing from these rollouts, and the words that reached a message."""
        for rollout in rollouts:
            for what in NOT_WRITTEN | dict(reader.unknown):
                if lacks(rollout, what):
                    self.lacking[reader.name, what] += 1
        if not rollouts:
            return
        silent = all(is_silent(rollout) for rollout in rollouts)
        if self.measured >= MEASURED and not silent:
            return
        self.measured += 1
        words, reached = words_reached(found.document, rollouts)
        self.words += Counter(words=words, reached=reached)
        if silent and is_low(words, reached, 0.5):
            reason = f"{reader.name}: {reached / words:.0%} of its text reached a message, none of it the policy's: "
            self.problems.append((found.line, f"{reason}its message format is unknown"))

    def _count_format(self, format_: str, rollouts: int, documents: int = 1) -> None:
        known, before = self.seen.get(format_, (0, 0))
        self.seen[format_] = (known + documents, before + rollouts)

    def _format(self, document: object) -> Format | None:
        """Return the format of a document. Try the previous format first if the keys are the same."""
        keys = tuple(document) if isinstance(document, dict) else None
        first = (self.format,) if self.format is not None and keys is not None and keys == self.keys else ()
        self.format = format_of(document, self.origin, chain(first, self.formats))
        self.keys = keys
        return self.format

    def _add(self, rollout: Rollout, found: FoundDocument, part: int, scope: str) -> None:
        unique = bool(rollout.id) and (rollout.same_as_id or rollout.grows)
        known_row, n, turns = self._row_of(rollout.id) if unique or self.store.expecting else (None, None, None)
        if turns is not None and not unique:  # a different rollout with the same id
            known_row = n = None
        elif turns is not None and not rollout.grows:
            self.again.append((rollout.id, rollout))
            return
        elif turns is not None and turns > sum(m.is_agent for m in rollout.completion):
            return
        fallback = f"{self.origin.relative}:{found.line}"
        fallback = f"{fallback}.{part}" if part else fallback
        ids = identity(rollout, scope, fallback)
        place = (self.source, found.offset, found.length, part)
        if any(m.is_agent for m in rollout.prompt) and known_row is None and n is None and not rollout.grows:
            conversation, before, number_ = self.last
            # A later step of the previous rollout.
            if conversation and rollout.prompt[: len(conversation)] == conversation:
                known_row, n, rollout = before, number_, with_turns_of_prompt(rollout)
                place = (*place[:3], ~part)
        if known_row is not None or n is not None:  # the list already shows it
            group, position = self._shown(known_row, n)
            ids = ids if not group.endswith(ids[1]) else (ids[0], group)
            listed = listed_of(rollout, ids, fallback_id=fallback, index=position)
            if known_row is not None:
                self.rows[known_row], self.places[known_row] = listed, place
            elif n is not None:
                self.read[n] = (listed, place)
            if unique:
                self.known[rollout.id] = known_row, n
            self.last = ((*rollout.prompt, *rollout.completion), known_row, n)
            return
        group, position = self._placed(rollout, ids[1])
        if unique:
            self.known[rollout.id] = len(self.rows), None
        self.last = ((*rollout.prompt, *rollout.completion), len(self.rows), None)
        self.rows.append(listed_of(rollout, (ids[0], group), fallback_id=fallback, index=position))
        self.places.append(place)

    def _placed(self, rollout: Rollout, group: str) -> tuple[str, int]:
        """Return the group of a new row and its position in the group. If the group is being written again, move its
        earlier rows to another group and split."""
        group, position, attempt = self.store.groups.add(group, rollout, split_of(rollout), self.source)
        if attempt:
            earlier = f"{group} (attempt {attempt})"
            self.replaced.append((group, earlier))
            for i, row in enumerate(self.rows):
                if row.group == group:
                    values = {**row.values, "split": Split.REPLACED}
                    self.rows[i] = row._replace(group=earlier, values=values)
        return group, position

    def _shown(self, row: int | None, n: int | None) -> tuple[str, int]:
        if row is not None:
            return self.rows[row].group, int(self.rows[row].values["rollout"] or 0)
        sql = "SELECT name, rollout FROM rows JOIN groups ON groups.id = grp WHERE n = ?"
        return self.store.db.execute(sql, (n,)).fetchone()  # type: ignore[no-any-return]

    def _row_of(self, id_: str) -> tuple[int | None, int | None, Any]:
        """Find the row with an id. Return its position in this part, or its number, and its turns (None: not read)."""
        row, n = self.known.get(id_, (None, None))
        if row is not None:
            return row, None, self.rows[row].values["turns"]
        sql = "SELECT rows.n, turns FROM cards JOIN rows ON rows.n = cards.n WHERE cards.id = ? ORDER BY 1 DESC LIMIT 1"
        n, turns = (n, None) if n is not None else self.store.db.execute(sql, (clean(id_),)).fetchone() or (None, None)
        return None, n, self.read[n][0].values["turns"] if n in self.read else turns

    def _expect(self, item: Expected, format_: str) -> None:
        """Add a row for a rollout that will be read later, unless it is known or its file is missing."""
        rollout = item.rollout
        known_row, n, _ = self._row_of(rollout.id)
        source = self.source
        if item.path is not None:
            sql = "SELECT id FROM sources WHERE path IN (?, ?) AND container <> ''"
            source = self.store.one(sql, str(item.path), f"{item.path}.zst")
        if known_row is not None or n is not None or source is None:
            return
        prompt_id, group = identity(rollout, self.store.scope(format_))
        group, position = self._placed(rollout, group)
        self.known[rollout.id] = len(self.rows), None
        self.store.expecting = True
        row = listed_of(rollout, (prompt_id, group), fallback_id="", index=position)
        self.rows.append(row._replace(labels=None, values={**row.values, "turns": None}))
        self.places.append((source, item.at, item.length, 0))
        self._count_format(format_, 1, documents=0)

    def commit(self, done: bool) -> None:
        """Write everything in one transaction. done: whether the file has no more documents."""
        record, db = self.store.record, self.store.db
        with record.transaction():
            self._write_rows()
            self._write_amendments()
            self._write_counts()
            if self.after is not None:
                db.execute(
                    "UPDATE sources SET position = ?, line = ?, tail = ? WHERE id = ?",
                    (self.after, self.line, tail_of(str(self.origin.path), self.after), self.source),
                )
            if done:
                if self.store.replaced:
                    record.set_meta("epoch", str(time.time_ns()))  # open lists start over
                self.store.look_for_expected()
                db.execute("UPDATE sources SET done = 1 WHERE id = ?", (self.source,))
            record.set_meta("groups", self.store.groups.state())
        self._clear()

    def _write_rows(self) -> None:
        record, db = self.store.record, self.store.db
        for group, earlier in self.replaced:
            old, new = record.rows.named("groups", group), record.rows.named("groups", earlier)
            split = record.rows.labels.intern("split", Split.REPLACED)
            self._measure_again("grp = ?", old)
            db.execute("UPDATE rows SET split = ?, grp = ? WHERE grp = ?", (split, new, old))
        if self.rows:
            first = record.rows.add(self.rows)
            places = ((first + i, *place) for i, place in enumerate(self.places))
            db.executemany("INSERT INTO places VALUES (?, ?, ?, ?, ?)", places)
            if self.store.one("SELECT 1 FROM amendments LIMIT 1"):  # some may have been read before their rollouts
                sql = "SELECT DISTINCT cards.id FROM cards JOIN amendments USING (id) WHERE cards.n >= ?"
                for (id_,) in db.execute(sql, (first,)).fetchall():
                    self._amend_again(id_)
            if self.last[1] is not None:
                self.last = (self.last[0], None, first + self.last[1])
        for n, (listed, place) in self.read.items():
            record.rows.replace(n, listed)
            self._measure_again("n = ?", n)
            db.execute("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?, ?)", (n, *place))
            self.store.replaced = True
            self._amend_again(listed.id)

    def _write_amendments(self) -> None:
        """Write logged metrics, and the values that documents add to rollouts of other documents."""
        record, db = self.store.record, self.store.db
        for id_, rollout in self.again:
            self._amend(id_, Amendment(id_, rollout.step, None, rollout.advantage, columns(rollout)))
        for amendment, offset, length in self.amendments:
            extra = codec.encode_json(amendment.extra).decode("utf-8", "replace")
            changes = (amendment.step, amendment.reward, amendment.advantage)
            values = (amendment.id, self.source, offset, length, *changes, extra)
            db.execute("INSERT INTO amendments VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
            self._amend(amendment.id, amendment)
        if self.named:
            rows = ((clean(id_), self.source) for id_ in self.named)
            db.executemany("INSERT OR IGNORE INTO named VALUES (?, ?)", rows)
            record.set_meta("looked_for", "")
        for numbers in self.numbers:
            db.executemany("INSERT OR IGNORE INTO logged VALUES (?)", ((name,) for name in numbers.values))
            record.metrics.replace(numbers.step, numbers.values)
        if self.again or self.amendments or self.read or self.replaced:  # they may change steps and components
            record.set_meta("measured", "")

    def _write_counts(self) -> None:
        """Update the counts of formats, missing values and words, and write the problems."""
        db = self.store.db
        db.executemany(
            "INSERT INTO seen VALUES (?, ?, ?) ON CONFLICT (format) DO UPDATE SET "
            "documents = documents + excluded.documents, rollouts = rollouts + excluded.rollouts",
            ((name, *counts) for name, counts in self.seen.items()),
        )
        db.executemany(
            "INSERT INTO lacking VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET rollouts = rollouts + excluded.rollouts",
            ((*key, count) for key, count in self.lacking.items()),
        )
        if self.words["words"]:
            db.execute(
                "INSERT INTO reached VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET words = words + excluded.words, "
                "reached = reached + excluded.reached",
                (str(self.origin.path), self.words["words"], self.words["reached"]),
            )
        if self.documents > 1:  # a single unknown document is a side file such as settings
            self.problems += self.strange
            self.strange.clear()
        for line, reason in self.problems:
            self.store.skip(str(self.origin.path), line, reason)

    def _amend_again(self, id_: str) -> None:
        sql = "SELECT step, reward, advantage, extra FROM amendments WHERE id = ?"
        for step, reward, advantage, extra in self.store.db.execute(sql, (id_,)).fetchall():
            self._amend(id_, Amendment(id_, step, reward, advantage, json.loads(extra)))

    def _amend(self, id_: str, amendment: Amendment) -> None:
        n = self.store.one("SELECT max(n) FROM cards WHERE id = ?", id_)
        if n is None:
            return
        flags = 0 if amendment.error is None else int(Flag.ERROR)
        sql = "UPDATE rows SET flags = flags | ?, step = coalesce(step, ?) WHERE n = ?"
        self.store.db.execute(sql, (flags, amendment.step, n))
        for column, value in (("reward", amendment.reward), ("advantage", amendment.advantage)):
            if value is not None:  # NaN becomes NULL
                self.store.db.execute(f"UPDATE rows SET {column} = ? WHERE n = ?", (value, n))
        self.store.record.rows.add_extras(n, amendment.extra)
        self._measure_again("n = ?", n)

    def _measure_again(self, which: str, value: int) -> None:
        self.store.db.execute(
            f"UPDATE measured SET rollouts = -1 WHERE step IN (SELECT step FROM rows WHERE {which})", (value,)
        )


def tail_of(path: str, position: int) -> bytes:
    """Return a digest of the bytes before a position. If it stays the same, the file only grew."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, position - _TAIL))
            return hashlib.blake2b(file.read(min(position, _TAIL)), digest_size=16).digest()
    except OSError:
        return b""
