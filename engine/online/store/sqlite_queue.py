"""The update queue in one SQLite file, for the processes of one run on one machine.

Every task has a checksum. The readable rows of a damaged file are copied to a new one, even while it is in use
(`queue_file.py`). The holder of the snapshot folder's lock is the only worker, so `lead` never refuses.
"""

from __future__ import annotations

import fcntl
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from ...runs.durable import make_folder
from .queue_file import DAMAGE, identity, is_alone, one_at_a_time, repair
from .update_queue import (
    QUEUE_LIMIT,
    REFUSED_KEPT,
    JournalRow,
    QueueDamaged,
    QueuedTask,
    QueueError,
    Settled,
    was_settled,
)

LOST = "the update queue has lost it: give the feedback again"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS tasks (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    policy_version INTEGER NOT NULL,
    created REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    state TEXT NOT NULL DEFAULT 'queued',
    reason TEXT NOT NULL DEFAULT '',
    payload BLOB,
    checksum TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS tasks_waiting ON tasks (seq) WHERE state = 'queued';
CREATE TABLE IF NOT EXISTS journal (n INTEGER PRIMARY KEY AUTOINCREMENT, row TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class SqliteQueue:
    """One process's connection to the queue, usable from any thread.

    repaired: a sentence with the number of saved rows if opening found damage. check: check for damage even if other
    processes have the file open. on_repaired: called after damage found in use was repaired; the failed call then
    raises QueueError and can be repeated. Raises QueueError if the file cannot be used, and QueueDamaged if it is
    damaged or was replaced.
    """

    def __init__(
        self,
        path: Path,
        *,
        limit: int = QUEUE_LIMIT,
        check: bool = False,
        on_repaired: Callable[[str], None] | None = None,
    ) -> None:
        self.path = path
        self.limit = limit
        self._on_repaired = on_repaired
        self._thread_lock = threading.RLock()
        self._open(check)

    def _open(self, check: bool) -> None:
        self._identity: tuple[object, ...] | None = None
        path = self.path
        try:
            make_folder(path.parent)
            with one_at_a_time(path):
                self._lock = open(path.with_name(f".{path.name}.lock"), "a")  # noqa: SIM115 - held until `close`
                try:
                    self.repaired = repair(path, _SCHEMA) if is_alone(self._lock) or check else None
                    self._db = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
                    with self._in_words():
                        self._db.text_factory = lambda data: data.decode("utf-8", "replace")
                        self._db.execute("PRAGMA journal_mode = WAL")
                        self._db.execute("PRAGMA synchronous = FULL")  # a settled update must survive a power cut
                        self._db.executescript(_SCHEMA)
                    fcntl.flock(self._lock, fcntl.LOCK_SH)
                    self._identity = identity(path)
                except BaseException:
                    self._lock.close()
                    raise
        except (OSError, sqlite3.Error) as error:
            raise QueueError(f"The update queue {path} cannot be opened: {error}.") from error

    # ------------------------------------------------------------------------------------------- the engine's side

    def put(self, task_id: str, payload: bytes, policy_version: int) -> list[str] | None:
        with self._transaction() as db:
            cursor = db.execute(
                "INSERT OR IGNORE INTO tasks (id, policy_version, created, payload, checksum) VALUES (?, ?, ?, ?, ?)",
                (task_id, policy_version, time.time(), payload, xxhash.xxh3_128_hexdigest(payload)),
            )
            if cursor.rowcount == 0:
                return None
            excess = self._count(db, "queued") - self.limit
            if excess <= 0:
                return []
            rows = db.execute("SELECT id FROM tasks WHERE state = 'queued' ORDER BY seq LIMIT ?", (excess,)).fetchall()
            dropped = [row[0] for row in rows]
            self._settle(db, [Settled(i, "dropped", f"the queue was full ({self.limit} tasks)") for i in dropped])
            return dropped

    # ------------------------------------------------------------------------------------------- the worker's side

    def lead(self) -> int:
        with self._transaction() as db:
            return db.execute("UPDATE tasks SET state = 'queued' WHERE state = 'taken'").rowcount

    def take(self) -> QueuedTask | None:
        with self._transaction() as db:
            row = db.execute(
                "SELECT id, policy_version, attempts + 1, payload, checksum, seq FROM tasks WHERE state = 'queued' "
                "ORDER BY seq LIMIT 1"
            ).fetchone()
            if row is None:
                return None
            id_, version, attempts, payload, checksum, seq = row
            db.execute("UPDATE tasks SET state = 'taken', attempts = attempts + 1 WHERE seq = ?", (seq,))
            intact = xxhash.xxh3_128_hexdigest(payload) == checksum
            return QueuedTask(id_, version, attempts, payload, intact)

    def settle(
        self,
        settled: Sequence[Settled],
        journal: Iterable[Mapping[str, object]] = (),
        meta: Mapping[str, object] | None = None,
    ) -> list[JournalRow]:
        with self._transaction() as db:
            if self._settle(db, settled) != len(settled):
                raise was_settled(settled)
            rows = []
            for row in journal:
                cursor = db.execute("INSERT INTO journal (row) VALUES (?)", (json.dumps(row),))
                rows.append(JournalRow(int(cursor.lastrowid or 0), row))
            self._set(db, meta or {})
            db.execute(
                "UPDATE tasks SET payload = NULL WHERE state = 'refused' AND payload IS NOT NULL AND seq NOT IN "
                "(SELECT seq FROM tasks WHERE state = 'refused' ORDER BY seq DESC LIMIT ?)",
                (REFUSED_KEPT,),
            )
            return rows

    def continue_after(self, n: int) -> None:
        with self._transaction() as db:
            changed = db.execute("UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'journal'", (n,))
            if not changed.rowcount:
                db.execute("INSERT INTO sqlite_sequence VALUES ('journal', ?)", (n,))

    def prune_journal(self, through: int) -> None:
        with self._transaction() as db:
            db.execute("DELETE FROM journal WHERE n <= ?", (through,))

    # ------------------------------------------------------------------------------------------------- any process

    def journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        with self._readable_errors():
            rows = self._db.execute("SELECT n, row FROM journal WHERE n > ? ORDER BY n LIMIT ?", (after, limit))
            return [JournalRow(n, _json(row, {"kind": "unreadable"})) for n, row in rows.fetchall()]

    def depth(self) -> int:
        with self._readable_errors():
            return self._count(self._db, "queued") + self._count(self._db, "taken")

    def tasks(self, state: str) -> list[tuple[str, str]]:
        with self._readable_errors():
            return self._db.execute("SELECT id, reason FROM tasks WHERE state = ? ORDER BY seq", (state,)).fetchall()

    def gone(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the reason for each of these tasks that was dropped or lost, for example with the file."""
        sql = (
            f"SELECT id, CASE state WHEN 'dropped' THEN reason END FROM tasks WHERE id IN ({', '.join('?' * len(ids))})"
        )
        with self._readable_errors():
            kept = dict(self._db.execute(sql, ids).fetchall())
        return {i: reason for i in ids if (reason := kept.get(i, LOST)) is not None}

    def payload(self, task_id: str) -> bytes | None:
        with self._readable_errors():
            row = self._db.execute("SELECT payload FROM tasks WHERE id = ?", (task_id,)).fetchone()
            return row[0] if row else None

    def get(self, key: str, default: object = None) -> Any:
        with self._readable_errors():
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            return default if row is None else _json(row[0], default)

    def set(self, **meta: object) -> None:
        with self._transaction() as db:
            self._set(db, meta)

    def close(self) -> None:
        self._db.close()
        self._lock.close()

    # ------------------------------------------------------------------------------------------------------ inside

    @staticmethod
    def _count(db: sqlite3.Connection, state: str) -> int:
        return db.execute("SELECT count(*) FROM tasks WHERE state = ?", (state,)).fetchone()[0]

    @staticmethod
    def _set(db: sqlite3.Connection, meta: Mapping[str, object]) -> None:
        db.executemany(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [(key, json.dumps(value)) for key, value in meta.items()],
        )

    @staticmethod
    def _settle(db: sqlite3.Connection, settled: Sequence[Settled]) -> int:
        return db.executemany(
            "UPDATE tasks SET state = ?1, reason = ?2, payload = CASE ?1 WHEN 'refused' THEN payload END "
            "WHERE id = ?3 AND state IN ('queued', 'taken')",
            [(s.outcome, s.reason, s.id) for s in settled],
        ).rowcount

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._readable_errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        with self._thread_lock:
            try:
                with self._in_words():
                    yield
            except QueueDamaged as error:
                if self._on_repaired is None:
                    raise
                self.close()
                self._open(check=True)
                message = self.repaired or f"{error} The current file is used."
                self._on_repaired(message)
                raise QueueError(message) from error

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if DAMAGE.search(str(error)) or self._replaced():
                raise QueueDamaged(
                    f"The update queue {self.path} was damaged while it was in use ({error})."
                ) from error
            raise QueueError(f"The update queue {self.path} cannot be used: {error}.") from error
        if self._replaced():
            raise QueueDamaged(f"The update queue {self.path} was removed or replaced while it was in use.")

    def _replaced(self) -> bool:
        """Return whether the path leads to a different file than the open one."""
        return self._identity is not None and identity(self.path) != self._identity


def _json(text: str | bytes, otherwise: object) -> Any:
    """Parse a stored value. Returns `otherwise` for damaged bytes, which SQLite does not detect."""
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return otherwise
