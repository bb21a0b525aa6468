"""The engine's watch over the update worker and over the availability of the policy."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ....configs.sections.online import OnlineConfig
from ...agents.remote.pool import event_of
from ...runs.control.requests import request
from ...runs.control.status import ENDED, is_elsewhere, process_state
from ..store.update_queue import QueueError, UpdateQueue

log = logging.getLogger(__name__)

TOLD_AFTER_S = 3.0
"""A shorter absence is not reported: a failed server is asked again after two seconds."""
DRAIN_S = 120.0
"""How long an engine without further requests waits for the worker to empty the queue."""
VALIDATE_S = 120.0
"""How long it then waits for the last updates to be validated and published."""


class Absence:
    """Reports times in which the policy is unavailable.

    wait_s: how long callers wait before they are refused. event: see `RecordKeeper.event`.
    """

    def __init__(self, wait_s: float, event: Callable[..., Any]) -> None:
        self._wait_s = wait_s
        self._event = event
        self._since: float | None = None
        self._reported = ""

    def look(self, why: str) -> str | None:
        """Process the present reason why the policy is unavailable (empty: it is available), and report its begin and
        end.

        Returns the reason once it has lasted for `wait_s`, else None.
        """
        now = time.monotonic()
        lasted = 0.0 if self._since is None else now - self._since
        if not why:
            if self._reported:
                self._report(f"Requests are answered again, after {lasted:.0f} s.", good=True)
            self._since, self._reported = None, ""
            return None
        self._since = self._since or now
        if lasted >= TOLD_AFTER_S and why != self._reported:
            self._reported = why
            refused = f"Requests wait. Callers are refused after {self._wait_s:g} s."
            self._report(f"Nothing can be answered: {why}. {refused}", good=False)
        return why if lasted >= self._wait_s else None

    def _report(self, sentence: str, *, good: bool) -> None:
        kind, facts = event_of(good)
        self._event(kind, sentence, **facts)


class WorkerWatch:
    """The update worker as the engine sees it. `keep` maintains the record while the engine waits for the worker."""

    def __init__(
        self,
        run_dir: Path,
        config: OnlineConfig,
        queue: UpdateQueue,
        event: Callable[..., Any],
        keep: Callable[[], bool],
    ) -> None:
        self._run_dir = run_dir
        self._config = config
        self._queue = queue
        self._event = event
        self._keep = keep
        self._missed = False

    def _state(self) -> dict[str, Any]:
        return process_state(self._run_dir, "worker")

    @property
    def learns(self) -> bool:
        state = self._state()
        return self._config.updates and bool(state["alive"] or state["launcher_alive"])

    def look(self) -> None:
        """Report the death of the worker once."""
        state = self._state()
        dead = bool(state.get("pid")) and not state["alive"] and state.get("status") not in ENDED[:2]
        if dead and not self._missed and self._config.updates:
            message = "The update worker has died (logs/worker.log): serving continues, but nothing is learnt."
            self._event("alert", message, detector="update_worker")
            log.error("%s", message)
        self._missed = dead

    def finish(self) -> None:
        """Let the worker empty the queue and validate the last updates, then stop it. On a shared queue, learning
        continues for other engines.
        """
        if self._config.updates:
            message = "No request is left. Waiting tasks are learnt from."
            self._await(lambda: self._queue.depth() == 0, DRAIN_S, message)
            if self._config.validation.enabled and not self._config.is_shared:
                self._await(self._all_is_judged, VALIDATE_S, "The last updates are validated.")
        try:
            request(self._run_dir, "stop")
        except OSError:  # a full disk: a signal has the same effect
            state = self._state()
            if state["alive"] and state.get("started") and not is_elsewhere(state):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(state["pid"]), signal.SIGTERM)
        until = time.monotonic() + 30.0
        while self._state()["alive"] and time.monotonic() < until:
            self._keep()
            time.sleep(0.1)

    def _await(self, condition: Callable[[], bool], seconds: float, doing: str) -> None:
        """Wait until a condition holds, the worker is gone, the run is stopped, or the time is up."""
        until, reported = time.monotonic() + seconds, False
        while time.monotonic() < until and self._keep():
            try:
                if condition() or not self._state()["alive"]:
                    return
            except QueueError:
                return
            if not reported:
                reported = True
                self._event("phase", doing, name="ending")
            time.sleep(self._config.poll_interval_s)

    def _all_is_judged(self) -> bool:
        result = self._queue.get("validation")
        cannot_be = isinstance(result, dict) and "missing" in result
        return not self._queue.get("ending") and (cannot_be or self._queue.get("candidate") is None)
