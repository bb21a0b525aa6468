"""The state of one server of a pool, and the places of rollouts on servers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from .client import ServerClient
from .placement import Load
from .protocol import ServerBusy, ServerRefusal

NOT_ASKED = "it has not been queried yet"
FORGIVEN = 64
"""After this many turns without a failure, earlier failures do not count."""


@dataclass
class Server:
    """One server of the pool.

    why_out: empty while it is in. refusal: set if waiting does not help. retried: whether a task tries to readmit it.
    failures: in a row, with fewer than `FORGIVEN` turns (`since_failure`) in between. heard: time of its last answer.
    """

    client: ServerClient
    why_out: str = NOT_ASKED
    refusal: ServerRefusal | None = None
    retried: bool = False
    load: Load = field(default_factory=Load)
    failures: int = 0
    turns: int = 0
    tokens: int = 0
    since_failure: int = 0
    heard: float = 0.0
    busy_until: float = 0.0
    pauses: int = 0
    left: bool = False
    slow: bool = False
    """Whether its slowness was reported."""
    mismatch: float | None = None
    behind: float | None = None
    _paused_at: float = 0.0

    @property
    def up(self) -> bool:
        return not self.why_out

    @property
    def url(self) -> str:
        return self.client.url

    def pause(self, busy: ServerBusy, sent: float) -> None:
        """Record a requested pause. Requests sent together count once. sent: the time of the request."""
        if sent >= self._paused_at:
            self.pauses += 1
            self._paused_at = time.monotonic()
        self.busy_until = max(self.busy_until, time.monotonic() + busy.pause_s(self.pauses - 1))

    def answered(self, sent: float, tokens: int) -> None:
        self.heard = time.monotonic()
        self.turns += 1
        self.tokens += tokens
        self.since_failure += 1
        if sent >= self._paused_at:
            self.pauses = 0
        if self.since_failure >= FORGIVEN:
            self.failures = 0


@dataclass(frozen=True)
class Standing:
    """The number of available servers, and the reason for each unavailable one by address."""

    up: int
    all: int
    out: Mapping[str, str]

    @property
    def reasons(self) -> str:
        return "; ".join(f"{url}: {reason}" for url, reason in self.out.items())


@dataclass
class Homes:
    """The servers of a session's rollouts, prompt-major; empty before its first turn. turn: the session's number."""

    prompts: int
    rollouts: int
    turn: int
    servers: list[Server] = field(default_factory=list)
