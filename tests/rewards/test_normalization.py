"""Running statistics against float64 over everything at once, and each mode against its definition."""

from __future__ import annotations

import json
import math
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.configs.sections.rewards import NormalizationConfig
from grpo_tui.rewards.metrics import Moments, merge
from grpo_tui.rewards.normalization import RewardNormalizer, group_normalized, tensor_moments

numbers = st.floats(-1e6, 1e6, allow_nan=False, width=64)
streams = st.lists(st.lists(numbers, max_size=12), min_size=1, max_size=6)


def moments_of(values: list[float]) -> Moments:
    """By the definition, in two passes with exactly rounded sums."""
    if not values:
        return Moments()
    mean = math.fsum(values) / len(values)
    return Moments(len(values), mean, math.fsum((v - mean) ** 2 for v in values))


def assert_same(a: Moments, values: list[float]) -> None:
    exact = np.array(values, dtype=np.longdouble)
    assert a.count == len(values)
    if values:
        size = float(np.abs(exact).max()) or 1.0
        assert abs(a.mean - float(exact.mean())) <= 1e-12 * size
        assert abs(a.std**2 - float(exact.var())) <= 1e-11 * size * size


@settings(max_examples=150, deadline=None)
@given(streams)
def test_merging_batches_equals_seeing_everything_at_once(batches: list[list[float]]):
    everything = [v for batch in batches for v in batch]
    assert_same(reduce(merge, (moments_of(b) for b in batches)), everything)
    assert_same(reduce(merge, (tensor_moments(torch.tensor(b, dtype=torch.float64)) for b in batches)), everything)
    running = Moments()
    for value in everything:  # one at a time: Welford
        running = merge(running, Moments(1, value, 0.0))
    assert_same(running, everything)


@settings(max_examples=100, deadline=None)
@given(st.lists(numbers, max_size=8), st.lists(numbers, max_size=8))
def test_merge_is_pure_symmetric_and_has_a_zero(left: list[float], right: list[float]):
    a, b = moments_of(left), moments_of(right)
    kept = (a, b)
    both, other = merge(a, b), merge(b, a)
    assert (a, b) == kept
    assert both.count == other.count
    assert both.mean == pytest.approx(other.mean, rel=1e-9, abs=1e-6)
    assert both.m2 == pytest.approx(other.m2, rel=1e-9, abs=1e-3)
    assert merge(a, Moments()) == a == merge(Moments(), a)


def test_statistics_survive_json_bit_for_bit():
    saved, loaded = normalizer(), normalizer()
    saved.update({"curiosity": moments_of([0.1, 0.2, 1 / 3, math.pi])})
    loaded.load_json(json.loads(json.dumps(saved.to_json())))
    assert loaded.running == saved.running
    assert loaded.running["curiosity"].count == 4


def normalizer(**config) -> RewardNormalizer:
    settings = NormalizationConfig(**config)
    names = ("task", "curiosity", "coherence")
    return RewardNormalizer(settings, {name: getattr(settings, name) for name in names})


def test_statistics_are_frozen_while_a_batch_is_scored():
    n = normalizer()
    n.update({"curiosity": moments_of([1.0, 2.0, 3.0] * 20)})
    before = dict(n.running)
    first = n.normalize(torch.tensor([2.0, 5.0]), "curiosity")
    assert n.running == before
    assert torch.equal(n.normalize(torch.tensor([2.0, 5.0]), "curiosity"), first)
    # What else is in the batch does not matter.
    assert float(n.normalize(torch.tensor([5.0, 900.0, -3.0]), "curiosity")[0]) == float(first[1])


def test_zscore_is_the_requirements_formula():
    n = normalizer()
    seen = [1.0, 2.0, 4.0, 9.0] * 10
    n.update({"curiosity": moments_of(seen)})
    got = n.normalize(torch.tensor([3.0]), "curiosity")
    assert float(got) == pytest.approx((3.0 - np.mean(seen)) / (np.std(seen) + 1e-4), rel=1e-12)


def test_scale_only_keeps_sign_and_zero():
    n = normalizer(curiosity="scale_only")
    n.update({"curiosity": moments_of([1.0, 2.0, 4.0, 9.0] * 10)})
    got = n.normalize(torch.tensor([0.0, 3.0]), "curiosity")
    assert got.tolist() == pytest.approx([0.0, 3.0 / (np.std([1.0, 2.0, 4.0, 9.0]) + 1e-4)])


@settings(max_examples=60, deadline=None)
@given(value=numbers, size=st.integers(1, 40), mode=st.sampled_from(["zscore", "scale_only", "group"]))
def test_a_constant_component_is_not_blown_up(value: float, size: int, mode: str):
    n = normalizer(curiosity=mode)
    got = n.normalize(torch.full((size,), value, dtype=torch.float64), "curiosity")
    assert got.isfinite().all()
    if mode != "scale_only":
        assert got.abs().max() < 1e-3  # a difference of rounding is no signal
    noise = value + torch.linspace(-1e-7, 1e-7, size, dtype=torch.float64)
    if mode != "scale_only" and abs(value) < 1e3:
        assert n.normalize(noise, "curiosity").abs().max() < 1e-2


@pytest.mark.parametrize("mode", ["zscore", "scale_only"])
def test_a_standard_deviation_below_the_floor_counts_as_the_floor(mode: str):
    n = normalizer(curiosity=mode)
    n.update({"curiosity": moments_of([-1e-5, 1e-5] * 50)})
    got = n.normalize(torch.tensor([1e-5], dtype=torch.float64), "curiosity")
    assert got.tolist() == pytest.approx([1e-5 / (1e-3 + 1e-4)])


def test_one_outlier_is_clipped():
    n = normalizer()
    n.update({"curiosity": moments_of([0.0, 1.0] * 50)})
    assert n.normalize(torch.tensor([1e9, -1e9]), "curiosity").tolist() == [10.0, -10.0]


def test_until_enough_was_seen_the_batch_counts_into_its_own_statistics():
    n = normalizer()
    values = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    assert float(n.normalize(values, "curiosity").mean()) == pytest.approx(0.0, abs=1e-12)
    n.update({"curiosity": moments_of([10.0] * 32)})
    assert (n.normalize(values, "curiosity") < 0).all()


def test_undefined_steps_get_zero_and_do_not_count():
    n = normalizer(curiosity="zscore", coherence="group")
    values = torch.tensor([1.0, 1e5, 3.0])
    valid = torch.tensor([True, False, True])
    got = n.normalize(values, "curiosity", valid=valid)
    assert got[1] == 0
    assert got[[0, 2]].tolist() == n.normalize(values[valid], "curiosity").tolist()
    assert n.normalize(values, "coherence", valid=valid)[1] == 0


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_group_mode_sums_to_gdpo_over_each_rollout(data: st.DataObject):
    """The sum over a rollout's steps is GDPO's (R - mean) / (std + epsilon), std with n - 1, as TRL computes it."""
    groups, size = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 5))
    counts = data.draw(st.lists(st.integers(1, 4), min_size=groups * size, max_size=groups * size))
    rollout = torch.repeat_interleave(torch.arange(groups * size), torch.tensor(counts))
    values = torch.tensor(
        data.draw(st.lists(st.floats(-10, 10, width=32), min_size=len(rollout), max_size=len(rollout))),
        dtype=torch.float64,
    )
    group = torch.arange(groups).repeat_interleave(size)
    order = torch.randperm(groups * size)  # groups need not lie side by side
    got = group_normalized(values, torch.ones_like(values, dtype=torch.bool), rollout, group[order], 1e-4, 1e-9).values

    sums = torch.zeros(groups * size, dtype=torch.float64).index_add_(0, rollout, values)
    per_rollout = torch.zeros(groups * size, dtype=torch.float64).index_add_(0, rollout, got)
    for g in range(groups):
        members = group[order] == g
        inside = sums[members]
        std = inside.std() if inside.std() > 1e-9 else torch.tensor(1e-9, dtype=torch.float64)
        expected = (inside - inside.mean()) / (std + 1e-4)
        torch.testing.assert_close(per_rollout[members], expected, atol=1e-7, rtol=1e-7)
