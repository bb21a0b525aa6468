"""Background validation as the engine's child: started when a candidate waits, and restarted when it dies.

After `ATTEMPTS` failures in a row, with growing pauses, it is not restarted. A kill does not count. It outlives a
killed worker and ends with the engine (`process.end_with_parent`).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable

from ...launch.children import spawn
from ...runs.control.status import process_state
from ..store.folder import OnlineFolder
from ..store.update_queue import QueueError, UpdateQueue

RESTART_S = 10.0
"""Pause before a restart, three times as long after each further failure."""
ATTEMPTS = 3
"""Failures in a row, without progress in between, after which it is not restarted."""


class ValidationProcess:
    """`tell` receives a message when it has died. The final failure is stored as the result of the waiting candidate,
    which the worker reports.
    """

    def __init__(self, folder: OnlineFolder, queue: UpdateQueue, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.queue = queue
        self.tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._died: float | None = None
        self._failures = 0
        self._found: object = None
        """The content of the queue at its last death."""

    def keep_alive(self) -> None:
        """Start it if a candidate of this machine waits, and restart it after it died."""
        if self._process is None:
            if self._waits():
                self._process = self._start()
        elif self._process.poll() is None:
            return
        elif self._died is None:
            self._note_death(self._process.returncode)
        elif self._failures >= ATTEMPTS:
            self._give_up()
        elif time.monotonic() - self._died >= RESTART_S * 3 ** max(0, self._failures - 1):
            self._died = None
            self._process = self._start()

    def _note_death(self, code: int) -> None:
        found = self._in_queue("validating"), self._in_queue("validation")
        failed = code > 0  # else it was killed, or stopped
        self._failures = 0 if not failed else 1 if found != self._found else self._failures + 1
        self._died, self._found = time.monotonic(), found
        if self._failures <= 1:
            self.tell(
                "Validation has died (logs/validation.log) and is started again. Until then no new version serves."
            )

    def _give_up(self) -> None:
        """Store the reason as the result of the waiting candidate, if it is of this machine."""
        candidate, result = self._in_queue("candidate"), self._in_queue("validation")
        if not self._waits() or not isinstance(candidate, dict):
            return
        if isinstance(result, dict) and result.get("state") == candidate["state"]:
            return
        reason = str(process_state(self.folder.run_dir, "validation").get("error") or "see logs/validation.log")
        missing = f"validation failed {ATTEMPTS} times and is off until the run is resumed. The last error: "
        with contextlib.suppress(QueueError):  # a full disk: the next time
            self.queue.set(validation={"state": candidate["state"], "missing": missing + reason.rstrip(".")})

    def _in_queue(self, key: str) -> object:
        try:
            return self.queue.get(key)
        except QueueError:
            return None

    def _waits(self) -> bool:
        """Whether a candidate waits here. On a shared queue, only the active worker's machine has its state."""
        candidate = self._in_queue("candidate")
        return isinstance(candidate, dict) and (self.folder.state / str(candidate.get("state"))).exists()

    def _start(self) -> subprocess.Popen[bytes] | None:
        run_dir = self.folder.run_dir
        found = self._in_queue("validation")
        if isinstance(found, dict) and "missing" in found:  # said in an earlier life, perhaps of another configuration
            with contextlib.suppress(QueueError):
                self.queue.set(validation=None)
        module = "grpo_tui.engine.online.learn.validator"
        command = [sys.executable, "-m", module, str(run_dir), "--child"]
        try:
            return spawn(run_dir, "validation", command, stdin=subprocess.PIPE)
        except OSError:  # a full disk, no memory: the next time
            return None

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
