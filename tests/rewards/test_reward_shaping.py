"""Total reward, weights, normalisation and penalties, each on small hand-made rollouts."""

from __future__ import annotations

import torch

from grpo_tui.rewards.components.coherence import TrajectoryCoherenceAnalyzer
from grpo_tui.rewards.orchestrator import RewardOrchestrator

from .episodes import good, step, trajectory


def test_coherence_penalizes_repetition():
    look = {"mask": 1}
    repeating = trajectory(
        step(0, "SEGMENT_OBJECT_AT", {"x": 3, "y": 4}),
        step(1, "GET_PROPERTIES", look, masks=["1"]),
        step(2, "GET_PROPERTIES", look, masks=["1"]),
    )
    embeddings = torch.ones(3, 8)  # as similar as can be: what repetition would gain most from
    rewards, _ = TrajectoryCoherenceAnalyzer().compute(embeddings, [[s.action_key for s in repeating.steps]])
    assert rewards[1] > 0
    assert rewards[2] < 0

    result = RewardOrchestrator(0.1, 0.1, 1.0).calculate_total_reward(repeating, False, embeddings=embeddings)
    assert (result.breakdowns[0].steps[2].components["coherence"].raw or 0.0) < 0


def test_penalty_for_tool_misuse():
    still = trajectory(step(0, "TRACK_OBJECT", {"mask": 1}, masks=["1"], modality="image"))
    penalties = RewardOrchestrator(0.1, 0.1, 1.0)._calculate_penalties(still)
    assert [p.rule for p in penalties] == ["wrong_modality"]
    assert sum(p.amount for p in penalties) <= -0.1

    moving = trajectory(step(0, "TRACK_OBJECT", {"mask": 1}, masks=["1"], modality="video"))
    assert RewardOrchestrator(0.1, 0.1, 1.0)._calculate_penalties(moving) == []


def test_penalty_for_incorrect_sequence():
    orchestrator = RewardOrchestrator(0.1, 0.1, 1.0)
    first = trajectory(step(0, "GET_PROPERTIES", {"mask": 1}))
    [penalty] = orchestrator._calculate_penalties(first)
    assert (penalty.rule, penalty.step) == ("missing_prerequisite", 0)
    assert penalty.amount < 0
    assert "SEGMENT_OBJECT_AT" in penalty.right
    assert orchestrator._calculate_penalties(good()) == []


def test_reward_normalization():
    orchestrator = RewardOrchestrator(0.1, 0.1, 1.0)
    rewards = torch.linspace(-1, 1, 1000, dtype=torch.float64) * 7 + 3
    once = orchestrator._normalize_rewards(rewards, "curiosity")
    assert abs(float(once.mean())) < 1e-3
    assert abs(float(once.std()) - 1) < 1e-3

    again = orchestrator._normalize_rewards(rewards.view(10, 100), "curiosity")
    assert again.shape == (10, 100)
    assert torch.equal(again.flatten(), once)
