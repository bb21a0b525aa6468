"""The trainer on environment rollouts: what it takes, generates, masks and learns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from grpo_tui.configs.sections import RewardsConfig
from grpo_tui.engine.agents.transformers_agent import TransformersAgent
from grpo_tui.engine.policy.prepared import PreparedModel
from grpo_tui.engine.rollouts.trial import TrialError
from grpo_tui.rewards.orchestrator import RewardOrchestrator

from .parts import (
    StillAgent,
    as_loaded,
    make_trainer,
    playback_path,
    playback_rows,
    policy,
    rollout,
    tokenizer,
)

KEYS = {
    "prompt_completion_ids": torch.long,
    "attention_mask": torch.long,
    "agent_token_mask": torch.long,
    "advantages": torch.float32,
    "old_per_token_logps": torch.float32,
    "ref_per_token_logps": torch.float32,
}


def mixed_rows() -> list[dict[str, Any]]:
    """Two classes and two configurations, interleaved; key order of equal configurations differs."""
    kinds = [
        ("PlaybackEnv", {"turns": 2, "label": "a"}),
        ("OtherPlaybackEnv", {"turns": 3}),
        ("PlaybackEnv", {"label": "b", "turns": 1, "shift": 2.0}),
        ("PlaybackEnv", {"label": "a", "turns": 2}),
        ("OtherPlaybackEnv", {"turns": 3}),
    ]
    return [
        {
            "env_class_path": playback_path(name),
            "env_config": json.dumps(config),
            "task_data": json.dumps({"index": i}),
        }
        for i, (name, config) in enumerate(kinds)
    ]


@pytest.fixture(autouse=True)
def _fresh_counts() -> None:
    for name in ("PlaybackEnv", "OtherPlaybackEnv"):
        as_loaded(name).made.clear()
        as_loaded(name).calls.clear()


# T1


def test_init_stores_agent_and_tokenizer_and_has_an_empty_env_cache(tmp_path):
    model = policy()
    agent = StillAgent(model)
    trainer = make_trainer(tmp_path, playback_rows(2), model=model, agent=agent)
    assert trainer.agent is agent
    assert trainer.tokenizer is tokenizer()
    assert trainer.env_cache == {}
    assert not hasattr(trainer, "env")


def test_init_takes_the_reference_model_from_the_agents_policy(tmp_path):
    model = policy()
    trainer = make_trainer(tmp_path, playback_rows(2), agent=StillAgent(model), model=model, beta=0.1)
    assert trainer.ref_model is not model
    for mine, its in zip(model.parameters(), trainer.ref_model.parameters(), strict=True):
        assert torch.equal(mine, its)
        assert not its.requires_grad


@pytest.mark.parametrize("modules", ["all-linear", ["embed_tokens", "q_proj"]])
def test_init_with_adapters_keeps_a_frozen_copy_of_them_as_reference(tmp_path, modules):
    model: Any = get_peft_model(policy(), LoraConfig(r=4, target_modules=modules, init_lora_weights=False))
    trainer = make_trainer(tmp_path, playback_rows(2), model=model, beta=0.1)
    assert trainer.ref_model is None
    parameters = dict(model.named_parameters())
    copies = [n for n in parameters if ".ref" in n]
    assert copies
    for name in copies:
        assert torch.equal(parameters[name], parameters[name.replace(".ref", ".default")])
        assert not parameters[name].requires_grad


# T2


def generate(tmp_path, **changes: Any) -> tuple[Any, dict[str, Any]]:
    trainer = make_trainer(tmp_path, mixed_rows(), per_device_train_batch_size=20, beta=0.1, **changes)
    trainer.model.train()
    inputs = [row for row in mixed_rows() for _ in range(4)]
    return trainer, trainer._generate_and_score_completions(inputs)


def test_rows_are_grouped_by_environment_and_configuration(tmp_path):
    trainer, _ = generate(tmp_path)
    calls = as_loaded("PlaybackEnv").calls
    assert [[t["index"] for t in c["tasks"]] for c in calls] == [[0, 3], [2]]
    assert [[t["index"] for t in c["tasks"]] for c in as_loaded("OtherPlaybackEnv").calls] == [[1, 4]]
    assert {c["num_rollouts"] for c in calls} == {4}
    assert all(c["agent"] is trainer.agent for c in calls)


def test_fewer_rows_than_a_step_has_prompts_are_taken_again(tmp_path):
    trainer = make_trainer(tmp_path, playback_rows(3), max_steps=2, per_device_train_batch_size=16)
    trainer.train()
    assert trainer.state.global_step == 2
    asked = [[task["index"] for task in call["tasks"]] for call in as_loaded().calls]
    assert [len(tasks) for tasks in asked] == [4, 4] and all(len(set(tasks)) > 1 for tasks in asked)


def test_an_environment_is_made_once_with_its_configuration_and_cached(tmp_path):
    trainer, _ = generate(tmp_path)
    trainer._generate_and_score_completions([row for row in mixed_rows() for _ in range(4)])
    assert as_loaded("PlaybackEnv").made == [
        {"tokenizer": tokenizer(), "turns": 2, "label": "a", "shift": 0.0},
        {"tokenizer": tokenizer(), "turns": 1, "label": "b", "shift": 2.0},
    ]
    assert len(as_loaded("OtherPlaybackEnv").made) == 1
    assert len(trainer.env_cache) == 3


def test_results_of_all_groups_are_merged_in_the_order_of_the_batch(tmp_path):
    _, output = generate(tmp_path)
    turns = [2, 3, 1, 2, 3]
    for row in range(20):
        expected = rollout(row // 4, row % 4, turns[row // 4])
        n = len(expected["ids"])
        assert output["prompt_completion_ids"][row, :n].tolist() == expected["ids"].tolist()
        assert output["agent_token_mask"][row, :n].bool().tolist() == expected["mask"].tolist()
        assert output["attention_mask"][row].sum() == n
        assert (output["prompt_completion_ids"][row, n:] == tokenizer().pad_token_id).all()


def test_the_returned_dictionary_has_the_required_tensors(tmp_path):
    trainer, output = generate(tmp_path)
    length = output["prompt_completion_ids"].shape[1]
    for key, dtype in KEYS.items():
        assert output[key].shape == (20, length), key
        assert output[key].dtype == dtype, key
        assert output[key].device == trainer.accelerator.device
    assert output["num_items_in_batch"] == output["agent_token_mask"].sum()


@pytest.mark.parametrize("packed", [True, False])
def test_log_probs_are_those_of_the_full_trajectories(tmp_path, packed, monkeypatch):
    passes: list[int] = []
    score = PreparedModel.score

    def counted(self: Any, token_ids: Any, *rest: Any) -> Any:
        passes.append(len(token_ids))
        return score(self, token_ids, *rest)

    monkeypatch.setattr(PreparedModel, "score", counted)
    _, output = generate(tmp_path, packed=packed)
    ids, attention = output["prompt_completion_ids"], output["attention_mask"]
    mask = output["agent_token_mask"].bool()
    with torch.no_grad():
        logits = policy()(input_ids=ids, attention_mask=attention).logits
    fresh = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0]
    for key in ("old_per_token_logps", "ref_per_token_logps"):
        assert torch.allclose(output[key][:, 1:][mask[:, 1:]], fresh[mask[:, 1:]], atol=1e-5)
    assert passes == [20, 20]  # one pass of the policy that acted, one of the reference


def test_advantages_reward_are_the_rewards_of_the_environment(tmp_path):
    _, output = generate(tmp_path, advantages="reward")
    for row in range(20):
        task = row // 4
        expected = rollout(task, row % 4, [2, 3, 1, 2, 3][task])
        last = np.flatnonzero(expected["mask"])[-1]
        assert output["advantages"][row, last] == pytest.approx(expected["reward"] + (2.0 if task == 2 else 0.0))
        assert output["advantages"][row].count_nonzero() == 1


def test_metrics_come_from_the_rollouts(tmp_path):
    trainer, output = generate(tmp_path)
    rewards = [rollout(i, r, [2, 3, 1, 2, 3][i])["reward"] + (2.0 if i == 2 else 0) for i in range(5) for r in range(4)]
    assert trainer._metrics["train"]["reward"] == [pytest.approx(np.mean(rewards), abs=1e-5)]
    lengths = output["agent_token_mask"].sum(1).float()
    assert trainer._metrics["train"]["completions/mean_length"] == [pytest.approx(lengths.mean().item())]


def test_what_does_not_fit_the_contract_is_said_with_its_shape(tmp_path, monkeypatch):
    cls = as_loaded("PlaybackEnv")
    trainer = make_trainer(tmp_path, playback_rows(2))
    monkeypatch.setattr(cls, "run_trial", lambda self, **_: {"padded_token_ids": np.zeros((3, 5))})
    with pytest.raises(TrialError, match=r"PlaybackEnv: run_trial: padded_token_ids has shape \[3, 5\].*\[8, T\]"):
        trainer._generate_and_score_completions([r for r in playback_rows(2) for _ in range(4)])


# T3


def test_the_loss_has_no_gradient_at_tokens_that_the_agent_did_not_write(tmp_path):
    """Gradients of the logits of each position, on the padded path, where all logits exist."""
    trainer, output = generate(tmp_path, packed=False)
    kept: list[torch.Tensor] = []
    base = trainer.policy.base
    hook = base.base_model.register_forward_hook(
        lambda _m, _i, out: (out.last_hidden_state.retain_grad(), kept.append(out.last_hidden_state))[0]
    )
    output["advantages"] = torch.randn(output["advantages"].shape)  # also where they do not belong
    output["ref_per_token_logps"] = torch.randn(output["ref_per_token_logps"].shape)
    trainer.compute_loss(trainer.model, output).backward()
    hook.remove()
    gradient = kept[0].grad  # of the hidden state at t, whose logits predict token t + 1
    predicts_agent = output["agent_token_mask"][:, 1:].bool()
    assert gradient is not None
    assert gradient[:, :-1][~predicts_agent].abs().max() == 0
    assert gradient[:, -1].abs().max() == 0
    assert (gradient[:, :-1][predicts_agent].abs().amax(-1) > 0).all()


@pytest.mark.parametrize("packed", [True, False])
def test_values_at_tokens_that_the_agent_did_not_write_change_nothing(tmp_path, packed):
    trainer, output = generate(tmp_path, packed=packed)
    before = trainer.compute_loss(trainer.model, output)
    outside = ~output["agent_token_mask"].bool()
    for key in ("advantages", "old_per_token_logps", "ref_per_token_logps"):
        output[key] = torch.where(outside, torch.randn_like(output[key]), output[key])
    assert trainer.compute_loss(trainer.model, output) == before


@pytest.mark.parametrize("packed", [True, False])
def test_environment_text_after_the_agents_last_token_changes_nothing(tmp_path, packed):
    trainer, output = generate(tmp_path, packed=packed)
    before = trainer.compute_loss(trainer.model, output)
    for row in range(20):
        last = output["agent_token_mask"][row].nonzero().max()
        output["completion_ids"][row, last + 1 :] = 5
    assert trainer.compute_loss(trainer.model, output) == before


@pytest.mark.parametrize("packed", [True, False])
def test_policy_and_kl_terms_are_means_over_agent_tokens_only(tmp_path, packed):
    """The loss against the definition, worked out by hand from fresh log-probs."""
    trainer, output = generate(tmp_path, packed=packed, loss_type="dapo")
    output["old_per_token_logps"] = output["old_per_token_logps"] - 0.1 * output["agent_token_mask"]
    output["ref_per_token_logps"] = output["ref_per_token_logps"] + 0.3 * output["agent_token_mask"]
    ids, mask = output["prompt_completion_ids"], output["agent_token_mask"].bool()
    logits = policy()(input_ids=ids, attention_mask=output["attention_mask"]).logits.double()
    logps = torch.nn.functional.pad(torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0], (1, 0))
    ratio = (logps - output["old_per_token_logps"]).exp()
    advantages = output["advantages"].double()
    policy_term = -torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    difference = output["ref_per_token_logps"] - logps
    kl = ratio * (difference.exp() - difference - 1)  # TRL corrects the estimator for old samples
    expected = (policy_term + 0.1 * kl)[mask].mean()
    assert trainer.compute_loss(trainer.model, output).item() == pytest.approx(expected.item(), abs=1e-5)


# T4


def test_a_step_runs_on_two_real_environments_in_one_batch(tmp_path):
    """The visual environment and the calculator, a policy that writes whatever it likes, one whole training step."""
    from grpo_tui.envs.loading import make_env

    paths = ["grpo_tui.engine.demonstration.visual.VisualEnv", "grpo_tui.envs.calculator.CalculatorEnv"]
    rows = []
    for path in paths:
        for task in make_env(path, {}, tokenizer()).make_tasks("train", 2, 0):
            rows.append({"env_class_path": path, "env_config": "{}", "task_data": json.dumps(task)})
    model = policy(lora=True)
    agent = TransformersAgent(model, tokenizer(), max_turn_tokens=6, max_trajectory_tokens=2048)
    trainer = make_trainer(
        tmp_path,
        rows,
        model=model,
        agent=agent,
        orchestrator=RewardOrchestrator(config=RewardsConfig()),  # a random policy earns nothing but these
        per_device_train_batch_size=16,
        max_steps=1,
        beta=0.01,
    )
    before = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    trainer.train()
    logs = next(entry for entry in trainer.state.log_history if "loss" in entry)
    assert np.isfinite(logs["loss"])
    assert {"reward", "kl", "entropy", "completions/mean_length"} <= set(logs)
    assert {s.trajectory.env for s in trainer.rollouts.generated} == {"visual", "calculator"}
    assert len(trainer.rollouts.generated) == 16
    after = dict(model.named_parameters())
    assert all(torch.isfinite(after[n]).all() for n in before)
    assert any(not torch.equal(after[n], p) for n, p in before.items())


def test_an_update_whose_gradient_is_not_finite_is_left_out(tmp_path, caplog, monkeypatch):
    trainer = make_trainer(tmp_path, playback_rows(4), max_steps=2, max_grad_norm=1.0)
    compute, weights = trainer.compute_loss, list[torch.Tensor]()

    def nan_at_first(*args: Any, **kwargs: Any) -> torch.Tensor:
        weights.append(next(trainer.model.parameters()).detach().clone())
        return compute(*args, **kwargs) * (float("nan") if len(weights) == 1 else 1.0)

    monkeypatch.setattr(trainer, "compute_loss", nan_at_first)
    trainer.train()
    assert torch.equal(weights[0], weights[1])
    assert all(torch.isfinite(p).all() for p in trainer.model.parameters())
    assert "the gradient of step 1 is not finite, so its update is left out" in caplog.text
