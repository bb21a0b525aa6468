"""The engine's monitoring of the update worker, of validation and of the policy's availability."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....configs.sections.online import OnlineConfig
from ...agents.remote.pool import record_change
from ...launch.children import spawn
from ...runs.control.requests import request
from ...runs.control.status import ENDED, is_elsewhere, process_state
from ...runs.paths import OnlineFolder
from ..store.update_queue import QueueError, UpdateQueue
from .answers import UNSCORED, Answer

log = logging.getLogger(__name__)

TOLD_AFTER_S = 3.0
"""A shorter outage is not reported: a failed server is asked again after two seconds."""
DRAIN_S = 120.0
"""An engine without further requests waits this long for the worker to empty the queue."""
VALIDATE_S = 120.0
"""Then it waits this long for the last updates to be validated and published."""
RESTART_S = 10.0
"""Pause before validation restarts. It triples with each further failure."""
ATTEMPTS = 3
"""Validation is not restarted after this many failures in a row without progress."""
FAILURES = 5
"""Number of requests in a row that fail in the environment or reward functions before this is reported."""


@dataclass
class Absence:
    """Reports when the policy becomes unavailable and available again.

    wait_s: how long callers wait before they are refused. event: see `RecordKeeper.event`.
    """

    wait_s: float
    event: Callable[..., object]
    _since: float | None = None
    _reported: str = ""

    def look(self, reason: str) -> str | None:
        """Report the beginning and end of an outage. Returns the reason once the outage has lasted `wait_s`, else None.

        reason: why the policy is unavailable now; empty if it is available.
        """
        now = time.monotonic()
        seconds = 0.0 if self._since is None else now - self._since
        if not reason:
            if self._reported:
                record_change(self.event, f"Requests are answered again, after {seconds:.0f} s.", good=True)
            self._since, self._reported = None, ""
            return None
        self._since = self._since or now
        if seconds >= TOLD_AFTER_S and reason != self._reported:
            self._reported = reason
            refused = f"They wait and are refused after {self.wait_s:g} s."
            record_change(self.event, f"Requests cannot be answered: {reason}. {refused}", good=False)
        return reason if seconds >= self.wait_s else None


@dataclass
class WorkerWatch:
    """The engine's view of the update worker. keep: maintains the record while the engine waits for the worker; returns
    False once the run is stopped.
    """

    run_dir: Path
    config: OnlineConfig
    queue: UpdateQueue
    event: Callable[..., object]
    keep: Callable[[], bool]
    _missed: bool = False

    def _state(self) -> dict[str, Any]:
        return process_state(self.run_dir, "worker")

    @property
    def learns(self) -> bool:
        state = self._state()
        return self.config.updates and bool(state["alive"] or state["launcher_alive"])

    def look(self) -> None:
        """Report once if the worker has died."""
        state = self._state()
        dead = bool(state.get("pid")) and not state["alive"] and state.get("status") not in ENDED[:2]
        if dead and not self._missed and self.config.updates:
            message = "The update worker has died (logs/worker.log): serving continues, but nothing is learned."
            self.event("alert", message, detector="update_worker")
            log.error("%s", message)
        self._missed = dead

    def finish(self) -> None:
        """Let the worker empty the queue and validate the last updates, then stop it. With a shared queue, learning
        continues for other engines.
        """
        if self.config.updates:
            message = "No request is left. Learning from the waiting tasks."
            self._await(lambda: self.queue.depth() == 0, DRAIN_S, message)
            if self.config.validation.enabled and not self.config.is_shared:
                self._await(self.all_validated, VALIDATE_S, "Validating the last updates.")
        try:
            request(self.run_dir, "stop")
        except OSError:  # a full disk: a signal has the same effect
            state = self._state()
            if state["alive"] and state.get("started") and not is_elsewhere(state):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(state["pid"]), signal.SIGTERM)
        until = time.monotonic() + 30.0
        while self._state()["alive"] and time.monotonic() < until:
            self.keep()
            time.sleep(0.1)

    def _await(self, condition: Callable[[], bool], seconds: float, phase: str) -> None:
        """Wait until a condition holds, the worker is gone, the run is stopped, or the time is up."""
        until, reported = time.monotonic() + seconds, False
        while time.monotonic() < until and self.keep():
            try:
                if condition() or not self._state()["alive"]:
                    return
            except QueueError:
                return
            if not reported:
                reported = True
                self.event("phase", phase, name="ending")
            time.sleep(self.config.poll_interval_s)

    def all_validated(self) -> bool:
        """Return whether validation has nothing left to do, or can do nothing."""
        result = self.queue.get("validation")
        if isinstance(result, dict) and "missing" in result:  # nothing can be validated
            return True
        return not self.queue.get("ending") and self.queue.get("candidate") is None


@dataclass
class ValidationProcess:
    """Background validation as a child of the engine: started when a candidate waits, and restarted when it dies.

    The pauses between restarts grow, and after `ATTEMPTS` failures in a row it stays off. Kills do not count. The last
    failure is stored as the waiting candidate's result, which the worker reports. The child outlives a killed worker
    and ends with the engine (`process.end_with_parent`). tell: receives a message when it has died.
    """

    folder: OnlineFolder
    queue: UpdateQueue
    tell: Callable[[str], None]
    _process: subprocess.Popen[bytes] | None = None
    _died: float | None = None
    _failures: int = 0
    _found: object = None
    """Validation's entries in the queue at its last death."""

    def keep_alive(self) -> None:
        """Start validation if a candidate on this machine waits, and restart it after it has died."""
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
        found = self._fact("validating"), self._fact("validation")
        failed = code > 0  # otherwise it was killed or stopped
        self._failures = 0 if not failed else 1 if found != self._found else self._failures + 1
        self._died, self._found = time.monotonic(), found
        if self._failures <= 1:
            self.tell(
                "Validation has died (logs/validation.log) and is restarted. Until then no new version is served."
            )

    def _give_up(self) -> None:
        """Store the reason as the result of the waiting candidate, if that is on this machine."""
        state = self._fact("candidate").get("state")
        if not self._waits() or self._fact("validation").get("state") == state:
            return
        reason = str(process_state(self.folder.run_dir, "validation").get("error") or "see logs/validation.log")
        missing = f"validation failed {ATTEMPTS} times and is off until the run is resumed. The last error: "
        with contextlib.suppress(QueueError):  # a full disk: try again next time
            self.queue.set(validation={"state": state, "missing": missing + reason.rstrip(".")})

    def _fact(self, key: str) -> dict[str, Any]:
        """Return a fact of the queue; empty if there is none, or if the queue cannot be read now."""
        with contextlib.suppress(QueueError):
            return self.queue.get(key) or {}
        return {}

    def _waits(self) -> bool:
        """Return whether a candidate waits here. With a shared queue, its state is on the active worker's machine."""
        candidate = self._fact("candidate")
        return bool(candidate) and (self.folder.state / candidate["state"]).exists()

    def _start(self) -> subprocess.Popen[bytes] | None:
        run_dir = self.folder.run_dir
        if "missing" in self._fact("validation"):  # from an earlier start, perhaps with other settings
            with contextlib.suppress(QueueError):
                self.queue.set(validation=None)
        module = "grpo_tui.engine.online.learn.validator"
        command = [sys.executable, "-m", module, str(run_dir), "--child"]
        try:
            return spawn(run_dir, "validation", command, stdin=subprocess.PIPE)
        except OSError:  # a full disk, no memory: try again next time
            return None

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass
class FailureWatch:
    """Reports an environment or reward functions that fail for every request, once per series of failures.

    event: see `RecordKeeper.event`.
    """

    event: Callable[..., object]
    _consecutive: int = 0

    def look(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            unscored = answer.gate.reason.startswith(UNSCORED)
            self._consecutive = self._consecutive + 1 if answer.error or unscored else 0
            if self._consecutive == FAILURES:
                message = f"The last {FAILURES} requests all failed in the environment: {answer.error}"
                if unscored:
                    message = f"Nothing is learned from the last {FAILURES} requests: {answer.gate.reason}"
                evidence = [s.trajectory.id for s in answer.samples if s.trajectory is not None]
                detector = "reward_functions" if unscored else "environment"
                self.event("alert", message, detector=detector, trajectories=evidence)
