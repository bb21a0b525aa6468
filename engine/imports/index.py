"""The index of a dump: a record with rows, whose bodies stay in the user's files.

Lists, filters and charts need only rows. `bodies.py` reads a body from its file when it is opened. Indexing proceeds in
small parts, one transaction each. So a viewer sees the first rows at once, a killed indexer continues where it stopped,
and growing files are followed. Text search is a second pass, because it costs several times as much.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from ...configs import metric_names as metric
from ..runs import codec
from ..runs.columns import Flag
from ..runs.labels import clean
from ..runs.read.reader import RunReader
from ..runs.types import TEXT
from . import cache, coverage
from .containers import BY_NAME, container_of
from .containers.base import stat_of
from .convert import record_of
from .copies import damage_of
from .dump import PlacedItems, files_of, formats_of
from .errors import DumpError, reason_of
from .format import NOT_WRITTEN, Format, Origin
from .index_store import PROBLEMS, IndexStore
from .options import Options
from .part import PART_SECONDS, UNKNOWN, FilePart, tail_of
from .reached import is_low

_TRAIN = "rows.split = (SELECT id FROM labels WHERE kind = 'split' AND name = 'train')"
"""The condition for training rollouts. Evaluations and judges count only in a dump without training rollouts."""


def measure(store: IndexStore, *, whole: bool) -> None:
    """Store the means of complete steps while files are being read, or (`whole`) of all changed steps afterwards."""
    db = store.db
    split = _TRAIN if store.one(f"SELECT 1 FROM rows WHERE {_TRAIN} LIMIT 1") else "1"
    last_n = str(store.record.last_n())
    if whole and store.meta("measured") == last_n:
        return
    complete = "step > (SELECT coalesce(max(step), -1) FROM measured) AND step < (SELECT max(step) FROM rows)"
    where = "step IS NOT NULL" if whole else complete
    sizes = db.execute(f"SELECT step, sum({split}) FROM rows WHERE {where} GROUP BY step").fetchall()
    known = dict(db.execute("SELECT step, rollouts FROM measured"))
    changed = [(step, size) for step, size in sizes if known.get(step) != size]
    last_split = store.meta("measured_split")
    if whole and last_split not in (None, split):  # the first training rollout arrived: drop means of evaluations
        known = dict.fromkeys(known, -1)
        changed = [(step, size) for step, size in sizes if size or step in known]
    logged = {name for (name,) in db.execute("SELECT name FROM logged")}
    with store.record.transaction():
        if whole or last_split is None:
            store.record.set_meta("measured_split", split)
        for step, size in changed:
            before = step in known  # an evaluation's mean may need removal
            values = {k: v for k, v in _means(db, step, split).items() if k not in logged and (before or v is not None)}
            store.record.metrics.replace(step, values)
            db.execute("INSERT OR REPLACE INTO measured VALUES (?, ?)", (step, size))
        if whole:
            means = {name: mean for name, mean in _means(db, None, split).items() if mean is not None}
            store.record.set_meta("means", json.dumps(means))
            store.record.set_meta("measured", last_n)


def _means(db: Connection, step: int | None, split: str) -> dict[str, float | None]:
    """Return means over the rollouts of one step, or of all steps if `step` is None."""
    where, params = (f"rows.step = ? AND {split}", (step,)) if step is not None else (split, ())
    reward, right, labelled, turns, tokens = db.execute(
        f"SELECT avg(reward), sum(correct = 1), count(correct), avg(turns), avg(tokens) FROM rows WHERE {where}", params
    ).fetchone()
    means = {
        metric.REWARD_MEAN: reward,
        metric.SUCCESS_TRAIN: right / labelled if labelled else None,
        metric.TURNS: turns,
        metric.TOKENS_TOTAL: tokens,
    }
    for name, mean in db.execute(
        f"SELECT labels.name, avg(number) FROM labels CROSS JOIN rows CROSS JOIN extras WHERE {where} "
        "AND labels.kind = 'extra' AND labels.name GLOB 'component.*' "
        "AND extras.name = labels.id AND extras.n = rows.n GROUP BY 1",
        params,
    ):
        means[metric.COMPONENT_RAW(name.removeprefix("component."))] = mean
    return {**means, **(_actions(db, step, split) if step is not None else {})}


def _actions(db: Connection, step: int, split: str) -> dict[str, float]:
    """Return the share of each action among the turns of one step. Turns without a call do not count."""
    counts: Counter[str] = Counter()
    for (actions,) in db.execute(
        f"SELECT cards.actions FROM cards JOIN rows ON rows.n = cards.n WHERE step = ? AND {split}", (step,)
    ):
        counts.update(actions.split(","))
    names = {str(id_): name for id_, name in db.execute("SELECT id, name FROM labels WHERE kind = 'action'")}
    known = {names[id_]: count for id_, count in counts.items() if names.get(id_, TEXT) != TEXT}
    total = sum(known.values())
    return {metric.ACTION_SHARE(name): count / total for name, count in known.items()}


_TEXTS = 64
_HOLDS_ROWS = "SELECT 1 FROM places WHERE source = ?1 UNION SELECT 1 FROM amendments WHERE source = ?1 LIMIT 1"


class Indexer(AbstractContextManager["Indexer"]):
    """Builds and continues the index of one dump, in one process at a time."""

    def __init__(self, dump: Path, folder: Path, options: Options | None = None) -> None:
        self.dump = dump
        self.folder = folder
        self.options = options or Options()
        self.formats = formats_of(self.options)
        self._placed = PlacedItems(dump, self.formats)
        self.tables = IndexStore(folder)
        self.store = self.tables.record
        self.db = self.tables.db
        self._look_at_files()

    def close(self) -> None:
        self.store.close()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def advance(self, seconds: float | None = None) -> bool:
        """Continue the index for about `seconds`, or to its end. Return whether more is left."""
        until = None if seconds is None else time.monotonic() + seconds
        for id_, name in self.db.execute("SELECT id, path FROM sources WHERE done = 0 ORDER BY id").fetchall():
            for _ in self._read(id_, Path(name), PART_SECONDS if seconds is None else min(seconds, PART_SECONDS)):
                if until is not None and time.monotonic() > until:
                    measure(self.tables, whole=False)
                    return True
        measure(self.tables, whole=True)
        self._find_missing()
        return False

    def make_searchable(self, seconds: float | None = None, *, whole: bool = True) -> bool:
        """Add texts to the full-text index for about `seconds`: all, or only the first `UNASKED_TEXT` bytes unless
        `whole`. Return whether more is left."""
        until = None if seconds is None else time.monotonic() + seconds
        last = self.store.last_n()
        done = int(self.tables.meta("searchable") or 0)
        size = int(self.tables.meta("searchable_bytes") or 0)
        whole = whole or (self.folder / coverage.ASKED).exists()
        while done < last and (whole or size < coverage.UNASKED_TEXT):
            if until is not None and time.monotonic() > until:
                return True
            part = self.db.execute(
                "SELECT n, path, at, length, part, container FROM places JOIN sources ON sources.id = source "
                "WHERE n > ? AND n <= ? ORDER BY n",
                (done, done + _TEXTS),
            ).fetchall()
            texts = []
            for n, path, offset, length, number, container in part:
                with suppress(DumpError, OSError):
                    rollout, _ = self._placed.rollout((path, container, offset, length), number)
                    text = codec.search_text(record_of(rollout, fallback_id="", index=0, unknown={}))
                    size += sum(map(len, text))
                    texts.append((n, text))
            with self.store.transaction():
                self.store.rows.add_search(texts)
                done = min(last, done + _TEXTS)
                self.store.set_meta("searchable", str(done))
                self.store.set_meta("searchable_bytes", str(size))
        return False

    def look_again(self) -> bool:
        """Look for files that are new or have grown. Return whether there is a file to index."""
        self._look_at_files()
        return self.unfinished()

    def unfinished(self) -> bool:
        return bool(self.tables.one("SELECT 1 FROM sources WHERE done = 0 LIMIT 1"))

    def summary(self) -> dict[str, Any]:
        """Return the recognised formats, skipped parts, missing values and coverage, for people and `--json`."""
        seen = self.db.execute("SELECT format, documents FROM seen ORDER BY rollouts DESC, documents DESC").fetchall()
        by_name = {f.name: f for f in self.formats}
        skipped = self.db.execute("SELECT path, line, why FROM skipped ORDER BY id LIMIT ?", (PROBLEMS,)).fetchall()
        missing = [(path, None, why) for path, why in json.loads(self.tables.meta("missing") or "[]")]
        if why := damage_of(self.dump):
            missing.append((str(self.dump), None, why))
        return {
            "formats": {name: documents for name, documents in seen},
            "files": self.tables.one("SELECT count(*) FROM sources"),
            "rollouts": self.store.last_n(),
            "metrics": self.tables.one("SELECT count(*) FROM logged"),
            "last_step": self.tables.one("SELECT max(step) FROM rows"),
            "means": json.loads(self.tables.meta("means") or "{}"),
            "skipped": [
                {"file": self._short(path), "line": line, "why": why} for path, line, why in (*skipped, *missing)
            ],
            "skipped_in_all": self.tables.problems + len(missing),
            "not_recorded": {name: self._lacking(by_name[name]) for name, _ in seen if name in by_name},
            "coverage": self._reached(),
        }

    def _lacking(self, format_: Format) -> dict[str, str]:
        """Return the values that rollouts of a format lack, with the reason, and the count if only some lack it."""
        missing = dict(self.db.execute("SELECT what, rollouts FROM lacking WHERE format = ?", (format_.name,)))
        total = self.tables.one("SELECT rollouts FROM seen WHERE format = ?", format_.name) or 0
        if total == self.store.last_n():  # later values exist only in the rows
            for what in missing.keys() & {"reward", "advantage", "step"}:
                known = f"{what} IS NOT NULL" + (f" OR flags & {Flag.NAN:d}" if what == "reward" else "")
                missing[what] = self.tables.one(f"SELECT count(*) FROM rows WHERE NOT ({known})")
        why = {what: why for what, why in {**NOT_WRITTEN, **format_.unknown}.items() if missing.get(what)}
        part = {
            what: f" in {missing[what]:,} of {total:,}" for what in why.keys() - {"weight"} if missing[what] < total
        }
        return {what: f"{reason}{part.get(what, '')}" for what, reason in why.items()}

    def _reached(self) -> dict[str, object]:
        rows = self.db.execute("SELECT path, words, reached FROM reached WHERE words > 0 ORDER BY path").fetchall()
        words, reached = sum(row[1] for row in rows), sum(row[2] for row in rows)
        low = {self._short(path): n / total for path, total, n in rows if is_low(total, n)}
        return {"share": reached / words if words else None, "low": dict(sorted(low.items())[:PROBLEMS])}

    def describe(self, *, opened: bool = False) -> None:
        """Write the summary for the reader of runs. opened: whether a person just opened the dump."""
        rollouts = "WHERE rollouts" if self.store.last_n() else f"WHERE format != '{UNKNOWN}'"
        names = [name for (name,) in self.db.execute(f"SELECT format FROM seen {rollouts} ORDER BY rollouts DESC")]
        cache.describe(self.folder, self.dump, self.options, ", ".join(names), self.summary(), opened=opened)

    def diagnose(self) -> None:
        """Store the detectors' findings as alerts, except for a large dump (see `grpo-tui check`)."""
        last_n = str(self.store.last_n())
        if self.tables.meta("diagnosed") == last_n or self.store.last_n() > 50_000:  # which takes some seconds
            return
        # It loads pydantic, which takes as long as the first paint of a large dump may.
        from .check import diagnose

        with RunReader(self.folder) as reader:
            found = diagnose(reader).found()
        with self.store.transaction():
            self.db.execute("DELETE FROM events WHERE kind = 'alert'")
            for result in found:
                data = {k: v for k, v in vars(result.finding).items() if k != "message"}
                self.store.add_event(
                    "alert", result.finding.message, result.step or 0, time.time(), codec.encode_json(data)
                )
            self.store.set_meta("diagnosed", last_n)

    def _find_missing(self) -> None:
        """Count the rollouts that writers' own indexes name but no file holds. Call it when all files are read."""
        last_n = str(self.store.last_n())
        if self.tables.meta("looked_for") == last_n:
            return
        found = self.db.execute(
            "SELECT path, count(*) FROM named JOIN sources ON sources.id = source "
            "WHERE NOT EXISTS (SELECT 1 FROM cards JOIN rows ON rows.n = cards.n "
            "WHERE cards.id = named.id AND turns IS NOT NULL) GROUP BY path ORDER BY path"
        ).fetchall()
        entries = [(path, f"it names {n:,} rollout{'s' * (n > 1)} that no readable file contains") for path, n in found]
        with self.store.transaction():
            self.store.set_meta("missing", json.dumps(entries))
            self.store.set_meta("looked_for", last_n)

    def _look_at_files(self) -> None:
        """Compare the files with the known ones. Start over if a file changed in any way except growing."""
        known = {
            path: (id_, container, size, changed, position, tail)
            for id_, path, container, size, changed, position, tail in self.db.execute(
                "SELECT id, path, container, size, changed, position, tail FROM sources"
            )
        }
        files = [str(path) for path in files_of(self.dump)]
        for path in [path for path in files if clean(path) != path]:
            files.remove(path)
            self.tables.unskip(clean(path))
            self.tables.skip(clean(path), None, "its name, or that of a folder, is not UTF-8; rename it")
        present = set(files)
        for path in [p for p in known if p not in present]:
            sealed = f"{path}.zst"  # a finished chunk was compressed; offsets in its text stay valid
            if sealed in present and sealed not in known and known[path][1] == "json lines":
                self.db.execute(
                    "UPDATE sources SET path = ?, container = 'json lines in zstd', size = ?, changed = ?, done = 0 "
                    "WHERE path = ?",
                    (sealed, *stat_of(sealed), path),
                )
                known[sealed] = (*known.pop(path)[:1], "json lines in zstd", *stat_of(sealed), 0, None)
            elif self.tables.one(_HOLDS_ROWS, known[path][0]):
                self.tables.forget()
                return self._look_at_files()
            else:
                self.db.execute("DELETE FROM sources WHERE path = ?", (path,))
        for path in files:
            try:
                size, changed = stat_of(path)
            except OSError as error:
                if os.path.islink(path):
                    self.tables.unskip(path)
                    self.tables.skip(path, None, f"the link points to no file ({error.strerror})")
                continue
            if path not in known:
                self._add_source(path, size, changed)
                continue
            id_, container, old_size, old_changed, position, tail = known[path]
            if (size, changed) == (old_size, old_changed):
                continue
            if container in ("", "session"):
                self.tables.unskip(path)
            if container == "":
                self.db.execute("DELETE FROM sources WHERE id = ?", (id_,))
                self._add_source(path, size, changed)
            elif container == "json lines" and size >= position and tail_of(path, position) == tail:
                self.db.execute("UPDATE sources SET size = ?, changed = ?, done = 0 WHERE id = ?", (size, changed, id_))
            elif container == "session":  # the longer rollouts replace the earlier ones
                sql = "UPDATE sources SET size = ?, changed = ?, position = 0, line = 0, done = 0 WHERE id = ?"
                self.db.execute(sql, (size, changed, id_))
            else:
                self.tables.forget()
                return self._look_at_files()

    def _add_source(self, path: str, size: int, changed: int) -> None:
        name = ""
        try:
            container = container_of(Path(path)) if size else None
            name = container.name if container is not None else ""
        except (DumpError, OSError) as error:
            self.tables.skip(path, None, reason_of(error).removeprefix(f"{path}: "))
        self.db.execute(
            "INSERT INTO sources (path, container, size, changed, position, line, done) VALUES (?, ?, ?, ?, 0, 0, ?)",
            (path, name, size, changed, int(not name)),
        )

    def _read(self, id_: int, path: Path, seconds: float = PART_SECONDS) -> Iterator[None]:
        """Continue the index of a file in parts, one transaction each."""
        container, position, line = self.db.execute(
            "SELECT container, position, line FROM sources WHERE id = ?", (id_,)
        ).fetchone()
        part = FilePart(self.tables, self.formats, id_, Origin.of(path, self.dump), seconds)
        try:
            if position == 0 or container == "json lines":  # the next look sees any later change
                sql = "UPDATE sources SET size = ?, changed = ? WHERE id = ?"
                self.db.execute(sql, (*stat_of(path), id_))
            self.db.execute("UPDATE sources SET ends = ? WHERE id = ?", (BY_NAME[container].end(path), id_))
            for found in BY_NAME[container].open(path, position, line):
                part.take(found)
                if part.full:
                    part.commit(done=False)
                    yield
            part.commit(done=True)
        except (DumpError, OSError) as error:
            part.problems.append((None, reason_of(error).removeprefix(f"{path}: ")))
            part.commit(done=True)
        yield

    def _short(self, path: str) -> str:
        return Origin.of(Path(path), self.dump).relative
