"""Where rollouts go: to each server the share of them with which all servers take as long for a token.

A server's share is multiplied, with each turn that it finishes, by how much faster than the others it was. Where
servers slow down with their load, this ends when all are equally fast, which is the split that is done first; a server
that is slow however little it is asked ends with no share (the equilibrium of Wardrop, "Some theoretical aspects of
road traffic research", 1952). It needs no model of a server.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

REMEMBERED = 0.9
"""What counts of a turn's seconds and tokens after the next one."""
ALIKE = 1.25
"""Servers whose seconds a token differ by less are equally fast: chance alone makes such differences."""
MOST = 4.0
"""The largest difference that one turn can show."""
LEAST_SHARE = 1e-3
MOVE = 1.5
"""A rollout moves where its server has so many times the load of another: what is cached of it is lost then."""


@dataclass
class Load:
    """How fast a server is, and what it has to do. share: of rollouts, relative to that of the others."""

    share: float = 1.0
    seconds: float = 0.0
    tokens: float = 0.0
    turns: float = 0.0
    under_way: int = 0
    _begun: float = 0.0
    """The sum of the times at which turns that are under way began."""
    _mean: float = 0.0
    """Turns under way, averaged over about the time of a turn."""
    _averaged: float = field(default_factory=lambda: time.monotonic())

    def begin(self) -> float:
        """A turn begins; returns when."""
        now = self._average()
        self.under_way += 1
        self._begun += now
        return now

    def end(self, began: float, tokens: int = 0) -> None:
        """A turn that began then has ended, with so many tokens; 0: it failed."""
        now = self._average()
        self.under_way -= 1
        self._begun -= began
        if tokens:
            self.seconds = REMEMBERED * self.seconds + now - began
            self.tokens = REMEMBERED * self.tokens + tokens
            self.turns = REMEMBERED * self.turns + 1

    @property
    def pace(self) -> float | None:
        """Seconds a token, from when a turn is asked for; None before the first."""
        return self.seconds / self.tokens if self.tokens else None

    def slowness(self, usual_tokens: float) -> float | None:
        """The same, also from how long turns have been under way that should have so many tokens."""
        waited = (time.monotonic() - self._begun / self.under_way) / usual_tokens if self.under_way else 0.0
        known = max(self.pace or 0.0, waited)
        return known or None

    def crowd(self) -> float:
        """Turns under way for each unit of the share."""
        self._average()
        return self._mean / self.share

    def move(self, rollouts: int) -> None:
        """So many rollouts come (or go): they count before their turns do."""
        self._mean = max(0.0, self._mean + rollouts)

    def forget(self) -> None:
        """The server may be another one now."""
        self.share, self.seconds, self.tokens, self.turns = 1.0, 0.0, 0.0, 0.0

    def _average(self) -> float:
        now = time.monotonic()
        usual = self.seconds / self.turns if self.turns else 1.0
        kept = math.exp(-(now - self._averaged) / max(usual, 1e-3))
        self._mean = kept * self._mean + (1 - kept) * self.under_way
        self._averaged = now
        return now


def balance(loads: Sequence[Load]) -> None:
    """Change the shares a little, after a turn has ended."""
    turns = sum(load.turns for load in loads)
    usual_tokens = sum(load.tokens for load in loads) / turns if turns else 0.0
    working = [load for load in loads if load.under_way and usual_tokens]  # what another took long ago shows nothing
    known = [(load, slow, load.crowd() * load.share) for load in working if (slow := load.slowness(usual_tokens))]
    turns_now = sum(turns for _, _, turns in known)
    if len(known) < 2 or not turns_now:
        return
    mean = sum(slow * turns for _, slow, turns in known) / turns_now
    if all(mean / ALIKE < slow < mean * ALIKE for _, slow, _ in known):
        return
    written = sum(turns / slow for _, slow, turns in known)
    shared = sum(load.share for load, _, _ in known)
    follow = 1 / max(16, sum(load.under_way for load in loads))
    for load, slow, turns in known:
        load.share += follow * (shared * turns / slow / written - load.share)
    top = max(load.share for load in loads)
    for load in loads:
        load.share = max(load.share / top, LEAST_SHARE)


def spread(loads: Sequence[Load], prompts: int, rollouts: int, first: int) -> list[int]:
    """The server of each rollout, by number: prompt-major, each server a run of them as long as its share.

    Rollouts of one prompt stay together, where it is cached, as long as servers are about equally fast. first: the
    server that comes first.
    """
    count = prompts * rollouts
    order = [(first + i) % len(loads) for i in range(len(loads))]
    total, crowds = sum(load.share for load in loads), [load.crowd() * load.share for load in loads]
    due = [max(0.0, loads[i].share / total * (count + sum(crowds)) - crowds[i]) for i in order]
    scale = count / sum(due) if sum(due) else 0.0
    unit = rollouts if _alike(loads) else 1
    placed: list[int] = []
    reached = 0.0
    for number, server in enumerate(order):
        reached += due[number] * scale
        end = count if number == len(order) - 1 else min(count, int(reached / unit + 0.5) * unit)
        loads[server].move(max(0, end - len(placed)))
        placed += [server] * (end - len(placed))
    return placed


def better(loads: Sequence[Load], home: int, rollouts: int) -> int:
    """Where a rollout that is at home there should write its next turn. rollouts: of its prompt; servers that are alike
    may differ by so many."""
    best = min(range(len(loads)), key=lambda i: (loads[i].crowd() + 1 / loads[i].share, i != home))
    slack = rollouts if _alike(loads) else 0
    if best == home or loads[home].crowd() - slack <= MOVE * (loads[best].crowd() + 1 / loads[best].share):
        return home
    loads[home].move(-1)
    loads[best].move(1)
    return best


def _alike(loads: Sequence[Load]) -> bool:
    return min(load.share for load in loads) * MOVE >= max(load.share for load in loads)
