"""A record opened for writing: transactions, trajectories, events, and the SQL for lists and metrics.

`writer.py` owns the thread and the queue. `sink.py` handles failures.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from ....envs.tools import ToolSpec
from .. import codec
from ..columns import COLUMNS, Kind, Listed, listed
from ..labels import Labels, clean
from ..learning import Use, data_of
from ..schema import AMONG, LAST_STEP, SEARCH_COLUMNS, SPANS, TIMELINE, connect_writer
from ..types import TrajectoryRecord

log = logging.getLogger(__name__)

ANSWER_LENGTH = 200
PROMPT_LENGTH = 400
_REMEMBERED = 4096
"""The number of group and prompt names cached in memory. Others are looked up."""
_NAMES = [column.name for column in COLUMNS]
_INTERNED = [column.name for column in COLUMNS if column.kind is Kind.NAME]
_ROW = f"INSERT INTO rows (n, {', '.join(_NAMES)}) VALUES ({', '.join('?' * (1 + len(_NAMES)))})"
_SEARCHED = ", ".join(SEARCH_COLUMNS)
_MARKS = ", ".join("?" * (1 + len(SEARCH_COLUMNS)))
_SEARCH = f"INSERT INTO search (rowid, {_SEARCHED}) VALUES ({_MARKS})"
_UNSEARCH = f"INSERT INTO search (search, rowid, {_SEARCHED}) VALUES ('delete', {_MARKS})"
_EXTRA = "INSERT OR REPLACE INTO extras VALUES (?, ?, ?, ?)"
_USE = "INSERT OR REPLACE INTO uses (n, step, mask, weight, advantage, data) VALUES (?, ?, ?, ?, ?, ?)"
_MARK = "UPDATE rows SET uses = coalesce(uses, 0) | ? WHERE n = ?"
_SPAN = """
INSERT INTO spans SELECT n, w, s, v IS NOT NULL, v, v, v, last
    FROM (SELECT ?1 AS n, ?2 AS w, ?3 AS s, ?4 AS last, ?5 AS v) WHERE true
ON CONFLICT (name, width, start) DO UPDATE SET
    count = count + excluded.count, total = coalesce(total + excluded.total, total, excluded.total),
    low = min(coalesce(low, excluded.low), coalesce(excluded.low, low)),
    high = max(coalesce(high, excluded.high), coalesce(excluded.high, high)), last = max(last, excluded.last)
"""
_SPANS_OF_VALUES = """
INSERT INTO spans SELECT name, ?1, step - step % ?1 AS s, count(value), sum(value), min(value), max(value), max(step)
    FROM metrics WHERE step >= ?2 AND step < ?3 AND (?4 IS NULL OR name = ?4) GROUP BY name, s
"""


class RowTables:
    """Writes rows and their shared names inside the transactions of `RecordStore`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.labels = Labels(db)
        self.named = lru_cache(_REMEMBERED)(self._named)
        self._toolsets: dict[int, tuple[tuple[ToolSpec, ...], int]] = {}

    def forget(self) -> None:
        """Drop the cached names after a rollback or the removal of rows."""
        self.labels.forget()
        self._toolsets.clear()
        self.named.cache_clear()

    def _named(self, table: str, name: str, **more: str) -> int:
        """Return the id of a name in `groups` or `prompts`. Add a new name with its other columns."""
        text = clean(name)
        found = self.db.execute(f"SELECT id FROM {table} WHERE name = ?", (text,)).fetchone()
        if found is not None:
            return int(found[0])
        values = (text, *map(clean, more.values()))
        sql = f"INSERT INTO {table} ({', '.join(('name', *more))}) VALUES ({', '.join('?' * len(values))})"
        return int(self.db.execute(sql, values).lastrowid or 0)

    def toolset(self, env: str, tools: tuple[ToolSpec, ...]) -> int | None:
        """Return the id of the tools that an environment declares; None without tools."""
        if not tools:
            return None
        known = self._toolsets.get(id(tools))
        if known is not None and known[0] is tools:
            return known[1]
        text = codec.encode_json([t.to_json() for t in tools]).decode()
        env = clean(env)
        digest = hashlib.sha256(f"{env}\n{text}".encode()).hexdigest()
        self.db.execute("INSERT OR IGNORE INTO toolsets (digest, env, tools) VALUES (?, ?, ?)", (digest, env, text))
        id_ = int(self.db.execute("SELECT id FROM toolsets WHERE digest = ?", (digest,)).fetchone()[0])
        if len(self._toolsets) > 256:
            self._toolsets.clear()
        self._toolsets[id(tools)] = (tools, id_)  # keeping the tuple prevents reuse of its id()
        return id_

    def add(self, trajectories: Sequence[Listed]) -> int:
        """Append rows without their text. Return the number of the first."""
        first = int(self.db.execute("SELECT coalesce(max(n), 0) FROM rows").fetchone()[0]) + 1
        self._put(first, trajectories)
        return first

    def replace(self, n: int, trajectory: Listed) -> None:
        """Replace the row of a trajectory, but not its text."""
        for table in ("rows", "cards", "overflow", "extras"):
            self.db.execute(f"DELETE FROM {table} WHERE n = ?", (n,))
        self._put(n, [trajectory])
        sql = "UPDATE prompts SET head = ?1 WHERE name = ?2 AND head <> ?1"
        self.db.execute(sql, (_head(trajectory), clean(trajectory.prompt_id)))

    def add_search(self, texts: Iterable[tuple[int, tuple[str, ...]]]) -> None:
        """Index the texts of trajectories (see `codec.search_text`) by number."""
        self.db.executemany(_SEARCH, ((n, *text) for n, text in texts))

    def remove_search(self, n: int, text: tuple[str, ...]) -> None:
        """Remove a trajectory from the full-text index, which needs exactly the text that was added."""
        self.db.execute(_UNSEARCH, (n, *text))

    def add_extras(self, n: int, extra: Mapping[str, object]) -> None:
        """Add the record's own columns to a row, replacing those of the same name."""
        self.db.executemany(_EXTRA, self._extras(n, extra))

    def add_uses(self, uses: Sequence[tuple[str, Use]]) -> None:
        """Add later uses of rollouts by id. Skip unknown ids."""
        for trajectory_id, use in uses:
            n = self.db.execute("SELECT max(n) FROM cards WHERE id = ?", (clean(trajectory_id),)).fetchone()[0]
            if n is not None:
                data = codec.encode_json(data_of(use), finite=False).decode()
                self.db.execute(_USE, (n, use.step, use.mask, use.weight, use.advantage, data))
                self.db.execute(_MARK, (use.mask, n))

    def _put(self, first: int, trajectories: Sequence[Listed]) -> None:
        rows: list[tuple[object, ...]] = []
        cards: list[tuple[object, ...]] = []
        overflow: list[tuple[int, int]] = []
        extras: list[tuple[object, ...]] = []
        intern = self.labels.intern
        for n, row in enumerate(trajectories, first):
            actions = [intern("action", label) for label in row.labels or ()]
            action_mask, rest = self.labels.mask(set(actions))
            rule_mask, more = self.labels.mask({intern("penalty", rule) for rule in row.rules})
            links = {
                "actions": action_mask,
                "rules": rule_mask,
                "penalties": len(row.rules),
                "grp": self.named("groups", row.group),
                "prompt": self.named("prompts", row.prompt_id, head=_head(row)),
                "toolset": self.toolset(str(row.values.get("env") or ""), row.tools),
            }
            values = {**row.values, **links}
            for name in _INTERNED:
                if (text := values.get(name)) is not None:
                    values[name] = intern(name, str(text))
            rows.append((n, *map(values.get, _NAMES)))
            answer = None if row.answer is None else clean(str(row.answer)[:ANSWER_LENGTH])
            cards.append((n, clean(row.id), ",".join(map(str, actions)), answer))
            overflow.extend((label, n) for label in rest + more)
            extras.extend(self._extras(n, row.extra))
        self.db.executemany(_ROW, rows)
        self.db.executemany("INSERT INTO cards VALUES (?, ?, ?, ?)", cards)
        self.db.executemany("INSERT OR IGNORE INTO overflow VALUES (?, ?)", overflow)
        self.db.executemany(_EXTRA, extras)

    def _extras(self, n: int, extra: Mapping[str, object]) -> Iterator[tuple[int, int, float | None, str | None]]:
        intern = self.labels.intern
        for name, value in extra.items():
            if isinstance(value, (bool, int, float)):
                yield intern("extra", name), n, float(value) if abs(value) < 1e300 else None, None
            elif value is not None:
                text = value if isinstance(value, str) else codec.encode_json(value).decode("utf-8", "replace")
                yield intern("extra", name), n, None, clean(text[:ANSWER_LENGTH])


def _head(row: Listed) -> str:
    return " ".join(row.head[: PROMPT_LENGTH * 2].split())[:PROMPT_LENGTH]


class MetricTables:
    """Writes metrics inside the transactions of `RecordStore`."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self._ids: dict[str, int] = {}

    def forget(self) -> None:
        self._ids.clear()

    def touch(self, step: int) -> None:
        """Store the time of a step when its first data is recorded."""
        self.db.execute("INSERT OR IGNORE INTO steps VALUES (?, ?)", (step, time.time()))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        self.touch(step)
        rows = [(self._id(name), step, value) for name, value in values.items()]
        self.db.executemany("INSERT INTO metrics (name, step, value) VALUES (?, ?, ?)", rows)
        for width in SPANS:
            start = step - step % width
            self.db.executemany(_SPAN, [(name, width, start, step, value) for name, _, value in rows])

    def replace(self, step: int, values: Mapping[str, float | None]) -> None:
        """Replace numbers of a step. The value None removes a number."""
        for name in map(self._id, values):
            replaced = self.db.execute("DELETE FROM metrics WHERE name = ? AND step = ?", (name, step)).rowcount
            for width in SPANS if replaced else ():
                start = step - step % width
                sql = "DELETE FROM spans WHERE name = ? AND width = ? AND start = ?"
                self.db.execute(sql, (name, width, start))
                self.db.execute(_SPANS_OF_VALUES, (width, start, start + width, name))
        self.add(step, {name: value for name, value in values.items() if value is not None})

    def values_of(self, names: Sequence[str]) -> Iterator[tuple[int, str, float]]:
        """Yield `(step, name, value)` of some metrics in step order, without missing values."""
        yield from self.db.execute(
            "SELECT step, metric_names.name, value FROM metrics JOIN metric_names ON metric_names.id = metrics.name "
            f"WHERE metric_names.name {AMONG} AND value IS NOT NULL ORDER BY step",
            (json.dumps(names),),
        )

    def remove_after(self, step: int) -> None:
        self.db.execute("DELETE FROM metrics WHERE step > ?", (step,))
        for width in SPANS:
            self.db.execute("DELETE FROM spans WHERE width = ? AND start + width > ?", (width, step + 1))
            self.db.execute(_SPANS_OF_VALUES, (width, (step + 1) - (step + 1) % width, LAST_STEP, None))

    def _id(self, name: str) -> int:
        known = self._ids.get(name)
        if known is None:
            text = clean(name)
            self.db.execute("INSERT OR IGNORE INTO metric_names (name) VALUES (?)", (text,))
            known = int(self.db.execute("SELECT id FROM metric_names WHERE name = ?", (text,)).fetchone()[0])
            self._ids[name] = known
        return known


class RecordStore:
    """A connection for writing. Two threads must not use it at once. Two processes may each have one.

    Raises RecordDamaged for a record of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.db = connect_writer(path)
        self.rows = RowTables(self.db)
        self.metrics = MetricTables(self.db)

    def fold(self, *, whole: bool = False) -> None:
        """Checkpoint the write-ahead log into the database. `whole`: move all of it and empty the log.

        Pages that other connections are reading stay in the log. Raises `sqlite3.Error`.
        """
        self.db.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if whole else 'PASSIVE'})").fetchone()

    def close(self) -> None:
        """Checkpoint the log, so that one file holds the whole record, and close."""
        try:
            if not self.db.in_transaction:
                # Do not wait long for a viewer that is running a query.
                self.db.execute("PRAGMA busy_timeout = 1000")
                self.fold(whole=True)
        except sqlite3.Error as error:
            log.debug("the write-ahead log of the record stays for the next process: %s", error)
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the changes of the block, or undo all of them."""
        self.db.execute("BEGIN IMMEDIATE")
        try:
            self.rows.labels.refresh()
            yield
            self.db.execute("COMMIT")
        except BaseException:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            self.forget()
            raise

    def forget(self) -> None:
        """Drop the cached names."""
        self.rows.forget()
        self.metrics.forget()

    def add_event(self, kind: str, message: str, step: int, when: float, data: bytes) -> None:
        """Add one event. `data` is JSON."""
        self.db.execute(
            "INSERT INTO events (kind, time, step, message, data) VALUES (?, ?, ?, ?, ?)",
            (clean(kind), when, step, clean(message), data.decode("utf-8", "replace")),
        )

    def add_timeline(self, step: int, data: bytes) -> None:
        """Add the time spans of a step's parts as JSON. Create the table if needed, also in an older record."""
        self.db.execute(TIMELINE)
        self.db.execute("INSERT OR REPLACE INTO timeline VALUES (?, ?)", (step, data.decode()))

    def add_vocabulary(self, texts: Iterable[str]) -> None:
        """Add the text of every token id, starting from 0. Only the first call has an effect."""
        if self.db.execute("SELECT 1 FROM vocabulary LIMIT 1").fetchone() is None:
            rows = ((i, clean(text)) for i, text in enumerate(texts))
            self.db.executemany("INSERT INTO vocabulary VALUES (?, ?)", rows)

    def set_meta(self, key: str, value: str) -> None:
        self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def last_n(self) -> int:
        return int(self.db.execute("SELECT coalesce(max(n), 0) FROM rows").fetchone()[0])

    def last_step(self) -> int:
        return int(self.db.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()[0])

    def add_trajectories(self, step: int, records: Sequence[TrajectoryRecord]) -> list[str]:
        """Append the records of one step. Return one sentence for each record that cannot be stored."""
        refused: list[str] = []
        encoded: list[tuple[TrajectoryRecord, bytes, tuple[str, ...]]] = []
        for record in records:
            try:
                encoded.append((record, codec.encode_body(record), codec.search_text(record)))
            except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
                name = str(getattr(getattr(record, "trajectory", None), "id", "?"))[:80]
                refused.append(f"trajectory {name} cannot be written as JSON: {error}")
        self.metrics.touch(step)
        first = self.rows.add([listed(step, record) for record, _, _ in encoded])
        self.rows.add_search((first + i, text) for i, (_, _, text) in enumerate(encoded))
        start = size = 0
        for i, (_, body, _) in enumerate(encoded):
            size += len(body)
            if i + 1 - start == codec.CHUNK or size >= codec.CHUNK_BYTES or i + 1 == len(encoded):
                part = encoded[start : i + 1]
                arrays = codec.encode_tokens([r.tokens for r, _, _ in part])
                self.put_chunk(first + start, [body for _, body, _ in part], arrays)
                start, size = i + 1, 0
        return refused

    def put_chunk(self, first: int, bodies: Sequence[bytes], arrays: bytes | None) -> None:
        body = codec.compress(b"\n".join(bodies))
        tokens = None if arrays is None else codec.compress(arrays)
        self.db.execute("INSERT INTO chunks VALUES (?, ?, ?, ?)", (first, len(bodies), body, tokens))
