"""Shaped rewards in the trainer: state embeddings come with the reference pass and cost none of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from grpo_tui.configs.sections.rewards import RewardsConfig
from grpo_tui.engine.agents.scripted import ScriptedAgent
from grpo_tui.engine.policy.token_scores import turn_means
from grpo_tui.envs.calculator import CalculatorEnv
from grpo_tui.rewards.orchestrator import RewardOrchestrator

from .parts import make_trainer, policy, tokenizer

CALL = '{"name": "CALCULATE", "arguments": {"operation": "add", "a": 3, "b": 4}}'
ANSWER = '{"name": "ANSWER", "arguments": {"text": "7"}}'


def say(row: int, turn: int, observation: str | None) -> str:
    """Rollouts of one to three turns; one turn is no call at all."""
    lines = [[CALL, ANSWER], [ANSWER], [CALL, CALL, ANSWER], ["hm", ANSWER]][row % 4]
    return lines[min(turn, len(lines) - 1)]


def generate(tmp_path, packed: bool, **rewards: Any) -> tuple[Any, RewardOrchestrator, list[str]]:
    rows = [
        {"env_class_path": "grpo_tui.envs.calculator.CalculatorEnv", "env_config": "{}", "task_data": json.dumps(task)}
        for task in CalculatorEnv().make_tasks("train", 2, 0)
    ]
    model, forwards = policy(), []
    orchestrator = RewardOrchestrator(config=RewardsConfig(**rewards))
    trainer = make_trainer(
        tmp_path, rows, model, ScriptedAgent(say, tokenizer()), orchestrator=orchestrator, beta=0.1, packed=packed
    )
    for name, network in (("policy", model), ("reference", trainer.ref_model)):
        network.base_model.register_forward_hook(lambda *_, name=name: forwards.append(name))
    trainer.model.train()
    trainer._generate_and_score_completions([row for row in rows for _ in range(4)])
    return trainer, orchestrator, forwards


@pytest.mark.parametrize("packed", [True, False])
def test_embeddings_cost_no_forward_pass_of_their_own(tmp_path, packed: bool):
    _, orchestrator, forwards = generate(tmp_path / "a", packed)
    _, _, fewer = generate(tmp_path / "b", packed, w_curiosity=0, w_coherence=0)
    assert orchestrator.normalizer.running["curiosity"].count > 0
    assert forwards == fewer == ["reference"]  # the agent said how likely its tokens were


@pytest.mark.parametrize("packed", [True, False])
def test_they_are_the_references_mean_last_hidden_states_over_each_steps_tokens(tmp_path, packed: bool):
    trainer, _, _ = generate(tmp_path, packed)
    for sample in trainer.rollouts.generated:
        ids = torch.as_tensor(sample.token_ids)[None].long()
        with torch.no_grad():
            hidden = trainer.ref_model.base_model(input_ids=ids).last_hidden_state
        own = sample.turn_ids[sample.agent_mask]
        [expected] = turn_means(hidden[0, sample.agent_mask], [own], [len(sample.trajectory.steps)])
        torch.testing.assert_close(torch.from_numpy(sample.embeddings), expected, atol=1e-4, rtol=1e-4)


def test_the_dense_reward_and_its_breakdown_are_those_of_each_sample(tmp_path):
    trainer, _, _ = generate(tmp_path, True)
    assert {len(s.trajectory.steps) for s in trainer.rollouts.generated} == {1, 2, 3}
    for sample in trainer.rollouts.generated:
        assert sample.breakdown.trajectory_id == sample.trajectory.id
        assert sample.turn_rewards.tolist() == pytest.approx([s.total for s in sample.breakdown.steps], abs=1e-6)
