"""Similarity against an independent computation, and repetition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from grpo_tui.rewards.components.coherence import TrajectoryCoherenceAnalyzer
from grpo_tui.rewards.metrics import repeated


@settings(max_examples=100, deadline=None)
@given(
    rows=arrays(np.float32, st.tuples(st.integers(1, 6), st.just(5)), elements=st.floats(-100, 100, width=32)),
    cut=st.integers(0, 6),
)
def test_similarity_is_the_cosine_to_the_step_before(rows: np.ndarray, cut: int):
    cut = min(cut, len(rows))
    keys = [[f"a{i}" for i in range(cut)], [f"b{i}" for i in range(len(rows) - cut)]]
    rewards, defined = TrajectoryCoherenceAnalyzer().compute(torch.from_numpy(rows), keys)
    exact = rows.astype(np.float64)
    for i in range(len(rows)):
        first = i in (0, cut)
        assert bool(defined[i]) == (not first)
        lengths = np.linalg.norm(exact[i]) * np.linalg.norm(exact[i - 1])
        expected = 0.0 if first or lengths < 1e-6 else float(exact[i] @ exact[i - 1] / lengths)
        if lengths > 1e-6 or first or lengths == 0:
            assert float(rewards[i]) == pytest.approx(expected, abs=1e-6)


def test_an_action_repeats_one_of_the_three_steps_before_it():
    assert repeated(["A", "B", "B", "C", "B", "A"]) == [False, False, True, False, True, False]
    assert repeated(["A", "B", "C", "A", "D", "E", "F", "A"]) == [False, False, False, True, *[False] * 4]


def test_a_repeated_step_pays_and_earns_no_similarity():
    rewards, _ = TrajectoryCoherenceAnalyzer().compute(torch.ones(3, 4), [["A", "B", "B"]])
    assert rewards.tolist() == pytest.approx([0.0, 1.0, -1.0])


def test_repetition_does_not_cross_trajectories():
    rewards, defined = TrajectoryCoherenceAnalyzer().compute(torch.zeros(4, 2), [["A"], ["A"], [], ["A", "A"]])
    assert rewards.tolist() == [0.0, 0.0, 0.0, -1.0]
    assert defined.tolist() == [False, False, False, True]
