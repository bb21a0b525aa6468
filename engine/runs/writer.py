"""Write the record of a run while it happens, without ever being in its way.

The training thread only appends to a bounded queue; one background thread serialises, compresses and commits in
batches. A slow, full, broken or removed folder costs the record, never the run: rows that find no room are counted,
the trouble is told once (log, callback, and an event as soon as the record can be written again), and writing
resumes when the folder allows it. Everything that was committed survives `kill -9`.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from .images import image_path, write_image
from .masking import mask
from .null_writer import NullWriter, Values
from .paths import DATABASE, PROCESSES, RUN_FILE
from .status import identity, read_json, write_json
from .store import RecordStore
from .summary import Summary
from .types import EventKind, RunStatus, TrajectoryRecord

log = logging.getLogger(__name__)

QUEUE_BYTES = 64 << 20
"""About how much may wait in memory before rows are dropped."""
BATCH_BYTES = 4 << 20
"""About how much goes into one transaction, so that none is long."""
COMMIT_SECONDS = 0.1
"""The pause in which a batch gathers: what is lost with `kill -9` is at most this and one transaction."""
STATUS_SECONDS = 0.5
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)


class RunWriter:
    """The record of one run, written by one thread of this process. No method raises into training.

    `process` names this process among those of the run (`training`, `engine`, `worker`); its status is kept in
    `processes/<process>.json`. Two processes of a run may each have a writer. `resume_from_step` removes what was
    recorded after that step before anything is added. `on_trouble` is called with one sentence, from the record's
    thread, when the record gets into trouble and again when it is well.
    """

    def __init__(
        self,
        run_dir: Path | str,
        *,
        resume_from_step: int | None = None,
        process: str = "training",
        on_trouble: Callable[[str], None] | None = None,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        self.run_dir = Path(run_dir)
        self.process = process
        self.dropped = 0
        self._on_trouble = on_trouble
        self._limit = queue_bytes
        self._resume = resume_from_step
        self._queue: deque[tuple[str, tuple[Any, ...], int]] = deque()
        self._bytes = 0
        self._taken = 0  # items taken from the queue and not yet committed or given up
        self._condition = threading.Condition()
        self._closing = False
        self._hurry = False
        self._position = 0
        self._store: RecordStore | None = None
        self._inode: tuple[int, int] | None = None
        self._trouble: str | None = None
        self._told_dropped = 0
        self._attempt = 0
        self._images: set[str] = set()
        self._summary = Summary()
        self._state: dict[str, Any] = {"process": process, **identity(), "status": "starting", "step": 0}
        self._state_written = 0.0
        self._state_dirty = True
        self._pid = os.getpid()
        self._announce()
        self._thread = threading.Thread(target=self._run, name="run-record", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    # What training calls. Each only appends to the queue.

    def metrics(self, step: int, values: Values) -> None:
        """Numbers of a step; a nested mapping `{"a": {"b": 1}}` is recorded as `a/b`."""
        flat = _flatten(values)
        if flat:
            self._put("metrics", (int(step), flat), 64 * len(flat))

    def trajectories(self, step: int, records: Sequence[TrajectoryRecord]) -> None:
        """Trajectories of a step. They are not copied: do not change their arrays afterwards."""
        records = list(records)
        if records:
            self._put("rows", (int(step), records), sum(map(_cost, records)), rows=len(records))

    def event(self, kind: EventKind, message: str, *, step: int = 0, **data: Any) -> None:
        """Something that happened; `message` is one sentence for a person. Secrets in `data` are masked."""
        payload = orjson.dumps(mask(data), default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
        self._put("event", (kind, message, int(step), time.time(), payload), 256 + len(payload))

    def status(
        self,
        status: RunStatus,
        *,
        step: int | None = None,
        total_steps: int | None = None,
        error: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        """Where the run stands. An ended status is on disk when this returns (or its folder is out of order)."""
        news: dict[str, Any] = {"status": status}
        given = {"step": step, "total_steps": total_steps, "error": error, "exit_code": exit_code}
        news.update({k: v for k, v in given.items() if v is not None})
        with self._condition:
            changed = status != self._state.get("status") or error is not None
            self._state.update(news)
            if status in ("finished", "stopped", "crashed"):
                self._state["ended"] = time.time()
            self._state_dirty = True
            self._hurry |= changed
            self._condition.notify_all()
        if "ended" in self._state:
            self.flush(timeout=10.0)

    def vocabulary(self, texts: Sequence[str], *, byte_level: bool = False) -> None:
        """The text of every token id, in order, once per run, so that a viewer needs no tokenizer.

        `byte_level`: the texts are in the alphabet of byte-level BPE (`Ġthe`), and readers turn them into bytes.
        """
        self._put("vocabulary", (list(texts), byte_level), 0)

    def save_image(self, image: Any, name: str) -> str:
        """Keep an image (array or PIL) under a name; returns its path relative to the run's folder at once.

        The same name is written once: an image that many rollouts share costs nothing after the first.
        """
        path = image_path(name)
        if path not in self._images:
            self._images.add(path)
            size = int(getattr(image, "nbytes", 0) or 0) or 1 << 18
            self._put("image", (path, image), size)
        return path

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything given so far is committed. False when the time was not enough or a disk refuses."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while (self._queue or self._taken or self._state_dirty) and self._thread.is_alive():
                if self._trouble is not None and timeout is None:
                    return False
                self._hurry = True
                self._condition.notify_all()
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self._condition.wait(0.2 if left is None else min(0.2, left))
        return self._trouble is None

    def position(self) -> int:
        """The last step of which something is committed; 0 before."""
        return self._position

    def close(self, timeout: float = 30.0) -> None:
        """Commit what is left, within a time limit, and end the thread. A second call does nothing."""
        if os.getpid() != self._pid or self._closing:
            return
        atexit.unregister(self.close)
        with self._condition:
            self._closing = True
            self._hurry = True
            self._condition.notify_all()
        self._thread.join(timeout)

    # The record's own thread.

    def _put(self, kind: str, payload: tuple[Any, ...], cost: int, *, rows: int = 0) -> None:
        if os.getpid() != self._pid:  # a forked data loader has no thread to write with
            return
        with self._condition:
            if self._closing or (self._bytes + cost > self._limit and self._queue):
                self.dropped += rows or 1
                return
            self._queue.append((kind, payload, cost))
            self._bytes += cost
            self._condition.notify_all()

    def _run(self) -> None:
        batch: list[tuple[str, tuple[Any, ...], int]] = []
        while True:
            self._wait(bool(batch))
            if not batch:
                batch = self._take()
            done = self._write(batch)
            self._write_state()
            with self._condition:
                if done:
                    self._bytes -= sum(cost for _, _, cost in batch)
                    batch, self._taken = [], 0
                self._hurry = self._hurry and bool(self._queue)
                self._condition.notify_all()
                if self._closing and (self._trouble is not None or not (self._queue or batch)):
                    lost = sum(len(p[1]) if k == "rows" else 1 for k, p, _ in (*batch, *self._queue))
                    self.dropped += lost
                    break
        self._write_state(final=True)
        if self._store is not None:
            try:
                self._store.close()
            except sqlite3.Error as error:
                log.warning("closing the record: %s", error)

    def _wait(self, pending: bool) -> None:
        with self._condition:
            if pending:  # a batch that could not be written: try again later, or at once at the end
                pause = RETRY_SECONDS[min(self._attempt, len(RETRY_SECONDS)) - 1]
                self._condition.wait_for(lambda: self._closing, pause)
                return
            ready = self._condition.wait_for(
                lambda: bool(self._queue) or self._closing or self._hurry, timeout=STATUS_SECONDS
            )
            if ready and not self._hurry and not self._closing and self._bytes < BATCH_BYTES:
                self._condition.wait_for(lambda: self._hurry or self._closing, COMMIT_SECONDS)

    def _take(self) -> list[tuple[str, tuple[Any, ...], int]]:
        batch: list[tuple[str, tuple[Any, ...], int]] = []
        size = 0
        with self._condition:
            while self._queue and (size < BATCH_BYTES or not batch):
                item = self._queue.popleft()
                size += item[2]
                batch.append(item)
            self._taken = len(batch)
        return batch

    def _write(self, batch: Sequence[tuple[str, tuple[Any, ...], int]]) -> bool:
        """Write one batch in one transaction. False when it should be tried again."""
        if not batch and self._resume is None:
            return True
        try:
            store = self._opened()
            for kind, payload, _ in batch:
                if kind == "image":
                    self._image(*payload)
            store.begin()
            try:
                if self._trouble is not None or self.dropped > self._told_dropped:
                    self._tell_recovery(store)
                step = 0
                for kind, payload, _ in batch:
                    step = max(step, self._apply(store, kind, payload))
                store.commit()
            except BaseException:
                store.rollback()
                raise
        except (sqlite3.OperationalError, sqlite3.DatabaseError, OSError) as error:
            if isinstance(error, (sqlite3.DataError, sqlite3.IntegrityError, sqlite3.InterfaceError)):
                return self._without_the_bad(batch, error)
            self._in_trouble(error)
            return False
        except Exception as error:
            return self._without_the_bad(batch, error)
        self._recovered()
        self._position = max(self._position, step)
        return True

    def _without_the_bad(self, batch: Sequence[tuple[str, tuple[Any, ...], int]], error: Exception) -> bool:
        """One item that cannot be stored must not hold up the others: write them one by one, leave it out."""
        if not batch:  # removing what lies after the step to resume from has failed
            self._in_trouble(error)
            return False
        if len(batch) > 1:
            return all([self._write([item]) for item in batch])
        kind, payload, _ = batch[0]
        if kind == "rows" and len(payload[1]) > 1:
            return all([self._write([(kind, (payload[0], [r]), 0)]) for r in payload[1]])
        self.dropped += 1
        log.warning("the record leaves out one item (%s): %s", kind, error, exc_info=error)
        return True

    def _apply(self, store: RecordStore, kind: str, payload: tuple[Any, ...]) -> int:
        if kind == "metrics":
            step, values = payload
            store.add_metrics(step, values)
            self._summary.add(step, values)
            self._progress(step)
            return step
        if kind == "rows":
            step, records = payload
            refused = store.add_trajectories(step, records)
            for sentence in refused:
                store.add_event("record", sentence, step, time.time(), b"{}")
            self.dropped += len(refused)
            self._told_dropped += len(refused)
            self._progress(step)
            return step
        if kind == "event":
            store.add_event(*payload)
        elif kind == "vocabulary":
            texts, byte_level = payload
            store.add_vocabulary(texts)
            store.set_meta("vocabulary", "byte-level" if byte_level else "text")
        return 0

    def _image(self, path: str, image: Any) -> None:
        try:
            write_image(self.run_dir / path, image)
        except (ValueError, TypeError) as error:  # not an image: the record's readers say that it is missing
            log.warning("the record leaves out image %s: %s", path, error)

    def _opened(self) -> RecordStore:
        path = self.run_dir / DATABASE
        if self._store is not None:
            found = path.stat()  # FileNotFoundError: SQLite would go on writing into a removed file
            if (found.st_dev, found.st_ino) == self._inode:
                return self._store
            self._drop_store()
        elif self._inode is not None:
            path.stat()  # a record that was removed is not begun again behind the user's back
        store = RecordStore(path)
        try:
            if self._resume is not None:
                removed = store.truncate_after(self._resume)
                log.info("resuming the record after step %d (%d trajectories removed)", self._resume, removed)
                self._resume = None
            self._position = max(self._position, store.last_step())
            found = path.stat()
        except BaseException:
            store.close()
            raise
        self._store, self._inode = store, (found.st_dev, found.st_ino)
        return store

    def _drop_store(self) -> None:
        if self._store is not None:
            try:
                self._store.close()
            except sqlite3.Error:
                log.debug("closing a broken record", exc_info=True)
            self._store = None

    def _in_trouble(self, error: Exception) -> None:
        self._attempt += 1
        if self._attempt > 1 or not isinstance(error, sqlite3.OperationalError) or "locked" not in str(error):
            self._drop_store()
        if self._trouble is None and not (self._attempt == 1 and "locked" in str(error)):
            self._trouble = _explain(error, self.run_dir)
            self._tell(f"{self._trouble}; training goes on without it and it resumes when it can")

    def _recovered(self) -> None:
        self._attempt = 0
        if self._trouble is not None:
            self._tell(f"the record is written again; {self._told_dropped} rows were lost")
            self._trouble = None

    def _tell_recovery(self, store: RecordStore) -> None:
        lost = self.dropped - self._told_dropped
        reason = self._trouble or "the disk is slower than the run"
        message = f"{reason}: {lost} rows are missing from the record" if lost else f"{reason}: nothing was lost"
        if self._trouble is None:
            self._tell(message)
        data = orjson.dumps({"reason": reason, "dropped": lost})
        store.add_event("record", message, self._state["step"], time.time(), data)
        self._told_dropped += lost

    def _tell(self, message: str) -> None:
        log.warning("record: %s", message)
        if self._on_trouble is not None:
            try:
                self._on_trouble(message)
            except Exception:
                log.exception("the callback for trouble with the record failed")

    def _progress(self, step: int) -> None:
        if step > self._state["step"]:
            self._state["step"] = step
            self._state_dirty = True

    def _announce(self) -> None:
        """Make the folder, and `run.json` when no launcher has, and say which process writes. Never raises."""
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            if not read_json(self.run_dir / RUN_FILE):
                write_json(self.run_dir / RUN_FILE, {"id": self.run_dir.name, "created": time.time(), "mode": ""})
        except OSError as error:
            log.warning("record: %s", _explain(error, self.run_dir))
        self._write_state(final=True)

    def _write_state(self, *, final: bool = False) -> None:
        now = time.monotonic()
        due = final or self._hurry or now - self._state_written >= STATUS_SECONDS
        if not self._state_dirty or not due:
            return
        with self._condition:
            state = dict(self._state)
            self._state_dirty = False
        self._state_written = now
        state.update(time=time.time(), dropped=self.dropped, summary=self._summary.to_json())
        try:
            if self.run_dir.is_dir():
                write_json(self.run_dir / PROCESSES / f"{self.process}.json", state)
        except OSError as error:
            log.debug("status not written: %s", error)


RecordWriter = RunWriter | NullWriter
"""What training writes to: the record on rank 0, nothing on the others."""


def open_writer(run_dir: Path | str, *, rank: int = 0, **options: Any) -> RecordWriter:
    """The writer for a rank: only rank 0 writes. Options are those of `RunWriter`."""
    return RunWriter(run_dir, **options) if rank == 0 else NullWriter()


def _flatten(values: Mapping[Any, Any], prefix: str = "") -> dict[str, float]:
    flat: dict[str, float] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{key}/"))
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            continue
        # SQLite keeps no NaN: it is stored as NULL and read back as NaN.
        flat[key] = number if math.isfinite(number) or math.isinf(number) else math.nan
    return flat


def _cost(record: TrajectoryRecord) -> int:
    trajectory = record.trajectory
    size = 1024 + len(trajectory.prompt)
    for step in trajectory.steps:
        size += len(step.text) + len(step.observation) + 512
    return size + (0 if record.tokens is None else 16 * len(record.tokens))


def _explain(error: BaseException, run_dir: Path) -> str:
    """One sentence for a person about what a disk did."""
    text = str(error).lower()
    if not run_dir.is_dir():
        return f"the run's folder {run_dir} was removed"
    if isinstance(error, FileNotFoundError):
        return f"the record in {run_dir} was removed"
    if "full" in text or getattr(error, "errno", None) in (27, 28, 122):  # EFBIG, ENOSPC, EDQUOT
        return f"the disk of {run_dir} is full"
    if "readonly" in text or "read-only" in text or "permission" in text:
        return f"the record in {run_dir} cannot be written (read-only)"
    if "malformed" in text or "not a database" in text:
        return f"the record in {run_dir} is damaged"
    return f"the record in {run_dir} cannot be written ({error})"
