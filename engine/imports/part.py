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
Place = tuple[int, int, int, int]
"""Source, offset, length, and the position in the document (`~n`: the turns in the prompt belong to it)."""
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
        self.last: tuple[tuple[Message, ...], int | None] = ((), None)
        """The conversation and the number of the previous rollout."""
        self._clear()

    def _clear(self) -> None:
        self.began = time.monotonic()
        self.bytes = 0
        self.after: int | None = None
        self.line = 0
        self.first = self.next = self.store.record.last_n() + 1
        """The numbers of the first and of the next new row."""
        self.rows: dict[int, tuple[Listed, Place]] = {}
        """New rows, and earlier ones that are replaced, by number."""
        self.numbers: list[Numbers] = []
        self.amendments: list[tuple[Amendment, int, int]] = []
        self.named: list[str] = []
        self.problems: list[tuple[int | None, str]] = []
        self.seen: dict[str, tuple[int, int]] = {}
        self.lacking: Counter[tuple[str, str]] = Counter()
        self.words: Counter[str] = Counter()
        self.again: list[tuple[str, Rollout]] = []
        self.known: dict[str, int] = {}
        """By id, the number of each row that a later rollout may replace."""
        self.replaced: list[tuple[str, str]] = []
        """Groups that a resumed training wrote again, and the new group names of their earlier rollouts."""

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
        before = self.next
        try:
            items = list(reader.open(found.document, self.origin))
            rollouts = [item for item in items if isinstance(item, Rollout)]
            for part, rollout in enumerate(rollouts):
                self._add(rollout, found, part, self.store.scope(reader.name))
            read = self.next - before
            for part, item in enumerate(item for item in items if isinstance(item, Expected)):
                self._expect(item, item.format or reader.name, (self.source, found.offset, found.length, part))
        except Exception as error:  # a document may hold anything, and a format may be the user's code
            self.rows = {n: row for n, row in self.rows.items() if n < before}
            self.known = {id_: n for id_, n in self.known.items() if n < before}
            self.next, self.last = before, ((), None)
            reason = f"{reader.name}: it cannot be read ({type(error).__name__}: {str(error)[:160]})"
            deep = isinstance(error, RecursionError)
            self.problems.append((found.line, "it is nested too deeply" if deep else reason))
            return
        self._count_format(reader.name, read)
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
        n, turns = self._row_of(rollout.id) if unique or self.store.expecting else (None, None)
        if turns is not None and not unique:  # a different rollout with the same id
            n = None
        elif turns is not None and not rollout.grows:
            self.again.append((rollout.id, rollout))
            return
        elif turns is not None and turns > sum(m.is_agent for m in rollout.completion):
            return
        fallback = f"{self.origin.relative}:{found.line}"
        fallback = f"{fallback}.{part}" if part else fallback
        ids = identity(rollout, scope, fallback)
        place = (self.source, found.offset, found.length, part)
        if any(m.is_agent for m in rollout.prompt) and n is None and not rollout.grows:
            conversation, before = self.last
            # A later step of the previous rollout.
            if conversation and rollout.prompt[: len(conversation)] == conversation:
                n, rollout = before, with_turns_of_prompt(rollout)
                place = (*place[:3], ~part)
        if n is not None:  # the list already shows it
            group, position = self._shown(n)
            group = group if group.endswith(ids[1]) else ids[1]
        else:
            n, group, position = self._placed(rollout, ids[1])
        self.rows[n] = listed_of(rollout, (ids[0], group), fallback_id=fallback, index=position), place
        if unique:
            self.known[rollout.id] = n
        self.last = ((*rollout.prompt, *rollout.completion), n)

    def _placed(self, rollout: Rollout, group: str) -> tuple[int, str, int]:
        """Return the number of a new row, its group and its position in the group. If the group is being written again,
        move its earlier rows to another group and split."""
        group, position, attempt = self.store.groups.add(group, rollout, split_of(rollout), self.source)
        if attempt:
            earlier = f"{group} (attempt {attempt})"
            self.replaced.append((group, earlier))
            for n, (row, place) in self.rows.items():
                if row.group == group:
                    values = {**row.values, "split": Split.REPLACED}
                    self.rows[n] = row._replace(group=earlier, values=values), place
        self.next += 1
        return self.next - 1, group, position

    def _shown(self, n: int) -> tuple[str, int]:
        if n in self.rows:
            row = self.rows[n][0]
            return row.group, int(row.values["rollout"] or 0)
        sql = "SELECT name, rollout FROM rows JOIN groups ON groups.id = grp WHERE n = ?"
        return self.store.db.execute(sql, (n,)).fetchone()  # type: ignore[no-any-return]

    def _row_of(self, id_: str) -> tuple[int | None, Any]:
        """Return the number of the row with an id, and its turns (None: not read)."""
        n, turns = self.known.get(id_), None
        if n is None:
            sql = "SELECT n, turns FROM cards JOIN rows USING (n) WHERE cards.id = ? ORDER BY n DESC LIMIT 1"
            n, turns = self.store.db.execute(sql, (clean(id_),)).fetchone() or (None, None)
        return n, self.rows[n][0].values["turns"] if n in self.rows else turns

    def _expect(self, item: Expected, format_: str, here: Place) -> None:
        """Add a row for a rollout that will be read later, unless it is known or its file is missing."""
        rollout = item.rollout
        n, _ = self._row_of(rollout.id)
        source = self.source
        if item.path is not None:
            sql = "SELECT id FROM sources WHERE path IN (?, ?) AND container <> ''"
            source = self.store.one(sql, str(item.path), f"{item.path}.zst")
        if n is not None or source is None:
            return
        prompt_id, group = identity(rollout, self.store.scope(format_))
        n, group, position = self._placed(rollout, group)
        self.known[rollout.id] = n
        self.store.expecting = True
        row = listed_of(rollout, (prompt_id, group), fallback_id="", index=position)
        row = row._replace(labels=None, values={**row.values, "turns": None})
        self.rows[n] = row, here if item.at is None else (source, item.at, item.length, 0)
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
        if new := [row for n, (row, _) in self.rows.items() if n >= self.first]:
            record.rows.add(new)
            if self.store.one("SELECT 1 FROM amendments LIMIT 1"):  # some may have been read before their rollouts
                sql = "SELECT DISTINCT cards.id FROM cards JOIN amendments USING (id) WHERE cards.n >= ?"
                for (id_,) in db.execute(sql, (self.first,)).fetchall():
                    self._amend_again(id_)
        places = ((n, *place) for n, (_, place) in self.rows.items())
        db.executemany("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?, ?)", places)
        for n in (n for n in self.rows if n < self.first):
            record.rows.replace(n, self.rows[n][0])
            self._measure_again("n = ?", n)
            self.store.replaced = True
            self._amend_again(self.rows[n][0].id)

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
        replaced = self.replaced or min(self.rows, default=self.first) < self.first
        if self.again or self.amendments or replaced:  # they may change steps and components
            record.set_meta("measured", "")

    def _write_counts(self) -> None:
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
