"""The update queue on a Redis server, for engines and workers on several machines that share one policy.

One worker is active. It renews a lease, and a standby takes over once the lease expires or is returned. A replaced
worker can do nothing, because every call checks its token. Calls under a token are numbered, which reveals calls that
were interrupted or that the server has lost. The worker then loses the queue (`LeaseLost`) and restarts from the last
commit.

Each method is one optimistic transaction (WATCH, MULTI, EXEC). Keys below the queue's prefix: `waiting` and `taken`,
sorted sets of task ids by number. `task:<id>`, a hash with state, reason and payload. `settled:<outcome>`, sorted sets.
`journal`, a stream with the row numbers as ids. `facts` and `recorded`, hashes. `holder`, a hash about the active
worker. `lease`, a key that expires.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import xxhash

from ...launch.redis_server import TIMEOUT_S, RedisMissing, address, connect, in_words, server_facts
from ..store.update_queue import (
    QUEUE_LIMIT,
    REFUSED_KEPT,
    JournalRow,
    LeaseHeld,
    LeaseLost,
    QueuedTask,
    QueueError,
    Settled,
    was_settled,
)

T = TypeVar("T")
SETTLED_S = 30 * 24 * 3600
"""The id of a settled task is kept this long, so that the task is not queued again."""
SETTLED_KEPT = 100_000
JOURNAL_KEPT = 50_000
"""Journal rows kept for engines that have not read them."""
_START = uuid.uuid4().hex
"""Identifies this process together with its pid, so that it can take back its own lease."""
_reported_notes: set[str] = set()
"""Messages about servers that this process has already reported."""


class RedisQueue:
    """One process's connection to the queue `name` on the server `url`, usable from any thread.

    Nothing is sent before the first call. Calls raise QueueError while the server is unavailable. lease_s: seconds
    after which a silent worker is replaced. timeout_s: time limit of a call. tell: receives a message if the server may
    lose data.
    """

    repaired: str | None = None

    def __init__(
        self,
        url: str,
        name: str,
        *,
        limit: int = QUEUE_LIMIT,
        lease_s: float = 15.0,
        tell: Callable[[str], None] | None = None,
        process: str | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.limit = limit
        self._url = url
        self._prefix = f"{{grpo-tui:{name}}}:"
        self._lease_ms = max(1, int(lease_s * 1000))
        self._tell = tell
        self._process = process or f"{_START}:{os.getpid()}"
        self._owner = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            self._redis: Any = connect(url, timeout_s)
        except (RedisMissing, ValueError) as error:
            raise QueueError(f"{str(error)[0].upper()}{str(error)[1:]}.") from error
        self._checked = False
        self._token: str | None = None
        self._call = 0
        self._lost: str | None = None
        self._lock = threading.RLock()
        """Keeps the worker's calls in numerical order."""
        self._ended = threading.Event()

    # ------------------------------------------------------------------------------------------- the engine's side

    def put(self, task_id: str, payload: bytes, policy_version: int) -> list[str] | None:
        values = {"state": "queued", "reason": "", "version": policy_version, "attempts": 0, "created": time.time()}
        values |= {"checksum": xxhash.xxh3_128_hexdigest(payload), "payload": payload}
        task, waiting = self._key(f"task:{task_id}"), self._key("waiting")

        def change(pipe: Any) -> list[str] | None:
            if pipe.exists(task):
                return None
            excess = pipe.zcard(waiting) + 1 - self.limit
            dropped = pipe.zrange(waiting, 0, excess - 1, withscores=True) if excess > 0 else []
            number = pipe.incr(self._key("seq"))
            pipe.multi()
            pipe.hset(task, mapping=values)
            pipe.zadd(waiting, {task_id: number})
            for old, seq in dropped:
                reason = f"the queue was full ({self.limit} tasks)"
                self._settle(pipe, Settled(old.decode(), "dropped", reason), seq)
            return [old.decode() for old, _ in dropped]

        return self._transaction(change, "waiting", f"task:{task_id}")

    def record(self, engine: str, n: int) -> None:
        """Store that this engine has recorded the journal up to row `n`."""
        with self._readable_errors():
            self._redis.hset(self._key("recorded"), engine, n)

    # ------------------------------------------------------------------------------------------- the worker's side

    def lead(self) -> int:
        token = uuid.uuid4().hex

        def change(pipe: Any) -> int:
            lease, same = pipe.get(self._key("lease")), self._holds(pipe, "process", self._process)
            if lease and not same:
                raise LeaseHeld(f"Another worker is learning ({lease.decode()}).")
            taken = pipe.zrange(self._key("taken"), 0, -1, withscores=True)
            pipe.multi()
            pipe.hset(self._key("holder"), mapping={"token": token, "process": self._process, "call": 0})
            pipe.set(self._key("lease"), self._owner, px=self._lease_ms)
            for task, seq in taken:
                pipe.zadd(self._key("waiting"), {task: seq})
                pipe.hset(self._key(f"task:{task.decode()}"), "state", "queued")
                if same:  # the worker only lost its connection: the task did not kill it
                    pipe.hincrby(self._key(f"task:{task.decode()}"), "attempts", -1)
            pipe.delete(self._key("taken"))
            return len(taken)

        with self._lock:
            count = self._transaction(change, "holder", "lease", "taken")
            self._token, self._call, self._lost = token, 0, None
            threading.Thread(target=self._keep_lease, args=(token,), name="lease", daemon=True).start()
            return count

    def take(self) -> QueuedTask | None:
        def change(pipe: Any) -> QueuedTask | None:
            first = pipe.zrange(self._key("waiting"), 0, 0, withscores=True)
            if not first:
                pipe.multi()
                return None
            (name, seq), task = first[0], self._key(f"task:{first[0][0].decode()}")
            version, attempts, payload, checksum = pipe.hmget(task, "version", "attempts", "payload", "checksum")
            pipe.multi()
            pipe.zrem(self._key("waiting"), name)
            pipe.zadd(self._key("taken"), {name: seq})
            pipe.hset(task, "state", "taken")
            pipe.hincrby(task, "attempts", 1)
            intact = xxhash.xxh3_128_hexdigest(payload or b"") == (checksum or b"").decode()
            return QueuedTask(name.decode(), int(version), int(attempts) + 1, payload or b"", intact)

        return self._as_worker(change)

    def settle(
        self,
        settled: Sequence[Settled],
        journal: Iterable[Mapping[str, object]] = (),
        meta: Mapping[str, object] | None = None,
    ) -> list[JournalRow]:
        rows = list(journal)

        def change(pipe: Any) -> list[JournalRow]:
            numbers: dict[str, float] = {}
            for task in settled:
                seq = [pipe.zscore(self._key(name), task.id) for name in ("waiting", "taken")]
                if seq == [None, None] or task.id in numbers:
                    raise _AlreadySettled(str(was_settled(settled)))
                numbers[task.id] = next(n for n in seq if n is not None)
            last = int(pipe.get(self._key("journal_n")) or 0)
            journal_rows = [JournalRow(n, row) for n, row in enumerate(rows, last + 1)]
            pipe.multi()
            for task in settled:
                self._settle(pipe, task, numbers[task.id])
            for row in journal_rows:
                pipe.xadd(self._key("journal"), {"row": json.dumps(row.row)}, id=f"{row.n}-0", maxlen=JOURNAL_KEPT)
            pipe.incrby(self._key("journal_n"), len(rows))
            if meta:
                pipe.hset(self._key("facts"), mapping={k: json.dumps(v) for k, v in meta.items()})
            return journal_rows

        journal_rows = self._as_worker(change, "taken", "journal_n")
        if any(task.outcome == "refused" for task in settled):
            with self._readable_errors():
                end = REFUSED_KEPT + len(settled)
                for old in self._redis.zrevrange(self._key("settled:refused"), REFUSED_KEPT, end):
                    self._redis.hdel(self._key(f"task:{old.decode()}"), "payload")
        return journal_rows

    def _settle(self, pipe: Any, task: Settled, seq: float) -> None:
        """Add the commands that settle a task to a transaction."""
        key, settled = self._key(f"task:{task.id}"), self._key(f"settled:{task.outcome}")
        pipe.zrem(self._key("waiting"), task.id)
        pipe.zrem(self._key("taken"), task.id)
        pipe.hset(key, mapping={"state": task.outcome, "reason": task.reason})
        pipe.expire(key, SETTLED_S)
        if task.outcome != "refused":
            pipe.hdel(key, "payload")
        pipe.zadd(settled, {task.id: seq})
        pipe.zremrangebyrank(settled, 0, -1 - SETTLED_KEPT)

    def continue_after(self, n: int) -> None:
        def change(pipe: Any) -> None:
            last = int(pipe.get(self._key("journal_n")) or 0)
            pipe.multi()
            pipe.set(self._key("journal_n"), max(last, n))

        self._transaction(change, "journal_n")

    def prune_journal(self, through: int) -> None:
        with self._readable_errors():
            self._redis.xtrim(self._key("journal"), minid=f"{max(through, 0) + 1}-0", approximate=False)

    # ------------------------------------------------------------------------------------------------- any process

    def journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        with self._readable_errors():
            found = self._redis.xrange(self._key("journal"), min=f"({after}-0", count=limit)
        return [JournalRow(int(n.split(b"-")[0]), json.loads(fields[b"row"])) for n, fields in found]

    def journal_end(self) -> int:
        with self._readable_errors():
            return int(self._redis.get(self._key("journal_n")) or 0)

    def depth(self) -> int:
        with self._readable_errors():
            return self._redis.zcard(self._key("waiting")) + self._redis.zcard(self._key("taken"))

    def tasks(self, state: str) -> list[tuple[str, str]]:
        name = {"queued": "waiting", "taken": "taken"}.get(state, f"settled:{state}")
        with self._readable_errors():
            ids = [i.decode() for i in self._redis.zrange(self._key(name), 0, -1)]
            with self._redis.pipeline(transaction=False) as pipe:
                for i in ids:
                    pipe.hget(self._key(f"task:{i}"), "reason")
                reasons = pipe.execute()
        return [(i, (reason or b"").decode()) for i, reason in zip(ids, reasons, strict=True)]

    def payload(self, task_id: str) -> bytes | None:
        with self._readable_errors():
            return self._redis.hget(self._key(f"task:{task_id}"), "payload")

    def get(self, key: str, default: object = None) -> Any:
        """Return a fact. `recorded` is the last journal row that every engine has recorded."""
        with self._readable_errors():
            if key == "recorded":
                return min(map(int, self._redis.hvals(self._key("recorded"))), default=default)
            found = self._redis.hget(self._key("facts"), key)
        return default if found is None else json.loads(found)

    def set(self, **meta: object) -> None:
        """Store facts. Raises LeaseLost for a replaced worker."""
        if self._token is not None:
            self.settle([], (), meta)
            return
        with self._readable_errors():
            self._redis.hset(self._key("facts"), mapping={k: json.dumps(v) for k, v in meta.items()})

    def close(self) -> None:
        """Return the lease and close the connection."""
        self._ended.set()
        with self._lock:
            token, self._token = self._token, None
            self._lost = self._lost or "it was closed"
            if token is not None:
                with suppress(QueueError):  # otherwise it expires
                    self._change_lease(token, None)
        self._redis.close()

    # ------------------------------------------------------------------------------------------------------ inside

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _transaction(self, change: Callable[[Any], T], *watched: str) -> T:
        """Run one transaction and return the value of `change`, which reads, calls `multi` and adds commands. It is
        repeated as long as others change the watched keys.
        """
        with self._readable_errors():
            return self._redis.transaction(change, *map(self._key, watched), value_from_callable=True)

    def _holds(self, pipe: Any, field: str, value: str) -> bool:
        return pipe.hget(self._key("holder"), field) == value.encode()

    def _as_worker(self, change: Callable[[Any], T], *watched: str) -> T:
        """Run a numbered transaction as the active worker. After any error, this worker has lost the queue."""

        def numbered(pipe: Any) -> T:
            if not self._holds(pipe, "token", self._token or ""):
                raise self._lease_lost("another worker has taken over")
            if not self._holds(pipe, "call", str(self._call - 1)):
                raise self._lease_lost("it has lost its last commits")
            value = change(pipe)
            pipe.hset(self._key("holder"), "call", self._call)
            return value

        with self._lock:
            if self._lost is not None:
                raise LeaseLost(self._lost)
            if self._token is None:
                raise QueueError("Only the leading worker may take and settle tasks.")
            self._call += 1
            try:
                return self._transaction(numbered, "holder", "waiting", *watched)
            except _AlreadySettled:
                self._call -= 1
                raise
            except QueueError as error:
                self._lost = str(error)
                raise LeaseLost(str(error)) from error

    def _lease_lost(self, reason: str) -> LeaseLost:
        return LeaseLost(f"The update queue at {address(self._url)} no longer belongs to this worker: {reason}.")

    def _change_lease(self, token: str, lease_ms: int | None) -> None:
        """Renew the lease, or return it (None). An expired lease is taken again unless another worker has taken it."""

        def change(pipe: Any) -> None:
            if not self._holds(pipe, "token", token):
                raise self._lease_lost("another worker has taken over")
            pipe.multi()
            if lease_ms is None:
                pipe.delete(self._key("lease"))
            else:
                pipe.set(self._key("lease"), self._owner, px=lease_ms)

        self._transaction(change, "holder")

    def _keep_lease(self, token: str) -> None:
        while not self._ended.wait(self._lease_ms / 3000) and self._token == token and self._lost is None:
            try:
                self._change_lease(token, self._lease_ms)
            except LeaseLost as error:
                with self._lock:
                    if self._token == token:  # otherwise this worker has taken a new lease
                        self._lost = self._lost or str(error)
            except QueueError:
                continue  # unreachable now: the worker's own calls report it

    @contextmanager
    def _readable_errors(self) -> Iterator[None]:
        from redis.exceptions import RedisError

        try:
            if not self._checked:
                self._check()
            yield
        except (RedisError, OSError) as error:
            raise QueueError(in_words(self._url, error)) from error

    def _check(self) -> None:
        """Raise for a server that must not hold a queue. Report once what a restart or crash of the server loses."""
        facts = server_facts(self._redis, self._url)
        for fact in facts:
            if fact.state == "missing":
                raise QueueError(f"The {fact.text}: {fact.cure}.")
        self._checked = True
        if self._tell is not None:
            for text in (f"The {fact.text}; {fact.cure}." for fact in facts if fact.state == "note"):
                if text not in _reported_notes:
                    _reported_notes.add(text)
                    self._tell(text)


class _AlreadySettled(QueueError):
    """A task in the commit was already settled. Nothing was committed."""
