"""The update queue in one SQLite file: for the processes of one run, on one machine.

Every task carries the checksum of its bytes. What a damaged file still holds goes into a new one, also while it is in
use, and the damaged file stays beside it (`queue_file.py`). The one worker is the one that holds the lock of the
snapshot folder, so `lead` has nobody to refuse.
"""

from __future__ import annotations

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
from .queue_file import DAMAGE, hold, identity, mend, one_at_a_time
from .update_queue import REFUSED_KEPT, JournalRow, QueueDamaged, QueuedTask, QueueError, Settled, full, was_settled

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
    checksum TEXT NOT NULL DEFAULT ''
);
CREATE INDEX IF NOT EXISTS tasks_waiting ON tasks (seq) WHERE state = 'queued';
CREATE TABLE IF NOT EXISTS journal (n INTEGER PRIMARY KEY AUTOINCREMENT, row TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
"""


class SqliteQueue:
    """One process's connection to the queue. Methods may be called from any thread of it.

    `mended`: one sentence when opening it found it damaged, with what was saved. `check`: look for damage although
    others have it open. Raises QueueError when the file cannot be opened or, later, read or written; QueueDamaged when
    it is damaged, or no longer the file that was opened. With `on_mended` it then opens what is there now, mended,
    tells that sentence, and raises a QueueError after which the call can be made again.
    """

    def __init__(
        self,
        path: Path,
        *,
        limit: int = 512,
        check: bool = False,
        on_mended: Callable[[str], None] | None = None,
    ) -> None:
        self.path = path
        self.limit = limit
        self._on_mended = on_mended
        self._thread_lock = threading.RLock()
        self._open(check)

    def _open(self, check: bool) -> None:
        self._identity: tuple[Any, ...] | None = None
        path = self.path
        try:
            make_folder(path.parent)
            with one_at_a_time(path):
                self._hold, alone = hold(path)
                try:
                    self.mended = mend(path, _SCHEMA) if alone or check else None
                    self._db = sqlite3.connect(path, timeout=30.0, isolation_level=None, check_same_thread=False)
                    with self._in_words():
                        self._set_up()
                    self._hold.share()
                    self._identity = identity(path)
                except BaseException:
                    self._hold.close()
                    raise
        except (OSError, sqlite3.Error) as error:
            raise QueueError(f"The update queue {path} cannot be opened: {error}.") from error

    def _set_up(self) -> None:
        self._db.text_factory = lambda data: data.decode("utf-8", "replace")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # a settled update must survive a power cut
        self._db.executescript(_SCHEMA)
        if not any(row[1] == "checksum" for row in self._db.execute("PRAGMA table_info(tasks)")):
            self._db.execute("ALTER TABLE tasks ADD COLUMN checksum TEXT NOT NULL DEFAULT ''")

    # ------------------------------------------------------------------------------------------- the engine's side

    def put(self, task_id: str, payload: bytes, policy_version: int) -> list[str] | None:
        """Add a task. Returns the ids of older tasks that had to make room; None if this id was queued before."""
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
            self._settle(db, [Settled(i, "dropped", full(self.limit)) for i in dropped])
            return dropped

    # ------------------------------------------------------------------------------------------- the worker's side

    def lead(self) -> int:
        """Queue again what a worker that died had taken; returns how many. Only the one live worker may call this."""
        with self._transaction() as db:
            return db.execute("UPDATE tasks SET state = 'queued' WHERE state = 'taken'").rowcount

    def take(self) -> QueuedTask | None:
        """The oldest waiting task, now taken; None when there is none."""
        with self._transaction() as db:
            row = db.execute(
                "SELECT id, policy_version, attempts + 1, payload, checksum, seq FROM tasks WHERE state = 'queued' "
                "ORDER BY seq LIMIT 1"
            ).fetchone()
            if row is None:
                return None
            id_, version, attempts, payload, checksum, seq = row
            db.execute("UPDATE tasks SET state = 'taken', attempts = attempts + 1 WHERE seq = ?", (seq,))
            whole = not checksum or xxhash.xxh3_128_hexdigest(payload) == checksum
            return QueuedTask(id_, version, attempts, payload, whole)

    def settle(
        self,
        settled: Sequence[Settled],
        journal: Iterable[Mapping[str, Any]] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> list[JournalRow]:
        """Commit what was done, all or nothing: outcomes, journal rows and facts. Returns the rows, numbered.

        A task that is settled already is left as it is; QueueError then, and nothing is committed.
        """
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
        """Number further journal rows above `n`: the logs and the record may know of rows that a lost queue held."""
        with self._transaction() as db:
            last = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'journal'").fetchone()
            if last is None:
                db.execute("INSERT INTO sqlite_sequence VALUES ('journal', ?)", (n,))
            elif last[0] < n:
                db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'journal'", (n,))

    def prune_journal(self, through: int) -> None:
        """Forget journal rows up to and including number `through`: they are in the logs and in the record."""
        with self._transaction() as db:
            db.execute("DELETE FROM journal WHERE n <= ?", (through,))

    # ----------------------------------------------------------------------------------------------- for everybody

    def journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        """Rows above number `after`, oldest first."""
        with self._speaking_plainly():
            rows = self._db.execute("SELECT n, row FROM journal WHERE n > ? ORDER BY n LIMIT ?", (after, limit))
            return [JournalRow(n, _json(row, {"kind": "unreadable"})) for n, row in rows.fetchall()]

    def depth(self) -> int:
        """Tasks that wait or are being worked on."""
        with self._speaking_plainly():
            return self._count(self._db, "queued") + self._count(self._db, "taken")

    def counts(self) -> dict[str, int]:
        """How many tasks are in each state."""
        with self._speaking_plainly():
            return dict(self._db.execute("SELECT state, count(*) FROM tasks GROUP BY state").fetchall())

    def tasks(self, state: str) -> list[tuple[str, str]]:
        """Ids and reasons of the tasks in a state, in the order of arrival."""
        with self._speaking_plainly():
            return self._db.execute("SELECT id, reason FROM tasks WHERE state = ? ORDER BY seq", (state,)).fetchall()

    def payload(self, task_id: str) -> bytes | None:
        """A task's bytes, while they are kept."""
        with self._speaking_plainly():
            row = self._db.execute("SELECT payload FROM tasks WHERE id = ?", (task_id,)).fetchone()
            return row[0] if row else None

    def get(self, key: str, default: Any = None) -> Any:
        """A fact stored by `set` or `settle`."""
        with self._speaking_plainly():
            row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
            return default if row is None else _json(row[0], default)

    def set(self, **meta: Any) -> None:
        """Store facts (JSON values), durably."""
        with self._transaction() as db:
            self._set(db, meta)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()
        self._hold.close()

    # ------------------------------------------------------------------------------------------------------ inside

    @staticmethod
    def _count(db: sqlite3.Connection, state: str) -> int:
        return db.execute("SELECT count(*) FROM tasks WHERE state = ?", (state,)).fetchone()[0]

    @staticmethod
    def _set(db: sqlite3.Connection, meta: Mapping[str, Any]) -> None:
        db.executemany(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [(key, json.dumps(value)) for key, value in meta.items()],
        )

    @staticmethod
    def _settle(db: sqlite3.Connection, settled: Sequence[Settled]) -> int:
        changed = 0
        for s in settled:
            changed += db.execute(
                "UPDATE tasks SET state = ?1, reason = ?2, payload = CASE ?1 WHEN 'refused' THEN payload END "
                "WHERE id = ?3 AND state IN ('queued', 'taken')",
                (s.outcome, s.reason, s.id),
            ).rowcount
        return changed

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._speaking_plainly():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _speaking_plainly(self) -> Iterator[None]:
        with self._thread_lock:
            try:
                with self._in_words():
                    yield
            except QueueDamaged as error:
                if self._on_mended is None:
                    raise
                self.close()
                self._open(check=True)
                told = self.mended or f"{error} What is there now is used."
                self._on_mended(told)
                raise QueueError(told) from error

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
        """Whether the path no longer leads to the file that is open."""
        return self._identity is not None and identity(self.path) != self._identity


def _json(text: Any, otherwise: Any) -> Any:
    """A stored value; `otherwise` for one whose bytes were damaged, which SQLite does not see inside a row."""
    try:
        return json.loads(text)
    except (ValueError, TypeError):
        return otherwise
