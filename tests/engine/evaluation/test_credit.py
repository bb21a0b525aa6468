"""The credit benchmark against brute force: values by listing every episode, ranks by their definition."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from benchmarks.credit import WORLDS, State, Turn, World, credit_error, estimates, measure, play


def every_return(world: World, state: State | None) -> Iterator[tuple[float, float]]:
    """All episodes from a state on: probability and return."""
    if state is None:
        yield 1.0, 0.0
        return
    for action, p in enumerate(world.policy(state)):
        for o in world.outcomes(state, action):
            for chance, rest in every_return(world, o.state):
                yield p * o.chance * chance, o.goal + o.penalty + rest


@pytest.mark.parametrize("kind", WORLDS)
def test_true_advantages_equal_those_of_all_episodes(kind: type[World]) -> None:
    world = kind(3)
    world.turns = min(world.turns, 4)
    for turn in play(world, world.start(1), random.Random(5)):
        v = sum(p * r for p, r in every_return(world, turn.state))
        q = sum(
            o.chance * (o.goal + o.penalty + sum(p * r for p, r in every_return(world, o.state)))
            for o in world.outcomes(turn.state, turn.action)
        )
        assert turn.truth == pytest.approx(q - v, abs=1e-12)
        assert sum(p for p, _ in every_return(world, turn.state)) == pytest.approx(1.0)


def test_true_advantages_average_to_zero_under_the_policy() -> None:
    for kind in WORLDS:
        world = kind(1)
        state = world.start(0)
        pairs = zip(world.policy(state), range(world.actions), strict=True)
        assert sum(p * world.q(state, a) for p, a in pairs) == pytest.approx(world.v(state))


def ranks(values: list[float]) -> list[float]:
    """Rank of each value: one more than the smaller ones, ties in their middle."""
    return [1 + sum(w < v for w in values) + (sum(w == v for w in values) - 1) / 2 for v in values]


def correlation(a: list[float], b: list[float]) -> float:
    n = len(a)
    x, y = [v - sum(a) / n for v in a], [v - sum(b) / n for v in b]
    return sum(p * q for p, q in zip(x, y, strict=True)) / (sum(p * p for p in x) * sum(q * q for q in y)) ** 0.5


def test_credit_error_is_one_minus_the_correlation_of_ranks() -> None:
    rng = random.Random(0)
    for _ in range(20):
        a, b = ([float(rng.randrange(5)) for _ in range(30)] for _ in "ab")
        assert credit_error(a, b) == pytest.approx(1 - correlation(ranks(a), ranks(b)))
    assert credit_error([1, 2, 3], [10, 20, 90]) == pytest.approx(0)
    assert credit_error([1, 2, 3], [3, 2, 1]) == pytest.approx(2)
    assert credit_error([1, 1, 1], [3, 2, 1]) == 1.0


def test_advantages_are_those_of_the_definitions() -> None:
    """One group of a world whose turns all pay at once."""
    world = WORLDS[2](0)
    source = random.Random(1)
    group = [play(world, world.start(0), source) for _ in range(4)]
    found = estimates(world, [group], source)
    rewards = [[t.goal for t in episode] for episode in group]
    totals = [sum(r) for r in rewards]
    mean = sum(totals) / 4
    std = (sum((t - mean) ** 2 for t in totals) / 3) ** 0.5
    expected = [(t - mean) / (std + 1e-4) for t, r in zip(totals, rewards, strict=True) for _ in r]
    assert found["group"] == pytest.approx(expected)
    assert found["reward"] == pytest.approx([x for r in rewards for x in r])
    later = [[sum(r[t:]) for r in rewards] for t in range(world.turns)]
    turn = []
    for i, r in enumerate(rewards):
        for t in range(len(r)):
            m = sum(later[t]) / 4
            s = (sum((x - m) ** 2 for x in later[t]) / 3) ** 0.5
            turn.append((later[t][i] - m) / (s + 1e-4))
    assert found["turn"] == pytest.approx(turn)


def test_the_truth_itself_has_no_error_and_branches_have_the_least() -> None:
    world = WORLDS[3](0)
    turns: list[Turn] = [t for p in range(4) for t in play(world, world.start(p), random.Random(p))]
    truths = [t.truth for t in turns]
    assert credit_error(truths, truths) == pytest.approx(0)
    errors = measure(WORLDS[3], 0, 8)
    assert min(errors, key=errors.__getitem__) == "branch"
