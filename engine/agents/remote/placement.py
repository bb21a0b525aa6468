"""Distributes rollouts over servers so that all servers take equally long per token.

After each turn, a server's share is multiplied by its relative speed. If servers slow down with their load, this
converges to equal speeds. A server that is always slow ends up with almost no share (the equilibrium of Wardrop, "Some
theoretical aspects of road traffic research", 1952). No model of a server is needed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

REMEMBERED = 0.9
"""Decay of a turn's seconds and tokens with each later turn."""
ALIKE = 1.25
"""Servers within this ratio of seconds per token count as equally fast."""
MOST = 4.0
"""The largest speed ratio that one turn can show."""
LEAST_SHARE = 1e-3
MOVE = 1.5
"""A rollout moves if its server has this many times the load of another. Moving costs the rollout its cache."""


@dataclass
class Load:
    """The speed and the work of a server. share: of the rollouts, relative to other servers."""

    share: float = 1.0
    seconds: float = 0.0
    tokens: float = 0.0
    turns: float = 0.0
    in_flight: int = 0
    _start_times: float = 0.0
    """Sum of the start times of running turns."""
    _mean: float = 0.0
    """Running turns, averaged over about the duration of a turn."""
    _averaged: float = field(default_factory=lambda: time.monotonic())

    def begin(self) -> float:
        now = self._average()
        self.in_flight += 1
        self._start_times += now
        return now

    def end(self, started: float, tokens: int = 0) -> None:
        """End a turn with this many tokens (0: it failed)."""
        now = self._average()
        self.in_flight -= 1
        self._start_times -= started
        if tokens:
            self.seconds = REMEMBERED * self.seconds + now - started
            self.tokens = REMEMBERED * self.tokens + tokens
            self.turns = REMEMBERED * self.turns + 1

    @property
    def pace(self) -> float | None:
        """Seconds per token since the request; None before the first turn."""
        return self.seconds / self.tokens if self.tokens else None

    def slowness(self, usual_tokens: float) -> float | None:
        """Return seconds per token, including running turns with an assumed number of tokens."""
        waited = (time.monotonic() - self._start_times / self.in_flight) / usual_tokens if self.in_flight else 0.0
        known = max(self.pace or 0.0, waited)
        return known or None

    def crowd(self) -> float:
        """Return the running turns per unit of share."""
        self._average()
        return self._mean / self.share

    def move(self, rollouts: int) -> None:
        """Count rollouts that come (or leave) before their turns do."""
        self._mean = max(0.0, self._mean + rollouts)

    def forget(self) -> None:
        self.share, self.seconds, self.tokens, self.turns = 1.0, 0.0, 0.0, 0.0

    def _average(self) -> float:
        now = time.monotonic()
        usual = self.seconds / self.turns if self.turns else 1.0
        kept = math.exp(-(now - self._averaged) / max(usual, 1e-3))
        self._mean = kept * self._mean + (1 - kept) * self.in_flight
        self._averaged = now
        return now


def balance(loads: Sequence[Load]) -> None:
    """Adjust the shares after a turn."""
    turns = sum(load.turns for load in loads)
    usual_tokens = sum(load.tokens for load in loads) / turns if turns else 0.0
    working = [load for load in loads if load.in_flight and usual_tokens]  # idle servers only have old measurements
    known = [(load, slow, load.crowd() * load.share) for load in working if (slow := load.slowness(usual_tokens))]
    turns_now = sum(turns for _, _, turns in known)
    if len(known) < 2 or not turns_now:
        return
    mean = sum(slow * turns for _, slow, turns in known) / turns_now
    if all(mean / ALIKE < slow < mean * ALIKE for _, slow, _ in known):
        return
    written = sum(turns / slow for _, slow, turns in known)
    shared = sum(load.share for load, _, _ in known)
    follow = 1 / max(16, sum(load.in_flight for load in loads))
    for load, slow, turns in known:
        load.share += follow * (shared * turns / slow / written - load.share)
    top = max(load.share for load in loads)
    for load in loads:
        load.share = max(load.share / top, LEAST_SHARE)


def spread(loads: Sequence[Load], prompts: int, rollouts: int, first: int) -> list[int]:
    """Return the server index of each rollout, prompt-major, in runs as long as each server's share.

    Rollouts of one prompt share a server and its cache while servers are about equally fast. first: the first server.
    """
    count = prompts * rollouts
    order = [(first + i) % len(loads) for i in range(len(loads))]
    total, crowds = sum(load.share for load in loads), [load.crowd() * load.share for load in loads]
    due = [max(0.0, loads[i].share / total * (count + sum(crowds)) - crowds[i]) for i in order]
    scale = count / sum(due) if sum(due) else 0.0
    unit = rollouts if _similar(loads) else 1
    placed: list[int] = []
    reached = 0.0
    for number, server in enumerate(order):
        reached += due[number] * scale
        end = count if number == len(order) - 1 else min(count, int(reached / unit + 0.5) * unit)
        loads[server].move(max(0, end - len(placed)))
        placed += [server] * (end - len(placed))
    return placed


def better(loads: Sequence[Load], home: int, rollouts: int) -> int:
    """Return the server for a rollout's next turn. rollouts: number of rollouts of its prompt, by which the loads of
    similar servers may differ."""
    best = min(range(len(loads)), key=lambda i: (loads[i].crowd() + 1 / loads[i].share, i != home))
    margin = rollouts if _similar(loads) else 0
    if best == home or loads[home].crowd() - margin <= MOVE * (loads[best].crowd() + 1 / loads[best].share):
        return home
    loads[home].move(-1)
    loads[best].move(1)
    return best


def _similar(loads: Sequence[Load]) -> bool:
    return min(load.share for load in loads) * MOVE >= max(load.share for load in loads)
