"""Sequential tests alarm on a fall, tell when it began, and keep their rate of false alarms."""

from __future__ import annotations

import math
import random

import pytest

from grpo_tui.rewards.batch_statistics import fallen_since, fell

WINDOW = 20


def noisy(rng: random.Random, steps: int, noise: float, drift: float = 0.0) -> list[float]:
    return [40 * math.exp(rng.gauss(drift * i, noise)) for i in range(steps)]


def alarms(series: list[float], fraction: float) -> list[int]:
    """The steps with an alarm, as the diagnosis looks: over a window of the last steps."""
    return [t for t in range(3, len(series) + 1) if fallen_since(series[max(0, t - WINDOW) : t], fraction) is not None]


@pytest.mark.parametrize("noise", [0.02, 0.1, 0.25])
def test_noise_gives_fewer_false_alarms_than_stated(noise: float):
    rng, steps = random.Random(1), 20_000
    assert len(alarms(noisy(rng, steps, noise), 0.5)) <= 5e-4 * steps


def test_a_fixed_limit_gives_many_on_the_same_noise():
    """So the test is worth its delay."""
    rng, steps = random.Random(1), 20_000
    series = noisy(rng, steps, 0.25)
    fixed = sum(series[t] < 0.5 * max(series[max(0, t - WINDOW + 1) : t + 1]) for t in range(2, steps))
    assert fixed > 0.05 * steps


def test_a_slow_drift_above_the_limit_is_no_fall():
    rng = random.Random(2)
    assert alarms(noisy(rng, 400, 0.05, drift=-0.02), 0.5) == [], "a third of the level is lost in each window"


@pytest.mark.parametrize(("noise", "delay"), [(0.0, 0), (0.05, 1), (0.1, 3)])
def test_a_fall_is_found_soon_and_its_begin_is_known(noise: float, delay: int):
    rng = random.Random(3)
    series = [x * (1.0 if i < 12 else 0.3) for i, x in enumerate(noisy(rng, WINDOW, noise))]
    first = alarms(series, 0.5)[0]
    assert 13 <= first <= 13 + delay
    assert fallen_since(series[:first], 0.5) == 12


def test_a_rise_before_the_highest_level_is_no_fall():
    series = [4.0, 4.0, 4.0, 40.0, 40.0, 40.0, 8.0, 8.0]
    assert fallen_since(series, 0.5) == 6
    assert fallen_since(series[:6], 0.5) is None


def test_a_rate_falls_by_more_than_chance():
    assert fell((60, 100), (40, 100)) and not fell((60, 100), (50, 100))
    assert not fell((0, 100), (0, 100)) and not fell((40, 100), (60, 100))
    rng = random.Random(4)
    times = sum(
        fell((sum(rng.random() < 0.4 for _ in range(64)), 64), (sum(rng.random() < 0.4 for _ in range(64)), 64))
        for _ in range(2000)
    )
    assert times / 2000 == pytest.approx(0.023, abs=0.012), "the tail of the normal distribution"
