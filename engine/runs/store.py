"""The rows of a record, written: what one open database takes in, inside the transactions of its caller.

`writer.py` owns the thread and the queue, and decides what a failure means; here is only SQL.
"""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...envs.tools import ToolSpec
from . import codec
from .labels import Labels
from .learning import LATER_BITS, OWN_BITS, USE_COLUMNS, Use, data_of, use_of
from .listed import Listed, listed
from .schema import SPANS, connect_writer
from .storable import clean
from .types import TrajectoryRecord

log = logging.getLogger(__name__)

ANSWER_LENGTH = 200
PROMPT_LENGTH = 400

_REMEMBERED = 4096  # names of groups and prompts kept in memory; others are looked up
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
_SPANS_AGAIN = """
INSERT INTO spans SELECT name, ?1, step - step % ?2 AS s, count(value), sum(value), min(value), max(value), max(step)
    FROM metrics WHERE step >= ?3 GROUP BY name, s
"""
_SEARCH = "INSERT INTO search (rowid, prompt, agent, observation, answer, penalty) VALUES (?, ?, ?, ?, ?, ?)"
_ROW = (
    "INSERT INTO rows (n, step, reward, correct, actions, rules, penalties, advantage, turns, tokens, flags, env, "
    "split, stop, rollout, version, grp, prompt, toolset, uses, gate, confidence) "
    f"VALUES ({', '.join('?' * 22)})"
)
_EXTRA = "INSERT OR REPLACE INTO extras VALUES (?, ?, ?, ?)"
_UNSEARCH = (
    "INSERT INTO search (search, rowid, prompt, agent, observation, answer, penalty) "
    "VALUES ('delete', ?, ?, ?, ?, ?, ?)"
)


class RecordStore:
    """One connection that writes. Not for use by two threads at once; two processes may each have one."""

    def __init__(self, path: Path) -> None:
        self.db = connect_writer(path)
        self.labels = Labels(self.db)
        self._metric_names: dict[str, int] = {}
        self._named: dict[str, OrderedDict[str, int]] = {"groups": OrderedDict(), "prompts": OrderedDict()}
        self._toolsets: dict[int, tuple[tuple[ToolSpec, ...], int]] = {}

    def fold(self, *, whole: bool = False) -> None:
        """Move what is in the write-ahead log into the database; `whole`: all of it, and empty the log.

        Only what other connections do not read at this moment can be moved. Raises `sqlite3.Error`.
        """
        self.db.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if whole else 'PASSIVE'})").fetchone()

    def close(self) -> None:
        """Fold the log in, so that the one file is the whole record also while viewers have it open, and close."""
        try:
            if not self.db.in_transaction:
                self.db.execute(
                    "PRAGMA busy_timeout = 1000"
                )  # a viewer in the middle of a query is not waited for long
                self.fold(whole=True)
        except sqlite3.Error as error:
            log.debug("the log of the record is left for the next who opens it: %s", error)
        self.db.close()

    def begin(self) -> None:
        """Start a transaction that sees what other processes have written."""
        self.db.execute("BEGIN IMMEDIATE")
        self.labels.refresh()

    def commit(self) -> None:
        """Make everything since `begin` last."""
        self.db.execute("COMMIT")

    def rollback(self) -> None:
        """Forget everything since `begin`, also the names that it brought."""
        if self.db.in_transaction:
            self.db.execute("ROLLBACK")
        self.labels.forget()
        self._metric_names.clear()
        self._toolsets.clear()
        for names in self._named.values():
            names.clear()

    def add_metrics(self, step: int, values: Mapping[str, float]) -> None:
        """One number per name at a step."""
        self._touch(step)
        rows = [(self._metric(name), step, value) for name, value in values.items()]
        self.db.executemany("INSERT INTO metrics (name, step, value) VALUES (?, ?, ?)", rows)
        for width in SPANS:
            start = step - step % width
            self.db.executemany(_SPAN, [(name, width, start, step, value) for name, _, value in rows])

    def replace_metrics(self, step: int, values: Mapping[str, float | None]) -> None:
        """One number per name at a step, in place of what was there; None only removes that."""
        names = [self._metric(name) for name in values]
        for name in names:
            had = self.db.execute("DELETE FROM metrics WHERE name = ? AND step = ?", (name, step)).rowcount
            for width in SPANS if had else ():
                start = step - step % width
                self.db.execute(
                    "DELETE FROM spans WHERE name = ? AND width = ? AND start = ?",
                    (name, width, start),
                )
                self.db.execute(
                    "INSERT INTO spans SELECT name, ?1, ?2, count(value), sum(value), min(value), max(value), "
                    "max(step) FROM metrics WHERE name = ?3 AND step >= ?2 AND step < ?2 + ?1 GROUP BY name",
                    (width, start, name),
                )
        self.add_metrics(step, {name: value for name, value in values.items() if value is not None})

    def add_event(self, kind: str, message: str, step: int, when: float, data: bytes) -> None:
        """One event; `data` is JSON."""
        self.db.execute(
            "INSERT INTO events (kind, time, step, message, data) VALUES (?, ?, ?, ?, ?)",
            (clean(kind), when, step, clean(message), data.decode("utf-8", "replace")),
        )

    def add_vocabulary(self, texts: Iterable[str]) -> None:
        """The text of every token id, from 0; once per run, a second time changes nothing."""
        if self.db.execute("SELECT 1 FROM vocabulary LIMIT 1").fetchone() is None:
            rows = ((i, clean(text)) for i, text in enumerate(texts))
            self.db.executemany("INSERT INTO vocabulary VALUES (?, ?)", rows)

    def set_meta(self, key: str, value: str) -> None:
        """A fact about the record itself."""
        self.db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def last_n(self) -> int:
        """Number of trajectories, which is the number of the last one."""
        return int(self.db.execute("SELECT coalesce(max(n), 0) FROM rows").fetchone()[0])

    def last_step(self) -> int:
        """The last step of which anything is recorded; 0 when nothing is."""
        return int(self.db.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()[0])

    def values_of(self, names: Sequence[str]) -> Iterator[tuple[int, str, float]]:
        """`(step, name, value)` of some metrics in order of steps, without missing values."""
        marks = ",".join("?" * len(names))
        yield from self.db.execute(
            "SELECT step, metric_names.name, value FROM metrics JOIN metric_names ON metric_names.id = metrics.name "
            f"WHERE metric_names.name IN ({marks}) AND value IS NOT NULL ORDER BY step",
            tuple(names),
        )

    def add_trajectories(self, step: int, records: Sequence[TrajectoryRecord]) -> list[str]:
        """Append the records of one step. Returns one sentence for each that cannot be recorded, and leaves it out."""
        refused: list[str] = []
        encoded: list[tuple[TrajectoryRecord, bytes, tuple[str, ...]]] = []
        for record in records:
            try:
                encoded.append((record, codec.encode_body(record), codec.search_text(record)))
            except (TypeError, ValueError, AttributeError, KeyError, RecursionError) as error:
                refused.append(f"trajectory {_name(record)} cannot be written as JSON: {error}")
        self._touch(step)
        first = self.add_rows([listed(step, record) for record, _, _ in encoded])
        self.add_search((first + i, text) for i, (_, _, text) in enumerate(encoded))
        self._chunks(first, encoded)
        return refused

    def add_rows(self, trajectories: Sequence[Listed]) -> int:
        """Append what lists and filters see of trajectories, without their text. Returns the number of the first."""
        first = self.last_n() + 1
        self._put_rows(first, trajectories)
        return first

    def replace_row(self, n: int, trajectory: Listed) -> None:
        """Put what is known now of a trajectory in place of its row. Its text is not touched."""
        for table in ("rows", "cards", "overflow", "extras"):
            self.db.execute(f"DELETE FROM {table} WHERE n = ?", (n,))
        self._put_rows(n, [trajectory])
        head = _head(trajectory)
        self.db.execute(
            "UPDATE prompts SET head = ?1 WHERE name = ?2 AND head <> ?1", (head, clean(trajectory.prompt_id))
        )

    def _put_rows(self, first: int, trajectories: Sequence[Listed]) -> None:
        rows, cards, overflow, extras = [], [], [], []
        for n, trajectory in enumerate(trajectories, first):
            row, card, rest = self._row(n, trajectory)
            rows.append(row)
            cards.append(card)
            overflow.extend((label, n) for label in rest)
            extras.extend(self._extras(n, trajectory.extra))
        for step in {t.step for t in trajectories if t.step is not None}:
            self._touch(step)
        self.db.executemany(_ROW, rows)
        self.db.executemany("INSERT INTO cards VALUES (?, ?, ?, ?)", cards)
        if overflow:
            self.db.executemany("INSERT OR IGNORE INTO overflow VALUES (?, ?)", overflow)
        if extras:
            self.db.executemany(_EXTRA, extras)

    def add_search(self, texts: Iterable[tuple[int, tuple[str, ...]]]) -> None:
        """Make trajectories findable by their text (see `codec.search_text`), by number."""
        self.db.executemany(_SEARCH, ((n, *text) for n, text in texts))

    def add_extras(self, n: int, extra: Mapping[str, Any]) -> None:
        """More columns of a trajectory that is recorded already; those of the same name are replaced."""
        self.db.executemany(_EXTRA, self._extras(n, extra))

    def _extras(self, n: int, extra: Mapping[str, Any]) -> Iterator[tuple[int, int, float | None, str | None]]:
        for name, value in extra.items():
            if isinstance(value, (bool, int, float)):
                number = _number(value) if abs(value) < 1e300 else None
                yield self.labels.intern("extra", name), n, number, None
            elif value is not None:
                text = value if isinstance(value, str) else codec.encode_json(value).decode("utf-8", "replace")
                yield self.labels.intern("extra", name), n, None, clean(text[:ANSWER_LENGTH])

    def add_uses(self, uses: Sequence[tuple[str, Use]]) -> None:
        """What later updates did with rollouts, by their ids; one that is not in the record is left out."""
        for trajectory_id, use in uses:
            n = self.db.execute("SELECT max(n) FROM cards WHERE id = ?", (clean(trajectory_id),)).fetchone()[0]
            if n is not None:
                data = codec.encode_json(data_of(use)).decode("utf-8", "replace")
                self.db.execute(_USE, (n, use.step, use.mask, use.weight, use.advantage, data))
                self.db.execute(_MARK, (use.mask, n))

    def truncate_after(self, step: int) -> int:
        """Remove everything that was recorded after a step, in one transaction. Returns how many trajectories went.

        Trajectories of an earlier step that were recorded later (an evaluation that came late) are kept: they are
        appended again, so that numbers stay dense.
        """
        self.begin()
        try:
            cut = self.db.execute("SELECT min(n) FROM rows WHERE step > ?", (step,)).fetchone()[0]
            removed = 0
            self._forget_uses_after(step)
            if cut is not None:
                late = self.db.execute("SELECT n, step FROM rows WHERE n >= ? AND step <= ?", (cut, step)).fetchall()
                kept = [(s, self._read(n), self._uses_of(n)) for n, s in late]
                removed = self.last_n() - cut + 1 - len(kept)
                self._remove_from(cut)
                for kept_step, record, uses in kept:
                    self.add_trajectories(kept_step, [record])
                    self.add_uses([(record.trajectory.id, use) for use in uses])
            self.db.execute("DELETE FROM metrics WHERE step > ?", (step,))
            for width in SPANS:
                self.db.execute("DELETE FROM spans WHERE width = ? AND start + width > ?", (width, step))
                self.db.execute(_SPANS_AGAIN, (width, width, (step + 1) - (step + 1) % width))
            self.db.execute("DELETE FROM events WHERE step > ? AND kind NOT IN ('record', 'error', 'control')", (step,))
            self.db.execute("DELETE FROM steps WHERE step > ?", (step,))
            # Readers that have seen the removed rows begin anew when this changes.
            self.set_meta("epoch", str(time.time_ns()))
            self.commit()
            return removed
        except BaseException:
            self.rollback()
            raise

    def _forget_uses_after(self, step: int) -> None:
        """Remove what updates after a step did, and their marks at rollouts of that step or before."""
        self.db.execute(
            "UPDATE rows SET uses = (coalesce(uses, 0) & ?) | coalesce((SELECT sum(DISTINCT bit.value) FROM uses "
            "JOIN json_each(?) AS bit ON uses.mask & bit.value WHERE uses.n = rows.n AND uses.step <= ?), 0) "
            "WHERE n IN (SELECT n FROM uses WHERE step > ?)",
            (OWN_BITS, json.dumps(LATER_BITS), step, step),
        )
        self.db.execute("DELETE FROM uses WHERE step > ?", (step,))

    def _uses_of(self, n: int) -> list[Use]:
        rows = self.db.execute(f"SELECT {USE_COLUMNS} FROM uses WHERE n = ? ORDER BY step", (n,)).fetchall()
        return [use for row in rows if (use := use_of(*row)) is not None]

    def _remove_from(self, cut: int) -> None:
        for (n,) in self.db.execute("SELECT n FROM rows WHERE n >= ?", (cut,)).fetchall():
            self.db.execute(_UNSEARCH, (n, *codec.search_text(self._read(n))))
        head = self.db.execute(
            "SELECT first_n, count, body, tokens FROM chunks WHERE first_n < ? AND first_n + count > ?", (cut, cut)
        ).fetchone()
        for table, key in (
            ("rows", "n"),
            ("cards", "n"),
            ("overflow", "n"),
            ("uses", "n"),
            ("extras", "n"),
            ("chunks", "first_n"),
        ):
            self.db.execute(f"DELETE FROM {table} WHERE {key} >= ?", (cut,))
        for table, column in (("groups", "grp"), ("prompts", "prompt")):  # pages of groups count on ids without holes
            self.db.execute(f"DELETE FROM {table} WHERE id > (SELECT coalesce(max({column}), 0) FROM rows)")
            self._named[table].clear()
        if head is not None:  # a blob that begins before the cut: keep its first lines
            first, _, body, tokens = head
            lines = codec.decompress(body).split(b"\n")[: cut - first]
            arrays = None
            if tokens is not None:
                raw = codec.decompress(tokens)
                arrays = codec.encode_tokens([codec.decode_tokens(raw, i) for i in range(len(lines))])
            self.db.execute("DELETE FROM chunks WHERE first_n = ?", (first,))
            self._put_chunk(first, lines, arrays)

    def _read(self, n: int) -> TrajectoryRecord:
        first, body, tokens = self.db.execute(
            "SELECT first_n, body, tokens FROM chunks WHERE first_n <= ? ORDER BY first_n DESC LIMIT 1", (n,)
        ).fetchone()
        record = codec.decode_body(codec.decompress(body).split(b"\n")[n - first])
        toolset = self.db.execute(
            "SELECT tools FROM toolsets JOIN rows ON rows.toolset = toolsets.id WHERE rows.n = ?", (n,)
        ).fetchone()
        tools = tuple(ToolSpec.from_json(t) for t in json.loads(toolset[0])) if toolset else ()
        arrays = codec.decode_tokens(codec.decompress(tokens), n - first) if tokens is not None else None
        return _with(record, tools, arrays)

    def _row(self, n: int, of: Listed) -> tuple[tuple[Any, ...], tuple[Any, ...], list[int]]:
        """The row in the order of `_ROW`, the card, and the labels that have no bit of their own."""
        intern = self.labels.intern
        actions = [intern("action", label) for label in of.labels or ()]
        action_mask, rest = self.labels.mask(set(actions))
        rule_mask, more = self.labels.mask({intern("penalty", rule) for rule in of.rules})
        row = (
            n,
            of.step,
            _number(of.reward),
            None if of.correct is None else int(bool(of.correct)),
            action_mask,
            rule_mask,
            len(of.rules),
            _number(of.advantage),
            None if of.labels is None else len(of.labels) if of.turns is None else of.turns,
            of.tokens,
            of.flags,
            intern("env", of.env),
            intern("split", of.split),
            intern("stop", of.stop),
            of.rollout,
            of.version,
            self._named_id("groups", of.group, "INSERT INTO groups (name) VALUES (?)"),
            self._named_id("prompts", of.prompt_id, "INSERT INTO prompts (name, head) VALUES (?, ?)", _head(of)),
            self._toolset(of.env, of.tools),
            of.uses,
            None if of.gate is None else intern("gate", of.gate),
            of.confidence,
        )
        answer = None if of.answer is None else clean(str(of.answer)[:ANSWER_LENGTH])
        return row, (n, clean(of.id), ",".join(map(str, actions)), answer), rest + more

    def _chunks(self, first: int, encoded: Sequence[tuple[TrajectoryRecord, bytes, tuple[str, ...]]]) -> None:
        start = size = 0
        for i, (_, body, _) in enumerate(encoded):
            size += len(body)
            if i + 1 - start == codec.CHUNK or size >= codec.CHUNK_BYTES or i + 1 == len(encoded):
                part = encoded[start : i + 1]
                self._put_chunk(
                    first + start, [b for _, b, _ in part], codec.encode_tokens([r.tokens for r, _, _ in part])
                )
                start, size = i + 1, 0

    def _put_chunk(self, first: int, bodies: Sequence[bytes], arrays: bytes | None) -> None:
        body = codec.compress(b"\n".join(bodies))
        tokens = None if arrays is None else codec.compress(arrays)
        self.db.execute("INSERT INTO chunks VALUES (?, ?, ?, ?)", (first, len(bodies), body, tokens))

    def _touch(self, step: int) -> None:
        self.db.execute("INSERT OR IGNORE INTO steps VALUES (?, ?)", (step, time.time()))

    def _metric(self, name: str) -> int:
        known = self._metric_names.get(name)
        if known is None:
            text = clean(name)
            self.db.execute("INSERT OR IGNORE INTO metric_names (name) VALUES (?)", (text,))
            known = int(self.db.execute("SELECT id FROM metric_names WHERE name = ?", (text,)).fetchone()[0])
            self._metric_names[name] = known
        return known

    def _named_id(self, table: str, name: str, insert: str, *more: str) -> int:
        names = self._named[table]
        known = names.get(name)
        if known is not None:
            names.move_to_end(name)
            return known
        text = clean(name)
        found = self.db.execute(f"SELECT id FROM {table} WHERE name = ?", (text,)).fetchone()
        if found is not None:
            known = int(found[0])
        else:
            known = int(self.db.execute(insert, (text, *[clean(m) for m in more])).lastrowid or 0)
        names[name] = known
        if len(names) > _REMEMBERED:
            names.popitem(last=False)
        return known

    def _toolset(self, env: str, tools: tuple[ToolSpec, ...]) -> int | None:
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
        self._toolsets[id(tools)] = (tools, id_)  # holding the tuple keeps its id() from being reused
        return id_


def _with(record: TrajectoryRecord, tools: tuple[ToolSpec, ...], tokens: Any) -> TrajectoryRecord:
    return replace(record, trajectory=replace(record.trajectory, tools=tools), tokens=tokens)


def _head(of: Listed) -> str:
    """The beginning of a prompt, as lists show it."""
    return " ".join(of.head[: PROMPT_LENGTH * 2].split())[:PROMPT_LENGTH]


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _name(record: object) -> str:
    return str(getattr(getattr(record, "trajectory", None), "id", "?"))[:80]
