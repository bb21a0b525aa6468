"""What a checkpoint keeps: after loading, everything goes on as if nothing had happened, also on several processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from grpo_tui.configs.sections.rewards import RewardsConfig
from grpo_tui.engine.training.checkpoints import load_rewards, save_rewards
from grpo_tui.envs.trajectory import Trajectory
from grpo_tui.rewards.components import RewardError
from grpo_tui.rewards.metrics import merge
from grpo_tui.rewards.orchestrator import RewardOrchestrator

from .episodes import good, step, trajectory


@pytest.fixture(autouse=True)
def _small_training_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the random choice of transitions is a part of the state."""
    monkeypatch.setattr("grpo_tui.rewards.components.curiosity.TRAIN_BATCH_SIZE", 6)


def batch(seed: int, size: int = 4) -> tuple[list[Trajectory], list[bool], list[Tensor]]:
    random = torch.Generator().manual_seed(seed)
    right = torch.randint(0, 2, (size,), generator=random).bool().tolist()
    found = [
        good(f"{seed}-{i}") if ok else trajectory(step(0, "TRACK_OBJECT", {"mask": i}), step(1, None), id=f"{seed}-{i}")
        for i, ok in enumerate(right)
    ]
    return found, right, [torch.randn(len(t.steps), 8, generator=random) for t in found]


def run(orchestrator: RewardOrchestrator, seeds: range) -> list[Tensor]:
    totals = []
    for seed in seeds:
        found, right, embeddings = batch(seed)
        totals.append(orchestrator.calculate_total_reward(found, right, embeddings=embeddings).total)
    return totals


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path: Path):
    orchestrator = RewardOrchestrator(config=RewardsConfig())
    run(orchestrator, range(5))
    save_rewards(orchestrator, tmp_path)
    went_on = run(orchestrator, range(5, 10))

    resumed = RewardOrchestrator(config=RewardsConfig(), seed=99)
    load_rewards(resumed, tmp_path)
    for expected, got in zip(went_on, run(resumed, range(5, 10)), strict=True):
        assert torch.equal(got, expected)
    assert resumed.state_facts() == orchestrator.state_facts()


def test_the_state_is_tensors_and_json_and_nothing_else():
    orchestrator = RewardOrchestrator(config=RewardsConfig())
    assert orchestrator.state_tensors()  # a file of tensors needs one
    run(orchestrator, range(2))
    tensors, facts = orchestrator.state_tensors(), orchestrator.state_facts()
    assert all(isinstance(t, Tensor) for t in tensors.values())
    again = RewardOrchestrator(config=RewardsConfig(), seed=5)
    again.load_state(tensors, json.loads(json.dumps(facts)))
    assert torch.equal(run(again, range(2, 3))[0], run(orchestrator, range(2, 3))[0])


def test_states_that_do_not_fit_are_refused_in_a_sentence():
    orchestrator = RewardOrchestrator(config=RewardsConfig())
    run(orchestrator, range(1))
    tensors, facts = orchestrator.state_tensors(), orchestrator.state_facts()
    larger = {name: t.repeat(*[2] * t.dim()) if t.dim() else t for name, t in tensors.items()}
    with pytest.raises(RewardError, match="saved curiosity model and this version's model have different sizes"):
        RewardOrchestrator(config=RewardsConfig()).load_state(larger, facts)
    with pytest.raises(RewardError, match="format 2, but this version reads 1"):
        RewardOrchestrator(config=RewardsConfig()).load_state(tensors, {**facts, "format": 2})


def test_statistics_of_two_runs_can_be_merged():
    one, two = (RewardOrchestrator(0, 0, 1) for _ in range(2))
    both = RewardOrchestrator(0, 0, 1)
    for seed in range(4):
        found, right, _ = batch(seed)
        for orchestrator in (one if seed < 2 else two, both):
            orchestrator.calculate_total_reward(found, right)
    merged = merge(one.normalizer.running["penalty"], two.normalizer.running["penalty"])
    expected = both.normalizer.running["penalty"]
    assert (merged.count, merged.mean, merged.std) == pytest.approx((expected.count, expected.mean, expected.std))
