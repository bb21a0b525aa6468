"""The update queue on a Redis server, for engines and workers of several machines that share one policy.

One worker is active. It renews a lease, and a standby takes over after the lease expired or was returned. A replaced
worker cannot do anything, because every script checks its token (`redis_scripts.py`).

An interrupted call may have been executed or not, so it is never repeated. The worker then loses the queue
(`LeaseLost`) and restarts from the last commit.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import xxhash

from ...launch.redis_server import TIMEOUT_S, RedisMissing, address, connect, in_words, refusals, server_facts
from . import redis_scripts as scripts
from .update_queue import (
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

_START = uuid.uuid4().hex
"""Identifies this process with its pid, so that it can take its own lease again."""
_told: set[str] = set()
"""Messages about servers that this process has reported."""


class RedisQueue:
    """One process's connection to the queue `name` on the server `url`, usable from any thread.

    Nothing is sent before the first call. Calls raise QueueError while the server is unavailable. lease_s: seconds
    after which a silent worker is replaced. timeout_s: time limit of a call. tell: receives a message when the server
    may lose data.
    """

    mended: str | None = None

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
        self._who = f"process {os.getpid()} on {socket.gethostname()}"
        try:
            self._redis: Any = connect(url, timeout_s)
        except (RedisMissing, ValueError) as error:
            raise QueueError(f"{str(error)[0].upper()}{str(error)[1:]}.") from error
        self._checked = False
        self._token: str | None = None
        self._call = 0
        self._lost: str | None = None
        self._lock = threading.RLock()
        """Keeps the worker's calls in the order of their numbers."""
        self._ended = threading.Event()

    # ------------------------------------------------------------------------------------------- the engine's side

    def put(self, task_id: str, payload: bytes, policy_version: int) -> list[str] | None:
        checksum = xxhash.xxh3_128_hexdigest(payload)
        reason = f"the queue was full ({self.limit} tasks)"
        with self._speaking_plainly():
            dropped = self._run(
                scripts.PUT, task_id, payload, policy_version, checksum, time.time(), self.limit, reason
            )
        return None if dropped is None else [i.decode() for i in dropped]

    def record(self, engine: str, n: int) -> None:
        """Note that the journal up to row `n` is in the record of this engine."""
        with self._speaking_plainly():
            self._redis.hset(self._key("recorded"), engine, n)

    # ------------------------------------------------------------------------------------------- the worker's side

    def lead(self) -> int:
        with self._lock:
            token = uuid.uuid4().hex
            with self._speaking_plainly():
                count = self._run(scripts.LEAD, token, self._process, self._who, self._lease_ms)
            self._token, self._call, self._lost = token, 0, None
            threading.Thread(target=self._keep_lease, args=(token,), name="lease", daemon=True).start()
            return int(count)

    def take(self) -> QueuedTask | None:
        found = self._as_worker(scripts.TAKE)
        if found is None:
            return None
        payload, checksum = found[3] or b"", (found[4] or b"").decode()
        whole = xxhash.xxh3_128_hexdigest(payload) == checksum
        return QueuedTask(found[0].decode(), int(found[1]), int(found[2]), payload, whole)

    def settle(
        self,
        settled: Sequence[Settled],
        journal: Iterable[Mapping[str, Any]] = (),
        meta: Mapping[str, Any] | None = None,
    ) -> list[JournalRow]:
        rows = list(journal)
        tasks = [value for s in settled for value in (s.id, s.outcome, s.reason)]
        facts = [value for key, value in (meta or {}).items() for value in (key, json.dumps(value))]
        texts = [json.dumps(row) for row in rows]
        try:
            numbers = self._as_worker(
                scripts.SETTLE, REFUSED_KEPT, len(settled), *tasks, len(rows), *texts, len(facts) // 2, *facts
            )
        except _AlreadySettled as error:
            raise was_settled(settled) from error
        return [JournalRow(int(n), row) for n, row in zip(numbers, rows, strict=True)]

    def continue_after(self, n: int) -> None:
        with self._speaking_plainly():
            self._run(scripts.CONTINUE, n)

    def prune_journal(self, through: int) -> None:
        with self._speaking_plainly():
            self._redis.xtrim(self._key("journal"), minid=f"{max(through, 0) + 1}-0", approximate=False)

    # ----------------------------------------------------------------------------------------------- for everybody

    def journal(self, after: int = 0, limit: int = 1000) -> list[JournalRow]:
        with self._speaking_plainly():
            found = self._redis.xrange(self._key("journal"), min=f"({after}-0", count=limit)
        return [JournalRow(int(n.split(b"-")[0]), json.loads(fields[b"row"])) for n, fields in found]

    def journal_end(self) -> int:
        with self._speaking_plainly():
            return int(self._redis.get(self._key("journal_n")) or 0)

    def depth(self) -> int:
        with self._speaking_plainly():
            return self._redis.zcard(self._key("waiting")) + self._redis.zcard(self._key("taken"))

    def counts(self) -> dict[str, int]:
        with self._speaking_plainly():
            open_ = {"queued": self._redis.zcard(self._key("waiting")), "taken": self._redis.zcard(self._key("taken"))}
            settled = self._redis.hgetall(self._key("counts"))
        return {k: n for k, n in open_.items() if n} | {k.decode(): int(n) for k, n in settled.items()}

    def tasks(self, state: str) -> list[tuple[str, str]]:
        where = {"queued": "waiting", "taken": "taken"}.get(state, f"settled:{state}")
        with self._speaking_plainly():
            ids = [i.decode() for i in self._redis.zrange(self._key(where), 0, -1)]
            with self._redis.pipeline(transaction=False) as asked:
                for i in ids:
                    asked.hget(self._key(f"task:{i}"), "reason")
                reasons = asked.execute()
        return [(i, (reason or b"").decode()) for i, reason in zip(ids, reasons, strict=True)]

    def payload(self, task_id: str) -> bytes | None:
        with self._speaking_plainly():
            return self._redis.hget(self._key(f"task:{task_id}"), "payload")

    def get(self, key: str, default: Any = None) -> Any:
        """`recorded` is the lowest row that every engine has in its record."""
        with self._speaking_plainly():
            if key == "recorded":
                return min(map(int, self._redis.hvals(self._key("recorded"))), default=default)
            found = self._redis.hget(self._key("facts"), key)
        return default if found is None else json.loads(found)

    def set(self, **meta: Any) -> None:
        """Facts of a replaced worker are refused."""
        if self._token is not None:
            self.settle([], (), meta)
            return
        with self._speaking_plainly():
            self._redis.hset(self._key("facts"), mapping={k: json.dumps(v) for k, v in meta.items()})

    def close(self) -> None:
        """Return the lease and close the connection."""
        self._ended.set()
        with self._lock:
            token, self._token = self._token, None
            self._lost = self._lost or "it was closed"
            if token is not None:
                try:
                    with self._speaking_plainly():
                        self._run(scripts.RELEASE, token)
                except QueueError:
                    pass  # it runs out
        self._redis.close()

    # ------------------------------------------------------------------------------------------------------ inside

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _run(self, script: str, *arguments: Any) -> Any:
        return self._redis.register_script(script)(keys=[self._prefix], args=arguments)

    def _as_worker(self, script: str, *arguments: Any) -> Any:
        """Make a numbered call of the active worker. Any error loses the queue for this worker."""
        with self._lock:
            if self._lost is not None:
                raise LeaseLost(self._lost)
            if self._token is None:
                raise QueueError("Only the worker that leads takes and settles tasks.")
            self._call += 1
            try:
                with self._speaking_plainly():
                    return self._run(script, self._token, self._call, *arguments)
            except _AlreadySettled:
                raise
            except QueueError as error:
                self._lost = str(error)
                raise LeaseLost(str(error)) from error

    def _keep_lease(self, token: str) -> None:
        """Renew the lease while the process lives."""
        while not self._ended.wait(self._lease_ms / 3000) and self._token == token and self._lost is None:
            try:
                with self._speaking_plainly():
                    self._run(scripts.RENEW, token, self._who, self._lease_ms)
            except LeaseLost as error:
                with self._lock:
                    if self._token == token:  # else this worker has taken a lease anew meanwhile
                        self._lost = self._lost or str(error)
            except QueueError:
                continue  # not reachable now: the worker's own calls say so

    @contextmanager
    def _speaking_plainly(self) -> Iterator[None]:
        from redis.exceptions import RedisError, ResponseError

        try:
            if not self._checked:
                self._check()
            yield
        except ResponseError as error:
            kind, _, rest = str(error).partition(" ")
            if kind == "LEASEHELD":
                raise LeaseHeld(f"Another worker learns ({rest}).") from error
            if kind == "LEASELOST":
                raise LeaseLost(
                    f"The update queue at {address(self._url)} is not this worker's now: {rest}."
                ) from error
            if kind == "SETTLED":
                raise _AlreadySettled(rest) from error
            raise QueueError(in_words(self._url, error)) from error
        except (RedisError, OSError) as error:
            raise QueueError(in_words(self._url, error)) from error

    def _check(self) -> None:
        """Refuse a server that can lose tasks; report once the consequences of its restart."""
        facts = server_facts(self._redis, self._url)
        refused = refusals(facts)
        if refused is not None:
            raise QueueError(refused)
        self._checked = True
        if self._tell is not None:
            for text in (f"The {fact.text}; {fact.cure}." for fact in facts if fact.state == "note"):
                if text not in _told:
                    _told.add(text)
                    self._tell(text)


class _AlreadySettled(QueueError):
    """A task of a commit was settled before. Nothing was committed."""
