"""Intervals and tests against scipy, brute force, and simulated truth."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from grpo_tui.engine.evaluation.statistics import (
    mean_interval,
    pass_at_k,
    pass_hat_k,
    rate_interval,
    sign_flip_p,
    t_quantile,
    tasks_needed,
)


@given(df=st.integers(1, 300), p=st.floats(0.5, 0.9995))
def test_t_quantiles_are_scipy_s(df: int, p: float) -> None:
    expected = stats.t.ppf(p, df)
    assert t_quantile(p, df) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=40))
def test_the_interval_of_a_mean_is_scipy_s(values: list[float]) -> None:
    found = mean_interval(values)
    error = stats.sem(values)
    half = stats.t.ppf(0.975, len(values) - 1) * error
    assert (found.low, found.high) == pytest.approx((found.estimate - half, found.estimate + half), rel=1e-6, abs=1e-6)


@given(n=st.integers(1, 300), share=st.floats(0, 1))
def test_with_one_sample_a_task_the_interval_of_a_rate_is_wilson_s(n: int, share: float) -> None:
    right = round(n * share)
    found = rate_interval([1.0] * right + [0.0] * (n - right))
    expected = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize("n", [3, 7, 48, 100])
@pytest.mark.parametrize("rate", [1 / 3, 0.1, 0.7])
def test_equal_rates_keep_their_uncertainty(n: int, rate: float) -> None:
    found = rate_interval([rate] * n)
    assert found.low < rate < found.high and found.high - found.low > 0.1


@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_the_exact_test_counts_all_sign_vectors(steps: list[int]) -> None:
    vectors = list(itertools.product((1, -1), repeat=len(steps)))
    extreme = sum(abs(sum(s * v for s, v in zip(steps, vector, strict=True))) >= abs(sum(steps)) for vector in vectors)
    assert sign_flip_p([s / 4 for s in steps], 0.25) == pytest.approx(extreme / len(vectors))


def test_the_random_test_is_near_the_exact_one() -> None:
    source = random.Random(3)
    steps = [float(source.randint(-4, 5)) for _ in range(60)]
    assert sign_flip_p(steps) == pytest.approx(sign_flip_p(steps, 1.0), abs=0.02)


def test_rounding_is_no_difference() -> None:
    assert sum([0.1] * 3) / 3 != 0.1 and sign_flip_p([sum([0.1] * 3) / 3 - 0.1] * 20) == 1.0


@settings(max_examples=30)
@given(n=st.integers(1, 9), data=st.data())
def test_pass_k_is_the_share_over_all_choices_of_samples(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    right = [True] * c + [False] * (n - c)
    choices = list(itertools.combinations(right, k))
    assert pass_at_k(n, c, k) == pytest.approx(float(Fraction(sum(map(any, choices)), len(choices))))
    assert pass_hat_k(n, c, k) == pytest.approx(float(Fraction(sum(map(all, choices)), len(choices))))


@pytest.mark.parametrize(
    ("tasks", "samples", "truth", "cases"),
    [
        *((100, 1, truth, 1000) for truth in (0.2, 0.5)),
        *((60, 4, truth, 1000) for truth in (0.2, 0.5, 0.8)),
        (100, 8, 0.2, 1000),
        *(
            pytest.param(tasks, samples, truth, 8000, marks=pytest.mark.stress)
            for tasks, samples in ((100, 1), (60, 4), (100, 8)) for truth in (0.2, 0.5, 0.8)
        ),
    ],
)  # fmt: skip
def test_intervals_contain_the_truth_in_93_to_97_of_100_cases(
    tasks: int, samples: int, truth: float, cases: int
) -> None:
    """Tasks differ: each has a success rate of its own, drawn around the truth. The share of 1000 cases is known to
    0.7 points (one standard error), so that intervals of 90 % are found."""
    source = random.Random(tasks + samples)

    def rates() -> list[float]:
        own = (source.betavariate(2 * truth, 2 * (1 - truth)) for _ in range(tasks))
        return [sum(source.random() < p for _ in range(samples)) / samples for p in own]

    inside = sum(i.low <= truth <= i.high for i in (rate_interval(rates()) for _ in range(cases)))
    assert 0.93 <= inside / cases <= 0.97


def test_equal_policies_differ_in_at_most_5_of_100_comparisons() -> None:
    source = random.Random(5)

    def samples(p: float) -> float:
        return sum(source.random() < p for _ in range(4)) / 4

    false = 0
    for _ in range(400):
        tasks = [source.random() for _ in range(50)]
        false += sign_flip_p([samples(p) - samples(p) for p in tasks], 0.25) < 0.05
    assert false / 400 <= 0.05


def test_a_difference_of_10_points_is_found_with_the_predicted_number_of_tasks() -> None:
    source = random.Random(7)

    def differences(tasks: int) -> list[float]:
        own = [source.uniform(0.2, 0.7) for _ in range(tasks)]
        return [float(source.random() < p + 0.1) - float(source.random() < p) for p in own]

    needed = tasks_needed(stats.tstd(differences(5000)), 0.1)
    found = sum(sign_flip_p(differences(needed), 1.0) < 0.05 for _ in range(300))
    assert 0.72 <= found / 300 <= 0.88
