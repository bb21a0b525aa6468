"""The rollouts that a process is generating, for viewers: their newest texts and durations.

Each process has one `LiveTexts`. A session opens a `BatchTexts` and reports to it every `LOOK_S` seconds, or less often
if that would take more than `1 / PATIENCE` of the time. The writer of the record stores the state in
`live/<process>.json`, which it replaces atomically. `read_live` trusts that file only while its process lives.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..durable import read_as, read_json
from ..paths import PROCESSES
from ..types import RunInfo

FOLDER = "live"
LOOK_S = 0.5
"""Minimum seconds between two looks at the texts of a batch."""
PATIENCE = 200
"""After a look that took t seconds, the next one waits for PATIENCE * t. So looks take at most 0.5 % of the time."""
ROWS = 64
"""The number of rollouts per batch whose texts are kept. All rollouts are counted."""
TEXT = 6000
"""The number of characters kept of each text and prompt."""
BATCHES = 4
"""The maximum number of batches in the file. Several are in progress if servers sample ahead."""
IDENTITY = ("pid", "started", "born", "where")
"""The fields that identify a process (`status.identity`)."""


@dataclass(frozen=True)
class Purpose:
    """The purpose of a batch of rollouts. turns: the maximum turns per rollout (0: unknown). total: the number of
    rollouts of the call, which may need several batches."""

    name: str = ""
    step: int = 0
    turns: int = 0
    total: int = 0


@dataclass(frozen=True)
class LiveText:
    """One rollout. text: its newest text. cut: whether the text's beginning is missing. turn: counts from 1. tokens:
    the total over all turns. reward, correct: None until the rollout is judged, or if nothing judges it."""

    row: int
    prompt: str = ""
    text: str = ""
    cut: bool = False
    turn: int = 1
    tokens: int = 0
    finished: bool = False
    reward: float | None = None
    correct: bool | None = None


@dataclass(frozen=True)
class BatchState:
    """Rollouts that are sampled together.

    began, time: seconds since the epoch. ended: whether the batch is complete. limit: the maximum total tokens. left:
    the maximum seconds until the current turn ends (None: unknown).
    """

    purpose: Purpose
    began: float
    time: float
    rollouts: int
    finished: int
    tokens: int
    limit: int
    left: float | None = None
    ended: bool = False
    rewards: tuple[float, ...] = ()
    texts: tuple[LiveText, ...] = ()

    @property
    def tokens_a_second(self) -> float | None:
        seconds = self.time - self.began
        return self.tokens / seconds if seconds > 0 and self.tokens else None


@dataclass(frozen=True)
class ServerState:
    """A rollout server: requests in flight, turns and tokens so far. `why_out` is empty while it serves.

    Means over its turns in the last step, None before the first step: mismatch: |log π − log μ| in nats per token.
    behind: steps between sampling and training.
    """

    url: str
    in_flight: int = 0
    turns: int = 0
    tokens: int = 0
    why_out: str = ""
    mismatch: float | None = None
    behind: float | None = None


@dataclass(frozen=True)
class LiveState:
    """The file of one process: its batches, oldest first, and the servers that generate for it."""

    batches: tuple[BatchState, ...] = ()
    servers: tuple[ServerState, ...] = ()
    time: float = 0.0


class BatchTexts:
    """The texts of one session, with the session's rows. Methods may be called from any thread."""

    def __init__(self, purpose: Purpose, prompts: Sequence[str], num_rollouts: int, limit: int) -> None:
        self.purpose = purpose
        self.rows = len(prompts) * num_rollouts
        self.ended = False
        self._began = self._time = time.time()
        self._limit = limit
        self._left: float | None = None
        self._tokens_before = [0] * self.rows
        self._turn_over = [False] * self.rows
        self._finished = 0
        self._rewards: list[float] = []
        self._texts = [LiveText(row, prompts[row // num_rollouts][-TEXT:]) for row in range(self.rows)]
        """All rows. Only the first `ROWS` keep their texts."""
        self._turn_began = time.perf_counter()
        self._next_look = 0.0
        self._lock = threading.Lock()
        self.changed = True

    def turn(self) -> None:
        self._turn_began, self._left = time.perf_counter(), None

    def due(self) -> bool:
        return time.perf_counter() >= self._next_look

    @contextmanager
    def look(self, step: int, steps: int) -> Iterator[None]:
        """Report the rows inside this block, after `step` of at most `steps` tokens of a turn."""
        started = time.perf_counter()
        self._left = (started - self._turn_began) / max(step, 1) * (steps - step)
        try:
            yield
        finally:
            now = time.perf_counter()
            self._next_look = now + max(LOOK_S, PATIENCE * (now - started))

    def wants(self, row: int) -> bool:
        """Return whether the text of a row is kept and may have changed."""
        return row < ROWS and not self._turn_over[row]

    def writes(self, row: int, tokens: int, text: str | None = None, *, cut: bool = False, over: bool = False) -> None:
        """Set the number of tokens that a row has in its current turn.

        text: the newest text (None: unchanged). cut: whether more text precedes it. over: whether the turn has ended.
        """
        with self._lock:
            self._turn_over[row] = over
            shown = self._texts[row]
            if text is not None and row < ROWS:
                shown = replace(shown, text=text[-TEXT:], cut=cut or len(text) > TEXT)
            finished = shown.finished or (over and 0 < self.purpose.turns <= shown.turn)
            self._texts[row] = replace(shown, tokens=self._tokens_before[row] + tokens, finished=finished)
            self._touch()

    def wrote(self, row: int, tokens: int, text: str) -> None:
        """End the turn of a row."""
        self.writes(row, tokens, text, over=True)
        with self._lock:
            self._tokens_before[row] = self._texts[row].tokens

    def goes_on(self, row: int) -> None:
        with self._lock:
            self._turn_over[row] = False
            if self._tokens_before[row]:
                self._texts[row] = replace(self._texts[row], turn=self._texts[row].turn + 1, text="", cut=False)

    def close(self) -> None:
        with self._lock:
            self.ended, self._left = True, None
            self._texts = [replace(t, finished=True) for t in self._texts]
            self._touch()

    def finished(self, count: int) -> None:
        """Set the number of rollouts that their environment has ended."""
        with self._lock:
            self._finished = count
            self._touch()

    def judged(self, rewards: Sequence[float | None], correct: Sequence[bool | None]) -> None:
        """Set the rewards of all rows. Ignore a call with another number of rows."""
        if len(rewards) != self.rows:
            return
        finite = [r if r is not None and math.isfinite(r) else None for r in rewards]
        with self._lock:
            self._rewards = [r for r in finite if r is not None]
            self._texts = [
                replace(t, reward=r, correct=c) for t, r, c in zip(self._texts, finite, correct, strict=True)
            ]
            self._touch()

    def _touch(self) -> None:
        self._time, self.changed = time.time(), True

    def state(self) -> dict[str, Any]:
        """Return the batch in the form that the file holds."""
        with self._lock:
            self.changed = False
            return {
                "purpose": vars(self.purpose),
                "began": self._began,
                "time": self._time,
                "rollouts": self.rows,
                "finished": max(sum(t.finished for t in self._texts), self._finished),
                "tokens": sum(t.tokens for t in self._texts),
                "limit": self._limit,
                "left": self._left,
                "ended": self.ended,
                "rewards": self._rewards,
                "texts": [vars(t) for t in self._texts[:ROWS]],
            }


@dataclass
class LiveTexts:
    """The texts that one process is generating. servers: the state of rollout servers, as the fields of
    `ServerState`."""

    servers: Callable[[], Sequence[Mapping[str, object]]] | None = None
    _batches: list[BatchTexts] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _mine: threading.local = field(default_factory=threading.local)
    _servers: list[Mapping[str, object]] = field(default_factory=list)

    def purpose(self, name: str, step: int = 0, turns: int = 0, total: int = 0) -> None:
        """Set the `Purpose` of the next batches of this thread."""
        self._mine.purpose, self._mine.batch = Purpose(name, step, turns, total), None

    def begin(self, prompts: Sequence[str], num_rollouts: int, limit: int) -> BatchTexts:
        """Begin the rollouts of these prompts. limit: the maximum tokens of all rollouts together."""
        batch = BatchTexts(getattr(self._mine, "purpose", Purpose()), prompts, num_rollouts, limit)
        with self._lock:
            self._batches = [*[b for b in self._batches if not b.ended][1 - BATCHES :], batch]
        self._mine.batch = batch
        return batch

    @property
    def batch(self) -> BatchTexts | None:
        """The newest batch of this thread's purpose."""
        return getattr(self._mine, "batch", None)

    @property
    def changed(self) -> bool:
        """Whether a batch has changed since `news` last returned it."""
        with self._lock:
            return any(b.changed for b in self._batches)

    def news(self) -> dict[str, Any] | None:
        """Return the new content of the file; None if nothing has changed."""
        with self._lock:
            batches = list(self._batches)
        servers = list(self.servers()) if self.servers is not None else []
        if not any(b.changed for b in batches) and servers == self._servers:
            return None
        self._servers = servers
        return {"time": time.time(), "batches": [b.state() for b in batches], "servers": servers}


def live_file(run_dir: Path, process: str) -> Path:
    """Return the file of a process's live texts."""
    return run_dir / FOLDER / f"{process}.json"


def read_live(info: RunInfo) -> LiveState | None:
    """Return the live texts of an active run; None if there are none, the process is gone, or the file is damaged."""
    if not info.active:
        return None
    run_dir = Path(info.path)
    for process in ("training", "engine"):
        recorded, alive = read_json(live_file(run_dir, process)), read_json(run_dir / PROCESSES / f"{process}.json")
        # Ignore a file of an earlier process.
        if recorded and all(recorded.get(key) == alive.get(key) for key in IDENTITY):
            if (state := read_as(LiveState, recorded)) is None:
                return None
            return replace(state, batches=tuple(replace(b, texts=b.texts[:ROWS]) for b in state.batches[-BATCHES:]))
    return None


SHOWN = 20
"""The number of rollouts that are listed one by one: those in flight for the longest time."""
LAST = 512
"""The number of ended rollouts from which durations are computed."""


@dataclass(frozen=True)
class Flight:
    """One rollout in flight. `began` is in seconds since the epoch."""

    id: str
    what: str
    began: float


@dataclass(frozen=True)
class InFlight:
    """The rollouts in flight for viewers: the count, the rollouts with the longest first, and the durations in seconds
    of recently ended ones."""

    count: int
    longest: Sequence[Flight] = ()
    median: float | None = None
    p95: float | None = None
    ended: int = 0


class Flights:
    """Tracks rollouts. `begin` and `end` may be called from any thread, in any order. An id that begins twice counts
    once."""

    def __init__(self) -> None:
        self._open: dict[str, Flight] = {}
        self._durations: deque[float] = deque(maxlen=LAST)
        self._ended = 0
        self._lock = threading.Lock()

    def begin(self, id_: str, what: str = "") -> None:
        with self._lock:
            self._open[id_] = Flight(id_[:200], what[:200], time.time())

    def end(self, id_: str) -> None:
        """End a rollout. Ignore one that never began."""
        with self._lock:
            flight = self._open.pop(id_, None)
            if flight is not None:
                self._durations.append(max(0.0, time.time() - flight.began))
                self._ended += 1

    def state(self) -> dict[str, Any] | None:
        """Return the entry for the status file; None if no rollout ever began."""
        with self._lock:
            if not self._open and not self._ended:
                return None
            longest = sorted(self._open.values(), key=lambda f: f.began)[:SHOWN]
            took = sorted(self._durations)
            half, slowest = (took[len(took) // 2], took[int(0.95 * (len(took) - 1))]) if took else (None, None)
            return asdict(InFlight(len(self._open), longest, half, slowest, self._ended))


def in_flight(facts: Mapping[str, object]) -> InFlight | None:
    """Read the rollouts in flight from the facts of a run; None if there are none or the file is damaged."""
    return read_as(InFlight, facts.get("in_flight"))
