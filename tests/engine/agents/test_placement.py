"""Where rollouts go, simulated: servers of two kinds, on a clock of the test's own."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from grpo_tui.engine.agents.remote import placement
from grpo_tui.engine.agents.remote.placement import Load, balance, better, spread

TOKENS, TURNS = 50, 4
PROMPTS, ROLLOUTS = 8, 8


@dataclass
class Clock:
    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Server:
    """`rate(n)`: tokens a second that each of n turns under way gets."""

    rate: Callable[[int], float]
    load: Load = field(default_factory=Load)
    left: dict[int, float] = field(default_factory=dict)

    def advance(self, seconds: float) -> None:
        speed = self.rate(len(self.left)) if self.left else 0.0
        self.left = {row: tokens - speed * seconds for row, tokens in self.left.items()}

    def next_end(self) -> float:
        return min(self.left.values()) / self.rate(len(self.left)) if self.left else float("inf")


def waits(seconds_a_token: float) -> Callable[[int], float]:
    """As slow whatever it has to do."""
    return lambda n: 1 / seconds_a_token


def shares(tokens_a_second: float) -> Callable[[int], float]:
    """What it can do is divided among all."""
    return lambda n: tokens_a_second / n


def step(clock: Clock, servers: list[Server], number: int, rng: random.Random) -> float:
    """Seconds of a step: all rollouts write `TURNS` turns each, with pauses of the environment in between."""
    began = clock.now
    loads = [s.load for s in servers]
    homes = spread(loads, PROMPTS, ROLLOUTS, number)
    done = [0] * len(homes)
    asked: dict[int, tuple[int, float, int]] = {}
    starts = [(clock.now, row) for row in range(len(homes))]
    while starts or asked:
        ends = [s.next_end() for s in servers]
        wait = min(*ends, starts[0][0] - clock.now if starts else float("inf"))
        for server in servers:
            server.advance(wait)
        clock.now += wait
        while starts and starts[0][0] <= clock.now + 1e-9:
            _, row = heapq.heappop(starts)
            homes[row] = better(loads, homes[row], ROLLOUTS)
            tokens = rng.randint(TOKENS // 2, TOKENS * 3 // 2)
            asked[row] = homes[row], loads[homes[row]].begin(), tokens
            servers[homes[row]].left[row] = tokens
        for place, server in enumerate(servers):
            for row in [r for r, tokens in server.left.items() if tokens <= 1e-6]:
                del server.left[row]
                home, start, tokens = asked.pop(row)
                assert home == place
                server.load.end(start, tokens)
                balance(loads)
                done[row] += 1
                if done[row] < TURNS:
                    heapq.heappush(starts, (clock.now + rng.uniform(0.0, 0.2), row))
    return clock.now - began


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(placement, "time", made)
    return made


def settled(clock: Clock, servers: list[Server], steps: int = 12) -> float:
    rng = random.Random(0)
    seconds = [step(clock, servers, n, rng) for n in range(steps)]
    return sum(seconds[steps // 2 :]) / (steps - steps // 2)


@pytest.mark.parametrize("slower", [2.0, 3.2, 10.0])
def test_a_slow_server_of_two_does_not_set_the_pace(clock: Clock, slower: float):
    alone = settled(clock, [Server(waits(0.02))])
    assert settled(clock, [Server(waits(0.02)), Server(waits(0.02 * slower))]) < 1.3 * alone
    whole = settled(clock, [Server(shares(1000 * (1 + 1 / slower)))])
    assert settled(clock, [Server(shares(1000)), Server(shares(1000 / slower))]) < 1.3 * whole


def test_equal_servers_are_all_used_also_one_that_was_slow_for_a_while(clock: Clock):
    servers = [Server(shares(1000)) for _ in range(3)]
    whole = settled(clock, [Server(shares(3000))])
    assert settled(clock, servers) < 1.3 * whole
    servers[1].rate = shares(200)
    assert settled(clock, servers) < 1.3 * whole * 3000 / 2200
    servers[1].rate = shares(1000)
    assert settled(clock, servers) < 1.3 * whole


def test_rollouts_of_a_prompt_stay_together_where_servers_are_alike():
    assert spread([Load(), Load()], 4, 3, 0) == [0] * 6 + [1] * 6
    assert [spread([Load(), Load()], 1, 4, first)[0] for first in (0, 1)] == [0, 1]
    assert spread([Load(share=0.2), Load()], 3, 4, 1) == [1] * 10 + [0] * 2
