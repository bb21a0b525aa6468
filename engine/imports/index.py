"""The index of a dump: a record whose rows are here and whose bodies stay in the user's files.

Lists, filters and charts need rows; a body is read from its place when it is opened (`reader.py`). Indexing goes in
small parts, each one transaction, so that a viewer sees the first rows at once, a killed indexer goes on where it was,
and a file that grows is followed. Text search is a second pass behind it, because it costs several times as much.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path

from ..runs import codec
from ..runs.listed import Listed
from ..runs.paths import DATABASE
from ..runs.reader import RunReader
from ..runs.store import RecordStore
from ..runs.types import TrajectoryRecord
from . import cache, coverage
from .check import TEXT, findings
from .containers import BY_NAME, DumpError, container_of
from .containers.base import Found
from .convert import columns, identity, listed_of, record_of
from .dump import files_of, format_of, formats_of
from .format import Format, Origin
from .options import Options
from .rollout import Amendment, Numbers, Rollout

VERSION = "4"
"""Of what an index holds; one of another version is made anew."""
PART_BYTES = 4 << 20
PART_ROLLOUTS = 512
PART_SECONDS = 0.1
_TAIL = 4096
_GROUPS = 100_000
_PROBLEMS = 100
_TEXTS = 64
_DIAGNOSED = 50_000
"""Rollouts of a dump that the detectors look at unasked: some seconds of the process behind the app."""

_TABLES = """
CREATE TABLE IF NOT EXISTS sources (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, container TEXT NOT NULL, size INTEGER NOT NULL,
    changed INTEGER NOT NULL, position INTEGER NOT NULL, line INTEGER NOT NULL, tail BLOB, done INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS places (
    n INTEGER PRIMARY KEY, source INTEGER NOT NULL, at INTEGER NOT NULL, length INTEGER NOT NULL, part INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS amendments (
    id TEXT NOT NULL, source INTEGER NOT NULL, at INTEGER NOT NULL, length INTEGER NOT NULL,
    step INTEGER, advantage REAL, extra TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS amendments_id ON amendments (id);
CREATE TABLE IF NOT EXISTS seen (format TEXT PRIMARY KEY, documents INTEGER NOT NULL, rollouts INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS skipped (id INTEGER PRIMARY KEY, path TEXT NOT NULL, line INTEGER, why TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS measured (step INTEGER PRIMARY KEY, rollouts INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS logged (name TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_DROP = "".join(
    f"DROP TABLE IF EXISTS {name};"
    for name in ("sources", "places", "amendments", "seen", "skipped", "measured", "logged")
)
_KEPT = ("meta",)


class Indexer:
    """Makes and continues the index of one dump. One process at a time has one (see `lock`)."""

    def __init__(self, dump: Path, folder: Path, options: Options | None = None) -> None:
        self.dump = dump
        self.folder = folder
        self.options = options or Options()
        self.formats = formats_of(self.options)
        folder.mkdir(parents=True, exist_ok=True)
        self.store = RecordStore(folder / DATABASE)
        self.db = self.store.db
        if self._meta("index") != VERSION:
            self.db.executescript(_DROP)
        self.db.executescript(_TABLES)
        self.db.execute("PRAGMA cache_size = -32768")
        self.db.execute("PRAGMA wal_autocheckpoint = 4000")
        self._counts: OrderedDict[str, int] = OrderedDict()
        self._first: str | None = None
        self._uncounted = bool(self.store.last_n())  # whether groups may have rollouts that are not in `_counts`
        self._problems = int(self.db.execute("SELECT count(*) FROM skipped").fetchone()[0])
        if self._meta("index") != VERSION:
            self._forget()
        self._look_at_files()

    def close(self) -> None:
        """Close the database."""
        self.store.close()

    def __enter__(self) -> Indexer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # Going on

    def advance(self, seconds: float | None = None) -> bool:
        """Index on, for about so long; everything that there is when None. Returns whether more is left."""
        until = None if seconds is None else time.monotonic() + seconds
        for id_, name in self.db.execute("SELECT id, path FROM sources WHERE done = 0 ORDER BY id").fetchall():
            for _ in self._read(id_, Path(name)):
                if until is not None and time.monotonic() > until:
                    self._measure(whole=False)
                    return True
        self._measure(whole=True)
        return False

    def make_searchable(self, seconds: float | None = None, *, whole: bool = True) -> bool:
        """Add texts to the full-text index, in order, for about so long; all of them, or (not `whole`) as many as are
        done unasked. Returns whether more is left."""
        until = None if seconds is None else time.monotonic() + seconds
        last = self.store.last_n()
        done = int(self._meta("searchable") or 0)
        size = int(self._meta("searchable_bytes") or 0)
        whole = whole or coverage.text_is_asked_for(self.folder)
        while done < last and (whole or size < coverage.UNASKED_TEXT):
            if until is not None and time.monotonic() > until:
                return True
            part = self.db.execute(
                "SELECT n, path, at, length, part, container FROM places JOIN sources ON sources.id = source "
                "WHERE n > ? AND n <= ? ORDER BY n",
                (done, done + _TEXTS),
            ).fetchall()
            texts = []
            for n, path, at, length, number, container in part:
                found = self._again(Path(path), container, at, length, number)
                if found is not None:
                    text = codec.search_text(found)
                    size += sum(map(len, text))
                    texts.append((n, text))
            self.store.begin()
            self.store.add_search(texts)
            done = min(last, done + _TEXTS)
            self.store.set_meta("searchable", str(done))
            self.store.set_meta("searchable_bytes", str(size))
            self.store.commit()
        return False

    def look_again(self) -> bool:
        """See what has grown or come; whether there is something to index."""
        self._look_at_files()
        return bool(self.db.execute("SELECT 1 FROM sources WHERE done = 0 LIMIT 1").fetchone())

    def progress(self) -> coverage.Coverage:
        """How far it is."""
        sources = self.db.execute(coverage.SOURCES)
        return coverage.Coverage.of(sources, int(self._meta("searchable") or 0), self.store.last_n())

    def summary(self) -> dict[str, object]:
        """What was recognised, what was skipped, what the formats do not carry: for people and for `--json`."""
        seen = self.db.execute("SELECT format, documents FROM seen ORDER BY rollouts DESC, documents DESC").fetchall()
        by_name = {f.name: f for f in self.formats}
        skipped = self.db.execute("SELECT path, line, why FROM skipped ORDER BY id LIMIT ?", (_PROBLEMS,)).fetchall()
        count = self._problems
        return {
            "formats": {name: documents for name, documents in seen},
            "files": int(self.db.execute("SELECT count(*) FROM sources").fetchone()[0]),
            "rollouts": self.store.last_n(),
            "last_step": self.db.execute("SELECT max(step) FROM rows").fetchone()[0],
            "means": json.loads(self._meta("means") or "{}"),
            "skipped": [{"file": self._short(path), "line": line, "why": why} for path, line, why in skipped],
            "skipped_in_all": count,
            "not_recorded": {name: dict(by_name[name].unknown) for name, _ in seen if name in by_name},
        }

    def describe(self, *, opened: bool = False) -> None:
        """Write the summary where the reader of runs finds it; `opened`: a person opened the dump now."""
        names = [name for (name,) in self.db.execute("SELECT format FROM seen WHERE rollouts ORDER BY rollouts DESC")]
        cache.describe(self.folder, self.dump, self.options, ", ".join(names), self.summary(), opened=opened)

    def diagnose(self) -> None:
        """Put what the detectors find into the index, as the alerts of a run; of a dump so large that it would take
        long, `grpo-tui check` tells it."""
        last_n = str(self.store.last_n())
        if self._meta("diagnosed") == last_n or self.store.last_n() > _DIAGNOSED:
            return
        with RunReader(self.folder) as reader:
            found = findings(reader)
        self.store.begin()
        self.db.execute("DELETE FROM events WHERE kind = 'alert'")
        for each in found:
            data = {k: v for k, v in vars(each.finding).items() if k != "message"}
            self.store.add_event("alert", each.finding.message, each.step or 0, time.time(), codec.encode_json(data))
        self.store.set_meta("diagnosed", last_n)
        self.store.commit()

    # Inside

    def _look_at_files(self) -> None:
        """Compare the files with what is known of them; start anew when one is not what it was."""
        known = {
            path: (id_, container, size, changed, position, tail)
            for id_, path, container, size, changed, position, tail in self.db.execute(
                "SELECT id, path, container, size, changed, position, tail FROM sources"
            )
        }
        files = [str(path) for path in files_of(self.dump)]
        present = set(files)
        for path in [p for p in known if p not in present]:
            sealed = f"{path}.zst"  # a finished chunk was compressed: its text, and so every place in it, is the same
            if sealed in present and sealed not in known and known[path][1] == "json lines":
                self.db.execute(
                    "UPDATE sources SET path = ?, container = 'json lines in zstd', size = ?, changed = ?, done = 0 "
                    "WHERE path = ?",
                    (sealed, *_stat(sealed), path),
                )
                known[sealed] = (*known.pop(path)[:1], "json lines in zstd", *_stat(sealed), 0, None)
            elif self._holds_rows(known[path][0]):
                self._forget()
                return self._look_at_files()
            else:
                self.db.execute("DELETE FROM sources WHERE path = ?", (path,))
        for path in files:
            try:
                size, changed = _stat(path)
            except OSError:
                continue
            if path not in known:
                self._add_source(path, size, changed)
                continue
            id_, container, old_size, old_changed, position, tail = known[path]
            if (size, changed) == (old_size, old_changed):
                continue
            if container == "":
                self.db.execute("DELETE FROM sources WHERE id = ?", (id_,))
                self._add_source(path, size, changed)
            elif container == "json lines" and size >= position and _tail(path, position) == tail:
                self.db.execute("UPDATE sources SET size = ?, changed = ?, done = 0 WHERE id = ?", (size, changed, id_))
            else:
                self._forget()
                return self._look_at_files()

    def _add_source(self, path: str, size: int, changed: int) -> None:
        """A new file. One that holds no documents is kept in mind, so that it is not looked at again."""
        name = ""
        try:
            container = container_of(Path(path)) if size else None
            name = container.name if container is not None else ""
        except (DumpError, OSError) as error:
            self._skip(path, None, str(error).removeprefix(f"{path}: "))
        self.db.execute(
            "INSERT INTO sources (path, container, size, changed, position, line, done) VALUES (?, ?, ?, ?, 0, 0, ?)",
            (path, name, size, changed, int(not name)),
        )

    def _holds_rows(self, source: int) -> bool:
        return bool(
            self.db.execute("SELECT 1 FROM places WHERE source = ? LIMIT 1", (source,)).fetchone()
            or self.db.execute("SELECT 1 FROM amendments WHERE source = ? LIMIT 1", (source,)).fetchone()
        )

    def _read(self, id_: int, path: Path) -> Iterator[None]:
        """Index a file on, a part at a time; each part is one transaction."""
        container, position, line = self.db.execute(
            "SELECT container, position, line FROM sources WHERE id = ?", (id_,)
        ).fetchone()
        origin = Origin(path, self.dump if self.dump.is_dir() else self.dump.parent)
        part = _Part(self, id_, origin)
        try:
            for found in BY_NAME[container].open(path, position, line):
                part.take(found)
                if part.full:
                    part.commit(done=False)
                    yield
            part.commit(done=True)
        except (DumpError, OSError) as error:
            part.problem(None, str(error).removeprefix(f"{path}: "))
            part.commit(done=True)
        yield

    def _again(self, path: Path, container: str, at: int, length: int, part: int) -> TrajectoryRecord | None:
        """A rollout read again, for its text."""
        origin = Origin(path, self.dump if self.dump.is_dir() else self.dump.parent)
        try:
            document = BY_NAME[container].read(path, at, length)
            reader = format_of(document, origin, self.formats)
            if reader is None:
                return None
            rollouts = [item for item in reader.open(document, origin) if isinstance(item, Rollout)]
            return record_of(rollouts[part], fallback_id="", index=0, unknown={})
        except (DumpError, OSError, KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError):
            return None

    def scope(self, format_: str) -> str:
        """What tells the groups of a format apart from those of the dump's first format, which need nothing."""
        if self._first is None:
            row = self.db.execute("SELECT format FROM seen WHERE rollouts ORDER BY rowid LIMIT 1").fetchone()
            self._first = format_ if row is None else row[0]
        return "" if format_ == self._first else format_

    def _position_in_group(self, group: str) -> int:
        """How many rollouts of a group there are so far."""
        known = self._counts.pop(group, None)
        if known is None:
            known = 0
            if self._uncounted:
                known = self.db.execute(
                    "SELECT count(*) FROM rows WHERE grp = (SELECT id FROM groups WHERE name = ?)", (group,)
                ).fetchone()[0]
        self._counts[group] = known + 1
        if len(self._counts) > _GROUPS:
            self._counts.popitem(last=False)
            self._uncounted = True
        return known

    def _measure(self, *, whole: bool) -> None:
        """Means of steps, for the charts of a dump whose writer logged none: of the steps behind the last one while
        files are read, and of all that have changed once they are (`whole`)."""
        last_n = str(self.store.last_n())
        if whole and self._meta("measured") == last_n:
            return
        if whole:
            sql, params = "SELECT step, count(*) FROM rows WHERE step IS NOT NULL GROUP BY step", ()
        else:
            last = self.db.execute("SELECT coalesce(max(step), -1) FROM measured").fetchone()[0]
            sql = "SELECT step, count(*) FROM rows WHERE step > ? AND step < (SELECT max(step) FROM rows) GROUP BY step"
            params = (last,)
        known = dict(self.db.execute("SELECT step, rollouts FROM measured"))
        changed = [(step, size) for step, size in self.db.execute(sql, params).fetchall() if known.get(step) != size]
        logged = {name for (name,) in self.db.execute("SELECT name FROM logged")}
        self.store.begin()
        for step, size in changed:
            values = {k: v for k, v in self._means(step).items() if v is not None and k not in logged}
            self.store.replace_metrics(step, values)
            self.db.execute("INSERT OR REPLACE INTO measured VALUES (?, ?)", (step, size))
        if whole:
            means = {name: mean for name, mean in self._means(None).items() if mean is not None}
            self.store.set_meta("means", json.dumps(means))
            self.store.set_meta("measured", last_n)
        self.store.commit()

    def _means(self, step: int | None) -> dict[str, float | None]:
        """Of the rollouts of one step; of all rollouts for None."""
        where, params = ("rows.step = ?", (step,)) if step is not None else ("1", ())
        reward, right, labelled, turns, tokens = self.db.execute(
            f"SELECT avg(reward), sum(correct = 1), count(correct), avg(turns), avg(tokens) FROM rows WHERE {where}",
            params,
        ).fetchone()
        means = {
            "rewards/total/mean": reward,
            "success/train": right / labelled if labelled else None,
            "turns/mean": turns,
            "tokens/total": tokens,
        }
        for name, mean in self.db.execute(
            f"SELECT labels.name, avg(number) FROM labels CROSS JOIN rows CROSS JOIN extras WHERE {where} "
            "AND labels.kind = 'extra' AND labels.name GLOB 'component.*' "
            "AND extras.name = labels.id AND extras.n = rows.n GROUP BY 1",
            params,
        ):
            means[f"rewards/raw/{name.removeprefix('component.')}"] = mean
        return {**means, **(self._actions(step) if step is not None else {})}

    def _actions(self, step: int) -> dict[str, float]:
        """The share of each action in the turns of one step; words between calls are none."""
        counts: Counter[str] = Counter()
        for (actions,) in self.db.execute(
            "SELECT cards.actions FROM cards JOIN rows ON rows.n = cards.n WHERE step = ?", (step,)
        ):
            counts.update(actions.split(","))
        names = {str(id_): name for id_, name in self.db.execute("SELECT id, name FROM labels WHERE kind = 'action'")}
        known = {names[id_]: count for id_, count in counts.items() if names.get(id_, TEXT) != TEXT}
        whole = sum(known.values())
        return {f"behavior/action_distribution/{name}": count / whole for name, count in known.items()}

    def _skip(self, path: str, line: int | None, why: str) -> None:
        self._problems += 1
        if self._problems <= _PROBLEMS * 10:
            why = why.encode("utf-8", "replace").decode()
            self.db.execute("INSERT INTO skipped (path, line, why) VALUES (?, ?, ?)", (path, line, why[:500]))

    def _short(self, path: str) -> str:
        return Origin(Path(path), self.dump if self.dump.is_dir() else self.dump.parent).relative

    def _meta(self, key: str) -> str | None:
        row = self.db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]

    def _forget(self) -> None:
        """Empty the index, in one transaction; readers that are open begin anew."""
        self.store.begin()
        tables = [
            name
            for (name,) in self.db.execute(
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' "
                "AND name NOT LIKE 'search%'"
            )
        ]
        for table in tables:
            if table not in _KEPT:
                self.db.execute(f"DELETE FROM {table}")
        self.db.execute("INSERT INTO search (search) VALUES ('delete-all')")
        self.store.set_meta("searchable", "0")
        self.store.set_meta("searchable_bytes", "0")
        self.store.set_meta("measured", "")
        self.store.set_meta("means", "{}")
        self.store.set_meta("diagnosed", "")
        self.store.set_meta("index", VERSION)
        self.store.set_meta("epoch", str(time.time_ns()))
        self.store.commit()
        self.store.rollback()  # forget the names that were known
        self._counts.clear()
        self._first = None
        self._problems = 0


class _Part:
    """What is read of one file and not yet committed."""

    def __init__(self, indexer: Indexer, source: int, origin: Origin) -> None:
        self.indexer = indexer
        self.source = source
        self.origin = origin
        self.format: Format | None = None
        self.keys: tuple[object, ...] | None = None
        self.documents = 0
        self.strange: list[tuple[int, str]] = []
        self._clear()

    def _clear(self) -> None:
        self.began = time.monotonic()
        self.bytes = 0
        self.after: int | None = None
        self.line = 0
        self.rows: list[Listed] = []
        self.places: list[tuple[int, int, int, int]] = []
        self.numbers: list[Numbers] = []
        self.amendments: list[tuple[Amendment, int, int]] = []
        self.problems: list[tuple[int | None, str]] = []
        self.seen: dict[str, tuple[int, int]] = {}
        self.ids: set[str] = set()
        self.again: list[tuple[str, Rollout]] = []

    @property
    def full(self) -> bool:
        large = self.bytes >= PART_BYTES or len(self.rows) >= PART_ROLLOUTS
        return large or time.monotonic() - self.began > PART_SECONDS  # what is packed takes longer than its bytes say

    def problem(self, line: int | None, why: str) -> None:
        self.problems.append((line, why))

    def take(self, found: Found) -> None:
        """One document."""
        self.after, self.line = found.after, found.line
        self.documents += 1
        self.bytes += max(found.length, 256)
        if found.problem is not None:
            self.problem(found.line, found.problem)
            return
        reader = self._format(found.document)
        if reader is None:
            self._see("(unknown)", 0)
            if isinstance(found.document, dict) and len(self.strange) < 3:
                keys = ", ".join(str(k)[:30] for k in list(found.document)[:6])
                self.strange.append((found.line, f"no format that is known (its keys: {keys}); see --map"))
            return
        rows = len(self.rows)
        try:
            items = list(reader.open(found.document, self.origin))
            for part, rollout in enumerate(item for item in items if isinstance(item, Rollout)):
                self._add(rollout, found, part, self.indexer.scope(reader.name))
        except RecursionError:
            del self.rows[rows:], self.places[rows:]
            self.problem(found.line, "it is nested too deeply")
            return
        except Exception as error:  # a document may hold anything, and a user's own format is the user's code
            del self.rows[rows:], self.places[rows:]
            self.problem(found.line, f"{reader.name}: it cannot be read ({type(error).__name__}: {str(error)[:160]})")
            return
        self._see(reader.name, len(self.rows) - rows)
        for item in items:
            if isinstance(item, Numbers):
                self.numbers.append(item)
            elif isinstance(item, Amendment):
                self.amendments.append((item, found.offset, found.length))

    def _see(self, format_: str, rollouts: int) -> None:
        documents, before = self.seen.get(format_, (0, 0))
        self.seen[format_] = (documents + 1, before + rollouts)

    def _format(self, document: object) -> Format | None:
        """The format of a document: that of the one before where the keys are the same and it knows this one, too."""
        keys = tuple(document) if isinstance(document, dict) else None
        if self.format is not None and keys is not None and keys == self.keys:
            try:
                if self.format.detect(document, self.origin):
                    return self.format
            except (KeyError, TypeError, ValueError, AttributeError, IndexError):
                pass
        self.format = format_of(document, self.origin, self.indexer.formats)
        self.keys = keys
        return self.format

    def _add(self, rollout: Rollout, found: Found, part: int, scope: str) -> None:
        if rollout.same_as_id and rollout.id:
            if (
                rollout.id in self.ids
                or self.indexer.db.execute("SELECT 1 FROM cards WHERE id = ?", (rollout.id,)).fetchone()
            ):
                self.again.append((rollout.id, rollout))
                return
            self.ids.add(rollout.id)
        named = identity(rollout, scope)
        fallback = f"{self.origin.relative}:{found.line}"
        self.rows.append(
            listed_of(
                rollout,
                named,
                fallback_id=f"{fallback}.{part}" if part else fallback,
                index=self.indexer._position_in_group(named[1]),
            )
        )
        self.places.append((self.source, found.offset, found.length, part))

    def commit(self, done: bool) -> None:
        """Write what was read."""
        store, db = self.indexer.store, self.indexer.db
        size, changed = _stat(self.origin.path) if self.origin.path.exists() else (0, 0)
        store.begin()
        try:
            if self.rows:
                first = store.add_rows(self.rows)
                db.executemany(
                    "INSERT INTO places VALUES (?, ?, ?, ?, ?)",
                    ((first + i, *place) for i, place in enumerate(self.places)),
                )
                self._amend_new(first)
            for id_, rollout in self.again:
                self._amend(id_, Amendment(id_, rollout.step, rollout.advantage, columns(rollout)))
            for amendment, at, length in self.amendments:
                extra = codec.encode_json(amendment.extra).decode("utf-8", "replace")
                values = (amendment.id, self.source, at, length, amendment.step, amendment.advantage, extra)
                db.execute("INSERT INTO amendments VALUES (?, ?, ?, ?, ?, ?, ?)", values)
                self._amend(amendment.id, amendment)
            for numbers in self.numbers:
                db.executemany("INSERT OR IGNORE INTO logged VALUES (?)", ((name,) for name in numbers.values))
                store.replace_metrics(numbers.step, numbers.values)
            if self.again or self.amendments:  # they may tell steps and components of rollouts that were counted
                store.set_meta("measured", "")
            db.executemany(
                "INSERT INTO seen VALUES (?, ?, ?) ON CONFLICT (format) DO UPDATE SET "
                "documents = documents + excluded.documents, rollouts = rollouts + excluded.rollouts",
                ((name, *counts) for name, counts in self.seen.items()),
            )
            if self.documents > 1:  # a lone document that nobody knows is a side file, such as settings
                self.problems += self.strange
                self.strange.clear()
            for line, why in self.problems:
                self.indexer._skip(str(self.origin.path), line, why)
            if self.after is not None:
                db.execute(
                    "UPDATE sources SET position = ?, line = ?, tail = ? WHERE id = ?",
                    (self.after, self.line, _tail(str(self.origin.path), self.after), self.source),
                )
            if done:
                db.execute(
                    "UPDATE sources SET done = 1, size = ?, changed = ? WHERE id = ?", (size, changed, self.source)
                )
            store.commit()
        except BaseException:
            store.rollback()
            raise
        self._clear()

    def _amend_new(self, first: int) -> None:
        """Rollouts may come after what is said of them: annotations stand in files of their own."""
        db = self.indexer.db
        if db.execute("SELECT 1 FROM amendments LIMIT 1").fetchone() is None:
            return
        said = db.execute(
            "SELECT cards.id, amendments.step, amendments.advantage, extra FROM cards "
            "JOIN amendments ON amendments.id = cards.id WHERE cards.n >= ?",
            (first,),
        ).fetchall()
        for id_, step, advantage, extra in said:
            self._amend(id_, Amendment(id_, step, advantage, json.loads(extra)))

    def _amend(self, id_: str, amendment: Amendment) -> None:
        """Put what was said later into the row; nothing where the rollout is not there (yet)."""
        db = self.indexer.db
        row = db.execute("SELECT max(n) FROM cards WHERE id = ?", (id_,)).fetchone()
        if row is None or row[0] is None:
            return
        if amendment.advantage is not None:
            db.execute("UPDATE rows SET advantage = ? WHERE n = ?", (amendment.advantage, row[0]))
        if amendment.step is not None:
            db.execute("UPDATE rows SET step = coalesce(step, ?) WHERE n = ?", (amendment.step, row[0]))
        self.indexer.store.add_extras(row[0], amendment.extra)


def _stat(path: str | Path) -> tuple[int, int]:
    stat = os.stat(path)
    return stat.st_size, stat.st_mtime_ns


def _tail(path: str, position: int) -> bytes:
    """A digest of the bytes before a position: whether a file that grew is still the one that it was."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, position - _TAIL))
            return hashlib.blake2b(file.read(min(position, _TAIL)), digest_size=16).digest()
    except OSError:
        return b""
