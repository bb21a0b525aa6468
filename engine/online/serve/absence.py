"""Reports times in which the policy is unavailable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...agents.remote.pool import event_of

TOLD_AFTER_S = 3.0
"""Shorter times are not reported: a failed server is asked again after two seconds."""


class Absence:
    """wait_s: how long callers wait before they are refused. event: see `RecordKeeper.event`."""

    def __init__(self, wait_s: float, event: Callable[..., Any]) -> None:
        self._wait_s = wait_s
        self._event = event
        self._since: float | None = None
        self._told = ""

    def look(self, why: str) -> str | None:
        """Process the present reason why the policy is unavailable (empty: it is available), and report its begin and
        end.

        Returns the reason once it has lasted for `wait_s`, else None.
        """
        now = time.monotonic()
        if not why:
            self._end(now)
            return None
        if self._since is None:
            self._since = now
        lasted = now - self._since
        if lasted >= TOLD_AFTER_S and why != self._told:
            self._told = why
            self._say(
                f"Nothing can be answered: {why}. Requests wait. Callers are refused after {self._wait_s:g} s.",
                good=False,
            )
        return why if lasted >= self._wait_s else None

    def _end(self, now: float) -> None:
        if self._told and self._since is not None:
            self._say(f"Requests are answered again, after {now - self._since:.0f} s.", good=True)
        self._since, self._told = None, ""

    def _say(self, sentence: str, *, good: bool) -> None:
        kind, facts = event_of(good)
        self._event(kind, sentence, **facts)
