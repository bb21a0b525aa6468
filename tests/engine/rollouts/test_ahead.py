"""Rollouts of later steps: which version makes them, and what the trainer gets."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from benchmarks import async_rollouts
from grpo_tui.engine.rollouts.ahead import RolloutsAhead
from grpo_tui.engine.rollouts.correction import Weighting, corrected
from grpo_tui.engine.rollouts.rollout import Rollout

MASK = np.array([0, 0, 1, 1, 0, 1, 1, 1], bool)


def rollout(logprobs: np.ndarray, mask: np.ndarray = MASK) -> Rollout:
    return Rollout(
        np.zeros(len(mask), np.int64),
        mask,
        np.where(mask, 0, -1).astype(np.int16),
        np.zeros(len(mask), np.float32),
        0,
        0,
        logprobs=logprobs,
    )


@pytest.mark.parametrize("max_staleness", [1, 2, 3])
def test_a_batch_is_made_by_the_oldest_version_that_is_fresh_enough(max_staleness: int):
    made: list[tuple[int, int]] = []
    lock = threading.Lock()

    def make(plan: Any, step: int, version: int) -> list[Rollout]:
        with lock:
            made.append((step, version))
        return [rollout(np.zeros(8, np.float32))]

    ahead: RolloutsAhead[Any, int] = RolloutsAhead(make, max_staleness)
    for step in range(6):
        for later in range(step + 1, step + 1 + max_staleness):
            ahead.plan(later, None)
        ahead.version(step, step)
        taken = ahead.take(step)
        assert (taken is None) == (step == 0), "the first step has nothing before it"
    for later in range(6, 6 + max_staleness):
        if taken := ahead.take(later):
            assert taken.idle_s >= 0
    assert sorted(made)[:5] == [(step, max(step - max_staleness, 0)) for step in range(1, 6)]


def test_what_making_a_batch_raised_is_raised_where_its_step_asks():
    def make(plan: Any, step: int, version: int) -> list[Rollout]:
        raise OSError("no more servers")

    ahead: RolloutsAhead[Any, int] = RolloutsAhead(make, 1)
    ahead.plan(1, None)
    ahead.version(0, 0)
    with pytest.raises(OSError, match="no more servers"):
        ahead.take(1)


def test_batches_of_steps_that_are_over_are_forgotten():
    ahead: RolloutsAhead[Any, int] = RolloutsAhead(lambda *_: [], 2)
    ahead.plan(1, None)
    ahead.version(5, 5)
    assert ahead.take(1) is None


@pytest.mark.parametrize("how", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "none"])
@pytest.mark.parametrize(("floor", "cap"), [(0.0, 0.5), (0.0, 1.0), (0.5, 3.0), (0.9, 1.1)])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.3, 20.0])
def test_weights_are_those_of_their_definition(spread: float, floor: float, cap: float, how: Any):
    rng = np.random.default_rng([int(spread * 1000), int(cap * 10)])
    sampled = -rng.exponential(1.0, 8).astype(np.float32)
    present = (sampled + rng.normal(0, spread, 8)).astype(np.float32)
    ratios = [float(np.exp(np.float64(p) - np.float64(s))) for p, s in zip(present, sampled, strict=True)]
    product = float(np.prod([r for r, m in zip(ratios, MASK, strict=True) if m], dtype=np.float64))

    def weight(ratio: float) -> float:
        if how == "none":
            return 1.0
        inside = floor <= ratio <= cap
        return min(max(ratio, floor), cap) if how.endswith("truncate") else ratio if inside else 0.0

    chosen = [product] * 8 if how.startswith("sequence") else ratios
    expected = [weight(r) if m else 1.0 for r, m in zip(chosen, MASK, strict=True)]
    (done,) = corrected([rollout(sampled)], [rollout(present)], Weighting(how, floor, cap))
    found = np.ones(8) if done.importance is None else done.importance
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_the_loss_compares_with_the_present_policy_and_weighs_the_advantages():
    sampled, present = np.full(8, -1.0, np.float32), np.full(8, -2.0, np.float32)
    made, now = [rollout(sampled)], [rollout(present)]
    (done,) = corrected(made, now, Weighting())
    np.testing.assert_array_equal(done.logprobs, present)  # type: ignore[arg-type]
    np.testing.assert_allclose(done.importance[MASK], np.exp(-1.0), rtol=1e-6)  # type: ignore[index]
    assert corrected(made, now, Weighting("none")) == made


def test_rollouts_that_go_at_their_own_pace_take_what_the_longest_of_them_takes():
    seconds = async_rollouts.tools(32, scale=0.2)
    assert seconds["own pace"] < seconds["lock-step"]


def test_ahead_of_time_the_trainer_waits_less_than_half():
    assert async_rollouts.ahead(2, 0.3, 0.1, steps=8) < 0.5 * async_rollouts.ahead(0, 0.3, 0.1, steps=8)
