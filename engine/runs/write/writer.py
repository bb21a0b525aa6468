"""Write the record of a run as it happens.

The training thread appends to a bounded queue. One background thread serialises, compresses and commits in batches. A
caller waits while the queue is full and the disk accepts writes, so a slow disk costs time but no data. A full, broken,
hanging or removed folder can lose the record but never stops the run. Rows that do not fit are counted. The trouble is
reported once (in the log, and as an event as soon as the record is writable again). Writing resumes when the folder
allows it. Committed data survives `kill -9`.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..codec import encode_json
from ..control.live import LiveTexts
from ..control.status import ENDED
from ..masking import mask
from ..paths import network_file_system
from ..types import EventKind, RunStatus, TrajectoryRecord, Use
from .items import Entry, Item, MetricsItem, PositionsItem, SavedImage, TrajectoriesItem, Write, image_path
from .sink import Sink
from .state import STATUS_SECONDS, ProcessState

if TYPE_CHECKING:
    from ..control.alerts import AlertSender
    from .items import Image
    from .store import RecordStore

log = logging.getLogger(__name__)

Values = Mapping[str, "float | Mapping[str, float]"]

PATIENCE_SECONDS = 30.0
"""The maximum time that callers wait for a disk that commits nothing."""
BATCH_BYTES = 4 << 20
"""The approximate size of one transaction, which keeps transactions short."""
RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)


class RunWriter:
    """Writes the record of one run from one thread of this process. No method raises into training.

    `process` names this process within the run (`training`, `engine`, `worker`). Its status is in
    `processes/<process>.json`. Two processes of a run may each have a writer. `resume_from_step` removes the records
    after that step before anything is added. `queue_bytes`: the approximate size of the queue at which callers begin to
    wait; one step may exceed it. `alerts` sends alerts to the user.
    """

    def __init__(
        self,
        run_dir: Path | str,
        *,
        resume_from_step: int | None = None,
        process: str = "training",
        queue_bytes: int = 64 << 20,
        alerts: AlertSender | None = None,
    ) -> None:
        self.run_dir = Path(run_dir)
        self.process = process
        self._limit = queue_bytes
        self._alerts = alerts
        self._queue: deque[tuple[Entry, int]] = deque()
        """The waiting entries with their costs."""
        self._bytes = 0
        self._gathering = threading.local()
        self._busy = False  # items left the queue and are neither committed nor given up
        self._overflow = 0
        self._commits = 0
        self._condition = threading.Condition()
        self._closing = False
        self._urgent = False
        self._images: set[str] = set()
        self._sink = Sink(self.run_dir, resume_from_step, lambda: self._overflow)
        self._state = ProcessState(self.run_dir, process, self._sink, self._condition)
        self._pid = os.getpid()
        self._state.announce()
        self._thread = threading.Thread(target=self._run, name="run-record", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        if kind := network_file_system(self.run_dir):
            where = f"{self.run_dir} is on a network file system ({kind})"
            self.event("note", f"{where}: while the run is active, open it on this machine")

    @property
    def live(self) -> LiveTexts:
        """The texts that this process is generating."""
        return self._state.live

    @property
    def dropped(self) -> int:
        """The number of rows that could not be recorded: no room in the queue, or not storable."""
        return self._overflow + self._sink.trouble.lost

    def metrics(self, step: int, values: Values, *, replace: bool = False) -> None:
        """Record numbers of a step. A nested mapping `{"a": {"b": 1}}` becomes `a/b`. replace: forget the step's known
        ones."""
        flat = _flatten(values)
        if flat:
            self._put(MetricsItem(int(step), flat, replace, cost=64 * len(flat)))

    def trajectories(self, step: int, records: Sequence[TrajectoryRecord]) -> None:
        """Record trajectories of a step. They are not copied, so do not change their arrays afterwards."""
        kept = list(records)
        if kept:
            self._put(TrajectoriesItem.of(int(step), kept))

    def uses(self, uses: Sequence[tuple[str, Use]]) -> None:
        """Record how later updates used recorded rollouts, by rollout id."""
        kept = list(uses)
        if kept:
            self._put(Write("uses", lambda store: store.rows.add_uses(kept), cost=512 * len(kept)))

    def timeline(self, step: int, spans: Mapping[str, Sequence[tuple[float, float]]]) -> None:
        """Record the time spans of a step's parts by name, in seconds since the epoch."""
        data = encode_json({name: [[round(t, 4) for t in span] for span in some] for name, some in spans.items()})
        self._put(Write("timeline", lambda store: store.add_timeline(int(step), data), cost=256 + len(data)))

    def event(self, kind: EventKind, message: str, *, step: int = 0, **data: object) -> None:
        """Record an event. `message` is one sentence for people. Secrets in `data` are masked."""
        text, event_step, now = str(message), int(step), time.time()
        write = lambda store: store.add_event(kind, text, event_step, now, encode_json(mask(data)))  # noqa: E731
        self._put(Write("event", write, cost=256 + len(text)))
        if kind == "record" and self._sink.trouble.now is not None:
            self._state.warning, self._state.dirty = text, True
        if self._alerts is not None and os.getpid() == self._pid:
            self._alerts.event(kind, text, event_step, data)

    @contextmanager
    def together(self, **positions: int) -> Iterator[None]:
        """Store all items that this thread records inside the block in one transaction, or none of them.

        The transaction also stores how far other journals are copied (see `schema.recorded_position`), so a copy is
        neither lost nor duplicated.
        """
        parts: list[Item] = []
        self._gathering.parts = parts
        try:
            yield
        finally:
            self._gathering.parts = None
            self._append([(*parts, PositionsItem(positions, rows=0))])

    @property
    def positions(self) -> dict[str, int]:
        """The positions of `together` that this process has committed so far."""
        return self._sink.positions

    def status(
        self,
        status: RunStatus,
        *,
        step: int | None = None,
        total_steps: int | None = None,
        error: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        """Set the status of the run. An ended status is on disk when this returns, unless the folder is in trouble."""
        values = {"step": step, "total_steps": total_steps, "error": error, "exit_code": exit_code}
        changes = {"status": status, **{k: v for k, v in values.items() if v is not None}}
        if os.getpid() != self._pid:
            return
        with self._condition:
            self._urgent |= self._state.set(changes)
            self._condition.notify_all()
        if status == "crashed" and error and self._alerts is not None:
            self._alerts.event("error", error.strip().splitlines()[-1], self._state.step, {})
        if status in ENDED:
            self.flush(timeout=10.0)

    def progress(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Set the run's progress within its step (see `Progress`). It reaches the disk soon."""
        with self._condition:
            self._state.progress(phase, done, total)

    def begin(self, id_: str, what: str = "") -> None:
        """Begin a rollout. Until `end`, viewers see it among the rollouts in flight."""
        self._state.flights.begin(id_, what)
        self._state.dirty = True

    def end(self, id_: str) -> None:
        self._state.flights.end(id_)
        self._state.dirty = True

    def vocabulary(self, texts: Sequence[str], *, byte_level: bool = False) -> None:
        """Record the text of every token id, in order, once per run, so that viewers need no tokenizer.

        `byte_level`: the texts use the alphabet of byte-level BPE (`Ġthe`), and readers convert them into bytes.
        """
        kept, alphabet = list(texts), "byte-level" if byte_level else "text"

        def write(store: RecordStore) -> None:
            store.add_vocabulary(kept)
            store.set_meta("vocabulary", alphabet)

        self._put(Write("vocabulary", write))  # it comes once and takes no room in the queue

    def save_image(self, image: Image, name: str) -> str:
        """Save an image (array or PIL) under a name. Return its path relative to the run's folder at once.

        Each name is written only once, so an image that many rollouts share costs nothing after the first time.
        """
        path = image_path(name)
        cost = int(getattr(image, "nbytes", 0) or 0) or 1 << 18
        if path not in self._images and self._put(SavedImage(path, image, cost=cost)):
            self._images.add(path)
        return path

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything recorded so far is committed.

        Return False on timeout, or at once while the folder is in trouble, because a full disk must not stop a run.
        """
        if os.getpid() != self._pid:
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while self._queue or self._busy or self._state.dirty:
                left = 1.0 if deadline is None else deadline - time.monotonic()
                if self._sink.trouble.now is not None or left <= 0 or not self._thread.is_alive():
                    return False
                self._urgent = True
                self._condition.notify_all()
                self._condition.wait(min(0.2, left))
        return self._sink.trouble.now is None

    def position(self) -> int:
        return self._sink.step

    def close(self, timeout: float = 30.0) -> None:
        """Commit the rest and end the thread. Give up after `timeout` seconds without a commit. A second call has no
        effect."""
        if os.getpid() != self._pid or self._closing:
            return
        atexit.unregister(self.close)
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        commits = -1
        while self._thread.is_alive() and commits != self._commits:
            commits = self._commits
            self._thread.join(timeout)
        if self._alerts is not None:
            self._alerts.close()

    def _put(self, item: Item) -> bool:
        """Append an item to the queue. If there is no room, count it as dropped and return False."""
        if os.getpid() != self._pid:  # a forked data loader has no thread to write with
            return False
        parts = getattr(self._gathering, "parts", None)
        if parts is not None:
            parts.append(item)
            return True
        return self._append([(piece,) for piece in item.pieces(BATCH_BYTES)])

    def _append(self, entries: Sequence[Entry]) -> bool:
        costs = [sum(item.cost for item in entry) for entry in entries]
        with self._condition:
            if not self._room(needed=sum(costs)):
                self._overflow += sum(item.rows for entry in entries for item in entry)
                return False
            self._state.heard()
            self._queue.extend(zip(entries, costs, strict=True))
            self._bytes += sum(costs)
            self._condition.notify_all()
        return True

    def _room(self, needed: int) -> bool:
        """Wait until the queue has room. Return False if the disk is in trouble or commits nothing for too long."""
        while needed and not self._closing and self._bytes >= self._limit:
            if self._sink.trouble.now is not None or threading.current_thread() is self._thread:
                return False
            commits = self._commits
            self._condition.wait_for(lambda seen=commits: self._commits != seen or self._blocked(), PATIENCE_SECONDS)
            if commits == self._commits and not self._blocked():
                self._sink.trouble.failed(
                    f"the disk of {self.run_dir} accepts no writes ({PATIENCE_SECONDS:g} s)", False
                )
        return not self._closing

    def _blocked(self) -> bool:
        return self._closing or self._sink.trouble.now is not None

    def _run(self) -> None:
        batch: deque[Entry] = deque()
        cost = 0
        while True:
            self._wait(pending=bool(batch))
            if not batch:
                batch, cost = self._take()
            late = bool(batch) and self._state.ended
            trouble = self._sink.trouble.now
            done = self._sink.write(batch)
            failed = self._sink.trouble.now != trouble  # warn viewers at the first failed write
            # late: the summary also includes data recorded after the end
            self._state.write(self.dropped, final=late or failed, hurry=self._urgent)
            self._state.write_live()
            with self._condition:
                if done:
                    self._bytes -= cost
                    self._commits += 1
                    self._busy = False
                self._urgent = self._urgent and bool(self._queue)
                self._condition.notify_all()
                if self._closing and (self._sink.trouble.now is not None or not (self._queue or batch)):
                    waiting = (*batch, *(entry for entry, _ in self._queue))
                    left = sum(item.rows for entry in waiting for item in entry)
                    break
        self._sink.close(left)
        self._state.write(self.dropped, final=True)
        self._state.remove_live()

    def _wait(self, *, pending: bool) -> None:
        with self._condition:
            if pending:  # retry a failed batch later, or at once when closing
                pause = RETRY_SECONDS[min(self._sink.trouble.attempts, len(RETRY_SECONDS)) - 1]
                self._condition.wait_for(lambda: self._closing, pause)
                return
            if not self._sink.idle:
                return
            ready = self._condition.wait_for(lambda: bool(self._queue) or self._closing or self._urgent, STATUS_SECONDS)
            if ready and self._bytes < BATCH_BYTES:
                # Collect a batch. `kill -9` loses at most this much and one transaction.
                self._condition.wait_for(lambda: self._urgent or self._closing, 0.1)

    def _take(self) -> tuple[deque[Entry], int]:
        batch: deque[Entry] = deque()
        cost = 0
        with self._condition:
            while self._queue and (cost < BATCH_BYTES or not batch):
                item, its_cost = self._queue.popleft()
                cost += its_cost
                batch.append(item)
            self._busy = bool(batch)
        return batch, cost


class NullWriter:
    """The writer of every rank except 0. It accepts everything and writes nothing."""

    dropped = 0
    live = None

    def _ignore(self, *args: object, **kwargs: object) -> None:
        pass

    metrics = trajectories = uses = timeline = event = status = progress = begin = end = vocabulary = close = _ignore

    def save_image(self, image: Image, name: str) -> str:
        """Return the path that rank 0 uses for this name."""
        return image_path(name)

    def flush(self, timeout: float | None = None) -> bool:
        return True

    def position(self) -> int:
        return 0


RecordWriter = RunWriter | NullWriter
"""The writer of a process: a `RunWriter` on rank 0, a `NullWriter` on other ranks."""


def open_writer(run_dir: Path | str, *, rank: int = 0, **options: Any) -> RecordWriter:
    """Return the writer for a rank. Only rank 0 writes. The options are those of `RunWriter`."""
    return RunWriter(run_dir, **options) if rank == 0 else NullWriter()


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the plain floats by slash-separated names. Warn of other values. NaN stays (SQLite stores it as NULL)."""
    flat: dict[str, float] = {}
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat.update(_flatten(value, f"{key}/"))
            continue
        try:
            flat[key] = float(value)
        except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor of several elements
            if value is not None:
                _warn_of_metric(key)
    return flat


@cache
def _warn_of_metric(name: str) -> None:
    log.warning("the metric %s is not recorded, because its value is not a number", name)
