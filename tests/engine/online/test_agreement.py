"""Which source contradicts the others, from the directions of its updates."""

from __future__ import annotations

import json
from collections import Counter

import pytest
import torch

from grpo_tui.engine.online.learn.agreement import LEAST_UPDATES, MOST_SOURCES, SIZE, Agreement, sketch

NUMBERS = 3 * SIZE + 100
SIGNAL = 0.3
"""The cosine of one honest update with the common direction."""


def found(
    agreement: Agreement, wishes: dict[str, float], updates: int = 40, seed: int = 0, noise: float = 1.0
) -> Counter[str]:
    """How often each source was found to contradict. wishes: how far it wants to go in the common direction."""
    generator = torch.Generator().manual_seed(seed)
    common = torch.nn.functional.normalize(torch.randn(NUMBERS, generator=torch.Generator().manual_seed(7)), dim=0)
    flagged: Counter[str] = Counter()
    for _ in range(updates):
        for name, wish in wishes.items():
            own = torch.nn.functional.normalize(torch.randn(NUMBERS, generator=generator), dim=0)
            gradient = wish * SIGNAL * common + noise * own
            caller = name.partition("/")[0]
            levels = [caller, name] if "/" in name else [name]
            flagged[name] += agreement.contradicts(levels, [gradient[:1000].view(10, 100), gradient[1000:]])
    return flagged


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("names", [("a", "b", "c"), ("one/a", "one/b", "one/c")])
def test_one_of_three_sources_that_reverses_its_feedback_is_found(seed: int, names: tuple[str, ...]) -> None:
    flagged = found(Agreement(), dict(zip(names, (-1.0, 1.0, 1.0), strict=True)), seed=seed)
    assert flagged[names[0]] >= 20
    assert flagged[names[1]] == flagged[names[2]] == 0


def test_two_of_five_that_reverse_are_found() -> None:
    flagged = found(Agreement(), {"a": 1, "b": -1, "c": 1, "d": -1, "e": 1})
    assert min(flagged["b"], flagged["d"]) >= 15
    assert flagged["a"] == flagged["c"] == flagged["e"] == 0


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("wish", [0.0, 1.0])
def test_honest_sources_are_not_found_whether_they_agree_or_want_unrelated_things(seed: int, wish: float) -> None:
    flagged = found(Agreement(), dict.fromkeys("abcd", wish), seed=seed)
    assert flagged.total() <= (0 if wish else 8)  # of 160: chance, and not for long


def test_of_two_sources_neither_is_known_to_be_wrong() -> None:
    assert found(Agreement(), {"a": 1, "b": -1}).total() == 0


def test_invented_users_do_not_outvote_other_callers() -> None:
    users = {f"attacker/{i}": -1.0 for i in range(9)}
    flagged = found(Agreement(), {"honest/a": 1.0, "honest/b": 1.0, "honest/c": 1.0, **users})
    assert flagged.total() == 0  # two callers
    flagged = found(Agreement(), {"honest": 1.0, "other": 1.0, **users})
    assert flagged["honest"] == flagged["other"] == 0
    assert min(flagged[user] for user in users) > 30


def test_a_source_that_comes_to_agree_is_learnt_from_again() -> None:
    agreement = Agreement()
    assert found(agreement, {"a": -1, "b": 1, "c": 1})["a"] > 0
    found(agreement, {"a": 1, "b": 1, "c": 1}, updates=80, seed=1)
    assert found(agreement, {"a": 1, "b": 1, "c": 1}, updates=10, seed=2).total() == 0


def test_few_updates_gradients_of_zero_and_no_source_decide_nothing() -> None:
    assert found(Agreement(), {"a": -1, "b": 1, "c": 1}, LEAST_UPDATES - 1, noise=0.0).total() == 0
    assert not Agreement().contradicts(["a"], [torch.zeros(5)])
    assert not Agreement().contradicts(["a"], [torch.full((5,), torch.nan)])
    assert not Agreement().contradicts([], [torch.ones(5)])


def test_its_state_goes_on_exactly_and_is_bounded() -> None:
    one = Agreement()
    found(one, {"a": -1, "b": 1, "c": 1}, 15)
    other = Agreement()
    other.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert found(one, {"a": -1, "b": 1, "c": 1}, seed=3) == found(other, {"a": -1, "b": 1, "c": 1}, seed=3)
    assert one.state_dict() == other.state_dict()
    found(one, {f"user {i}": 1 for i in range(MOST_SOURCES + 5)}, 1)
    assert len(one.state_dict()["sums"]) == MOST_SOURCES and "a" not in one.state_dict()["sums"]


def test_a_sketch_keeps_cosines() -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(2, 50_000, generator=generator, dtype=torch.float64)
    b = 0.6 * a + 0.8 * b
    parts = [[v[:20_000].view(100, 200), v[20_000:]] for v in (a, b)]
    expected, found = torch.cosine_similarity(a, b, dim=0), torch.cosine_similarity(*map(sketch, parts), dim=0)
    assert float(found) == pytest.approx(float(expected), abs=4 / SIZE**0.5)
    assert torch.equal(sketch(parts[0]), sketch(parts[0]))
