"""The KL divergence against its definition in float64, and beta against its rule, step by step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from grpo_tui.configs.sections.online import KLConfig
from grpo_tui.engine.policy.kl import (
    BetaChange,
    BetaController,
    kl_directions,
    top_k_directions,
    top_k_distribution,
)

shapes = st.tuples(st.integers(1, 3), st.integers(1, 6), st.integers(2, 40))
seeds = st.integers(0, 2**31 - 1)
scales = st.sampled_from([1e-3, 0.1, 1.0, 5.0, 20.0])


def logits_pair(shape: tuple[int, int, int], seed: int, scale: float, distance: float) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(seed)
    p = scale * torch.randn(*shape, generator=generator)
    return p, p + distance * torch.randn(*shape, generator=generator)


def definition(p: Any, q: Any) -> np.ndarray:
    """Σ p log(p / q) per token, in float64 by numpy."""
    p, q = (x.numpy().astype(np.float64) for x in (p, q))
    p, q = (x - x.max(-1, keepdims=True) for x in (p, q))
    p, q = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (p, q))
    return (p * np.log(p / q)).sum(-1)


@given(shapes, seeds, scales, st.sampled_from([1e-4, 1e-2, 0.3, 2.0]))
def test_equals_the_definition_in_float64(shape: Any, seed: int, scale: float, distance: float) -> None:
    p, q = logits_pair(shape, seed, scale, distance)
    expected = definition(p, q)
    np.testing.assert_allclose(kl_directions(p.double(), q.double()).reverse, expected, atol=1e-9)
    both = kl_directions(p, q)
    np.testing.assert_allclose(both.reverse, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(both.forward, definition(q, p), rtol=1e-4, atol=1e-5)
    assert bool((both.reverse >= 0).all())


@given(shapes, seeds, scales, st.integers(1, 45))
def test_top_k_and_tail_are_a_lower_bound(shape: Any, seed: int, scale: float, k: int) -> None:
    policy, reference = (x.double() for x in logits_pair(shape, seed, scale, 1.0))
    bound = top_k_directions(policy, top_k_distribution(reference, k))
    exact = kl_directions(policy, reference)
    for lower, upper in zip(bound, exact, strict=True):
        assert bool((lower >= 0).all())
        assert bool((lower <= upper + 1e-12).all())
        if k >= shape[2] - 1:  # a tail of one token loses nothing
            torch.testing.assert_close(lower, upper, rtol=1e-9, atol=1e-12)


@given(seeds, st.integers(1, 10))
def test_more_kept_tokens_never_lower_the_bound(seed: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    policy, reference = torch.randn(2, 4, 12, dtype=torch.float64, generator=generator)
    fewer = top_k_directions(policy, top_k_distribution(reference, k)).reverse
    more = top_k_directions(policy, top_k_distribution(reference, k + 1)).reverse
    assert bool((fewer <= more + 1e-12).all())


@settings(max_examples=30)
@given(seeds)
def test_gradient_is_that_of_the_definition(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    policy, reference = torch.randn(2, 3, 4, 9, dtype=torch.float64, generator=generator)
    weights = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    policy.requires_grad_()
    (got,) = torch.autograd.grad((kl_directions(policy, reference).reverse * weights).sum(), policy)
    logp, logq = policy.log_softmax(-1), reference.log_softmax(-1)
    plain = ((logp.exp() * (logp - logq)).sum(-1) * weights).sum()
    (expected,) = torch.autograd.grad(plain, policy)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def reverse(p: Any, q: Any) -> float:
    return float(kl_directions(p, q).reverse)


def test_impossible_tokens() -> None:
    never = torch.tensor([[0.0, -math.inf, 1.0]])
    other = torch.tensor([[1.0, -math.inf, 0.0]])
    assert math.isfinite(reverse(never, other))
    possible = torch.tensor([[0.0, 0.0, 1.0]])
    assert reverse(possible, never) == math.inf
    expected = float(np.log((2 + math.e) / (1 + math.e)))
    assert reverse(never, possible) == pytest.approx(expected, rel=1e-5)


def test_small_differences_keep_their_digits() -> None:
    p, q = logits_pair((1, 50, 300), 3, 8.0, 1e-4)
    expected = definition(p, q).mean()
    assert expected < 1e-7
    assert float(kl_directions(p, q).reverse.mean()) == pytest.approx(expected, rel=0.05)
    assert float(kl_directions(p, p).reverse.abs().max()) == 0.0


# ------------------------------------------------------------------------------------------------------------- beta


def controller(**changes: Any) -> BetaController:
    base = {
        "beta_update_mode": "auto",
        "initial_beta": 0.1,
        "target_kl": 0.05,
        "kl_tolerance": 0.01,
        "factor": 1.2,
        "min_beta": 0.01,
        "max_beta": 0.3,
        "window": 1,
    }
    return BetaController(**{**base, **changes})


def test_beta_follows_the_rule_exactly() -> None:
    beta, changes = controller(), list[BetaChange]()
    series = [(0.061, 0.12), (0.06, 0.12), (0.05, 0.12), (0.04, 0.12), (0.0399, 0.1), (0.0, 0.1 / 1.2), (9.0, 0.1)]
    for step, (kl, expected) in enumerate(series, 1):
        if (change := beta.update(kl, step)) is not None:
            changes.append(change)
        assert beta.beta == pytest.approx(expected, rel=1e-12), (step, kl)
    assert [(c.step, c.mean_kl) for c in changes] == [(1, 0.061), (5, 0.0399), (6, 0.0), (7, 9.0)]
    assert [c.new for c in changes[:-1]] == [c.old for c in changes[1:]]
    assert "above 0.05 + 0.01" in changes[0].reason and "below 0.05 − 0.01" in changes[1].reason


@given(st.lists(st.floats(0, 0.2), min_size=1, max_size=60), st.integers(1, 10))
def test_beta_against_an_independent_simulation(series: list[float], window: int) -> None:
    beta = controller(window=window)
    expected = 0.1
    for step, kl in enumerate(series, 1):
        change = beta.update(kl, step)
        recent = series[max(0, step - window) : step]
        mean = math.fsum(recent) / len(recent)
        assert beta.mean_kl_divergence == mean
        before = expected
        if mean > 0.05 + 0.01:
            expected = min(expected * 1.2, 0.3)
        elif mean < 0.05 - 0.01:
            expected = max(expected / 1.2, 0.01)
        assert beta.beta == expected
        assert 0.01 <= beta.beta <= 0.3
        assert (change is not None) == (expected != before)


@given(st.lists(st.floats(0, 100), max_size=30))
def test_fixed_never_moves(series: list[float]) -> None:
    beta = controller(beta_update_mode="fixed", initial_beta=0.0)
    for step, kl in enumerate(series):
        assert beta.update(kl, step) is None
    assert beta.beta == 0.0


def test_while_the_policy_leaves_its_start_beta_only_rises() -> None:
    """Small steps in one direction go as far as large ones: a small KL of each is then no reason for a smaller beta."""
    away, back = controller(window=4), controller(window=4)
    starts = list(enumerate([0.1, 0.2, 0.3, 0.4], 1))
    outwards = [c for step, start in starts if (c := away.update(0.0, step, start)) is not None]
    inwards = [c for step, start in starts if (c := back.update(0.0, step, 0.5 - start)) is not None]
    assert away.leaving and not back.leaving
    assert [round(c.old / c.new, 6) for c in outwards] == [1.2] and len(inwards) == 4
    last = away.update(9.0, 5, 0.5)
    assert last is not None and away.beta > last.old


def test_nan_is_refused_and_stays_out_of_the_mean() -> None:
    beta = controller(window=3)
    beta.update(0.05, 1)
    with pytest.raises(ValueError, match="step 2 is nan"):
        beta.update(math.nan, 2)
    assert beta.mean_kl_divergence == 0.05


def test_state_goes_on_where_it_was_left() -> None:
    one, two = controller(window=4), controller(window=4)
    for step, kl in enumerate([0.1, 0.02, 0.07], 1):
        one.update(kl, step)
    two.load_state_dict(one.state_dict())
    for step, kl in enumerate([0.2, 0.0, 0.0, 0.0, 0.05], 4):
        assert one.update(kl, step) == two.update(kl, step)
    assert one.state_dict() == two.state_dict()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"initial_beta": 50.0}, "less than or equal to 10"),
        ({"target_kl": math.nan}, "finite"),
        ({"factor": 1.5}, "Extra inputs are not permitted"),
    ],
)
def test_bad_settings_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        KLConfig(**changes)
