"""Write the status file of one process of a run, and the file of its newest texts."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..control.live import IDENTITY, Flights, LiveTexts, live_file
from ..control.status import ENDED, HEARTBEAT_SECONDS, identity, write_state
from ..durable import read_json, write_json
from ..paths import PROCESSES, RUN_FILE
from .sink import Sink, explain

log = logging.getLogger(__name__)

STATUS_SECONDS = 0.5


class ProcessState:
    """Status, phase, rollouts in flight and live texts of a process. `lock` guards fields that several threads set."""

    def __init__(self, run_dir: Path, process: str, sink: Sink, lock: threading.Condition) -> None:
        self.run_dir = run_dir
        self.process = process
        self.flights = Flights()
        self.live = LiveTexts()
        self.dirty = True
        """Whether there are changes that are not on disk."""
        self.warning: str | None = None
        """The last report about the record while the disk refuses it."""
        self._sink = sink
        self._lock = lock
        self._state: dict[str, Any] = {"process": process, **identity(), "status": "starting", "step": 0}
        self._durations: dict[str, float] = {}
        """The last duration of each phase in seconds."""
        self._written = 0.0

    @property
    def ended(self) -> bool:
        return self._state["status"] in ENDED

    @property
    def step(self) -> int:
        return int(self._state["step"])

    def heard(self) -> None:
        """Note that the process just reported something."""
        self._state["heard"] = time.time()

    def set(self, changes: Mapping[str, object]) -> bool:
        """Set the status and any other given fields. Return whether viewers must see them at once."""
        urgent = changes["status"] != self._state["status"] or "error" in changes
        self._state.update(changes)
        self.heard()
        self._state.pop("ended", None)
        if self.ended:
            self._state["ended"] = time.time()
        self.dirty = True
        return urgent

    def progress(self, phase: str, done: int, total: int) -> None:
        before = self._state.get("progress", {})
        started = time.time()
        if before.get("phase") == phase and before["done"] <= done:
            started = before["began"]
        elif before:
            self._durations[before["phase"]] = started - before["began"]
        took = self._durations.get(phase)
        self._state["progress"] = {"phase": phase, "done": done, "total": total, "began": started, "took": took}
        self.heard()
        self.dirty = True

    def announce(self) -> None:
        """Create the folder, `run.json` if no launcher did, and the status file. Never raises."""
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            if not read_json(self.run_dir / RUN_FILE):
                write_json(self.run_dir / RUN_FILE, {"id": self.run_dir.name, "created": time.time(), "mode": ""})
        except OSError as error:
            log.warning("record: %s", explain(error, self.run_dir))
        self.write(0, final=True)

    def write(self, dropped: int, *, final: bool = False, hurry: bool = False) -> None:
        """Write the status file if it is due or `final`. `hurry`: whether a caller waits for it."""
        now = time.monotonic()
        with self._lock:
            if self._sink.step > self._state["step"]:
                self._state["step"] = self._sink.step
                self.dirty = True
            silent = now - self._written
            # Write with every change of the live texts, which must not be ahead of the phase that viewers show above.
            due = self.dirty and (hurry or self.live.changed or silent >= STATUS_SECONDS)
            if not (final or due or silent >= HEARTBEAT_SECONDS):
                return
            state = dict(self._state)
            self.dirty = False
        if (flying := self.flights.state()) is not None:
            state["in_flight"] = flying
        self._written = now
        if self._sink.trajectories is not None:
            state["trajectories"] = self._sink.trajectories
        if self._sink.trouble.now is None:
            self.warning = None
        else:
            state["trouble"] = self.warning or self._sink.trouble.sentence
        state.update(time=time.time(), dropped=dropped, summary=self._sink.summary.to_json())
        try:
            if self.run_dir.is_dir():  # a removed folder stays removed
                write_state(self.run_dir / PROCESSES / f"{self.process}.json", state)
        except OSError as error:
            log.debug("status not written: %s", error)

    def write_live(self) -> None:
        live = self.live.news()
        if live is None or not self.run_dir.is_dir():
            return
        try:
            identity_ = {key: self._state.get(key) for key in IDENTITY}
            write_json(live_file(self.run_dir, self.process), {**identity_, **live})
        except OSError as error:
            log.debug("the newest texts were not written: %s", error)

    def remove_live(self) -> None:
        with suppress(OSError):
            live_file(self.run_dir, self.process).unlink()
