"""Background validation as the engine's child: started when there is something to validate, and again when it dies.

It outlives an update worker that is killed, and never the engine (`process.end_with_parent`).
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable

from ...launch.children import spawn
from ..store.folder import OnlineFolder
from ..store.update_queue import QueueError, UpdateQueue

RESTART_S = 10.0
"""The pause before background validation that died is started again."""


class ValidationProcess:
    """`tell` gets one sentence when it has died."""

    def __init__(self, folder: OnlineFolder, queue: UpdateQueue, tell: Callable[[str], None]) -> None:
        self.folder = folder
        self.queue = queue
        self.tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._died: float | None = None

    def keep_alive(self) -> None:
        """Start it if a candidate of this machine waits, and again some seconds after it died."""
        if self._process is None:
            if self._waits():
                self._process = self._start()
        elif self._process.poll() is not None:
            if self._died is None:
                self._died = time.monotonic()
                self.tell(
                    "Validation has died (logs/validation.log) and is started again; until then nothing new answers."
                )
            elif time.monotonic() - self._died >= RESTART_S:
                self._died = None
                self._process = self._start()

    def _waits(self) -> bool:
        """Where machines share a queue, only one of them has the candidate's state: that of the worker at work."""
        try:
            candidate = self.queue.get("candidate")
        except QueueError:
            return False
        return isinstance(candidate, dict) and (self.folder.state / str(candidate.get("state"))).exists()

    def _start(self) -> subprocess.Popen[bytes] | None:
        run_dir = self.folder.run_dir
        module = "grpo_tui.engine.online.learn.validator"
        command = [sys.executable, "-m", module, str(run_dir), "--child"]
        try:
            return spawn(run_dir, "validation", command, stdin=subprocess.PIPE)
        except OSError:  # a full disk, no memory: the next time
            return None

    def stop(self) -> None:
        """End it: it holds nothing that a kill could harm."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
