"""Times in which the policy cannot answer: who is told of them, and when."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...agents.remote.news import event_of

TOLD_AFTER_S = 3.0
"""A shorter absence is none: a server that is asked again is back after two seconds."""


class Absence:
    """wait_s: how long callers wait before they are turned back. event: see `RecordKeeper.event`."""

    def __init__(self, wait_s: float, event: Callable[..., Any]) -> None:
        self._wait_s = wait_s
        self._event = event
        self._since: float | None = None
        self._told = ""

    def look(self, why: str) -> str | None:
        """Hear why the policy is away now (empty: it is not), and tell the record of what lasts or has ended.

        Gives the reason once it has lasted for so long that callers are turned back, else None.
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
                f"Nothing can be answered: {why}. Requests wait; callers are turned back after {self._wait_s:g} s.",
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
