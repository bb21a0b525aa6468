"""On the same rollouts, losses and gradients are those of TRL's own `GRPOTrainer`."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl.trainer.grpo_trainer import GRPOTrainer

from grpo_tui.engine.policy.versions import NO_CHECKPOINTING
from grpo_tui.engine.training import env_trainer
from grpo_tui.engine.training.losses import kl_of_tokens

from .parts import arguments, make_trainer, playback_rows, policy, rollout, tokenizer

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
AVERAGED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
"""One loss for each way to average over tokens: sapo averages as grpo, cispo and vespo as dapo."""


class Gradients(TrainerCallback):
    """Keeps every gradient just before each optimiser step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.steps.append({n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None})


def stock(folder: Any, tasks: int, turns: int, model: Any, **changes: Any) -> Any:
    """TRL's trainer, fed the same rollouts through `rollout_func`."""
    group = changes.get("num_generations", 4)

    def rollout_func(prompts: list[str], trainer: Any) -> dict[str, Any]:
        rows = [rollout(int(p), i % group, turns) for i, p in enumerate(prompts)]
        cuts = [int(r["mask"].argmax()) for r in rows]
        return {
            "prompt_ids": [r["ids"][:c].tolist() for r, c in zip(rows, cuts, strict=True)],
            "completion_ids": [r["ids"][c:].tolist() for r, c in zip(rows, cuts, strict=True)],
            "logprobs": None,
            "env_mask": [r["mask"][c:].astype(int).tolist() for r, c in zip(rows, cuts, strict=True)],
            "earned": [float(r["reward"]) for r in rows],
        }

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GRPOTrainer(
            model=model,
            reward_funcs=lambda prompts, earned, **_: earned,
            args=arguments(folder, **changes),
            train_dataset=Dataset.from_list([{"prompt": str(i)} for i in range(tasks)]),
            processing_class=tokenizer(),
            rollout_func=rollout_func,
        )


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def both(
    tmp_path: Any,
    *,
    lora: bool = False,
    turns: int = 1,
    layers: int = 1,
    packed: bool = True,
    ours_only: dict[str, Any] | None = None,
    **changes: Any,
) -> None:
    """Train both and compare loss and all gradients of every step."""
    beta = changes.get("beta", 0.0)
    mine, theirs = (policy(lora=lora, layers=layers) for _ in range(2))
    if beta and not lora:  # TRL loads its reference from a folder
        theirs.save_pretrained(tmp_path / "policy")
        theirs = type(theirs).from_pretrained(tmp_path / "policy")
    ours = make_trainer(
        tmp_path, playback_rows(12, turns=turns), model=mine, packed=packed, **(ours_only or {}), **changes
    )
    reference = stock(tmp_path, 12, turns, theirs, **changes)
    seen, expected = Gradients(), Gradients()
    ours.add_callback(seen)
    reference.add_callback(expected)
    ours.train()
    reference.train()
    assert ours.packed == packed
    assert losses(ours) == pytest.approx(losses(reference), abs=1e-5)
    assert len(seen.steps) == len(expected.steps) == 3
    for step, (a, b) in enumerate(zip(seen.steps, expected.steps, strict=True)):
        assert a.keys() == b.keys()
        for name in a:
            scale = max(1.0, b[name].abs().max().item())
            assert (a[name] - b[name]).abs().max().item() <= 1e-5 * scale, (step, name)
    assert max(g.abs().max() for g in expected.steps[-1].values()) > 1e-4  # something was compared
    for (name, a), b in zip(mine.named_parameters(), theirs.parameters(), strict=False):
        assert (a - b).abs().max().item() <= 1e-4 * max(1.0, b.abs().max().item()), name


@pytest.mark.parametrize(
    ("loss", "lora", "beta"),
    [
        *((loss, True, 0.2) for loss in LOSSES),
        ("grpo", False, 0.0),
        *(pytest.param(loss, False, 0.0, marks=pytest.mark.stress) for loss in LOSSES if loss != "grpo"),
        *(pytest.param(loss, True, 0.0, marks=pytest.mark.stress) for loss in LOSSES),
        *(pytest.param(loss, False, 0.2, marks=pytest.mark.stress) for loss in LOSSES),
    ],
)
def test_single_turn_steps_equal_those_of_trl(tmp_path, loss, lora, beta):
    both(tmp_path, lora=lora, loss_type=loss, beta=beta)


@pytest.mark.parametrize("scale", ["batch", "none"])  # the others of this file are scaled by their group
def test_scaled_advantages_equal_those_of_trl(tmp_path, scale):
    both(tmp_path, scale_rewards=scale)


def test_multi_turn_steps_equal_those_of_trl_with_its_env_mask(tmp_path):
    both(tmp_path, turns=3, layers=2, lora=True, beta=0.2)


def test_several_iterations_on_one_batch_equal_those_of_trl(tmp_path):
    """The second pass is off-policy: ratios and clipping matter."""
    both(tmp_path, turns=2, num_iterations=3, epsilon=0.05, learning_rate=0.5)


def test_accumulated_micro_batches_equal_those_of_trl(tmp_path):
    both(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2, loss_type="dapo", beta=0.2)


PASSED: list[dict[str, Any]] = [
    {"delta": 1.05, "num_iterations": 3, "epsilon": 0.05, "learning_rate": 0.5},
    {"epsilon": 0.01, "epsilon_high": 0.05, "num_iterations": 2, "learning_rate": 0.5},
    {"entropy_coef": 0.05},
    {"use_adaptive_entropy": True, "entropy_target": 9.0, "entropy_coef_delta": 0.1},
    {"top_entropy_quantile": 0.4},
    {"top_entropy_quantile": 0.4, "entropy_coef": 0.05, "lora": True, "beta": 0.2},
    {"sync_ref_model": True, "ref_model_sync_steps": 1, "ref_model_mixup_alpha": 0.5, "beta": 0.5},
    {"off_policy_mask_threshold": 1e-4, "num_iterations": 3, "learning_rate": 0.5},
    {"beta": 0.2, "use_bias_correction_kl": False, "num_iterations": 3, "learning_rate": 0.5},
    {"loss_type": "sapo", "sapo_temperature_neg": 3.0, "num_iterations": 2, "learning_rate": 0.5},
    {"loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_neg": 4.0, "num_iterations": 2, "learning_rate": 0.5},
    {"lr_scheduler_type": "cosine", "warmup_steps": 0.4},
    {"lr_scheduler_type": "cosine_with_restarts", "lr_scheduler_kwargs": {"num_cycles": 2}},
    {"optim": "adafactor", "learning_rate": 1e-3},
    {"optim": "adamw_torch", "adam_beta1": 0.5, "adam_beta2": 0.7, "adam_epsilon": 1e-3, "weight_decay": 0.3},
    {"optim": "rmsprop", "optim_args": "alpha=0.5", "learning_rate": 1e-3, "max_grad_norm": 0.1},
    {"max_steps": -1, "num_train_epochs": 0.5},
    {"shuffle_dataset": False},
    {"per_device_train_batch_size": 4, "steps_per_generation": 4, "gradient_accumulation_steps": 4, "delta": 1.2},
]


@pytest.mark.parametrize("changes", PASSED, ids=lambda changes: "-".join(changes))
def test_passed_fields_have_the_losses_gradients_and_weights_of_trl(tmp_path, changes):
    both(tmp_path, turns=2, **changes)


@pytest.mark.parametrize(
    ("loss", "level"),
    [
        *((loss, "token") for loss in AVERAGED),
        ("grpo", "sequence"),
        *(pytest.param(loss, "token", marks=pytest.mark.stress) for loss in LOSSES if loss not in AVERAGED),
        *(pytest.param(loss, "sequence", marks=pytest.mark.stress) for loss in LOSSES if loss != "grpo"),
    ],
)
def test_the_kl_of_other_estimators_is_averaged_as_trl_averages_k3(tmp_path, monkeypatch, loss, level):
    """The path of k1 and k2, with the formula of k3 in their place."""
    monkeypatch.setattr(env_trainer, "kl_of_tokens", lambda logprobs, reference, _: kl_of_tokens(logprobs, reference))
    # bnpo averages over a micro-batch, and TRL shuffles rows between micro-batches.
    accumulated = {} if loss == "bnpo" else {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    settings = {"num_iterations": 2, "learning_rate": 0.3, "importance_sampling_level": level, **accumulated}
    both(tmp_path, turns=2, loss_type=loss, beta=0.2, ours_only={"kl_estimator": "k1"}, **settings)


@pytest.mark.parametrize("estimator", ["k1", "k2"])
def test_an_estimator_of_the_kl_has_the_gradient_of_its_definition(tmp_path, estimator):
    """With beta alone (no advantages), the loss is the mean of ρ · k over the agent's tokens."""
    trainer = make_trainer(tmp_path, playback_rows(12, turns=2), model=policy(), beta=0.3, kl_estimator=estimator)
    batch = trainer._generate_and_score_completions([{"row": i // 4} for i in range(8)])
    batch["advantages"] = torch.zeros_like(batch["advantages"])
    batch["ref_per_token_logps"] = batch["ref_per_token_logps"] + 0.4 * torch.randn(batch["advantages"].shape)
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    found = {n: p.grad.double() for n, p in trainer.model.named_parameters()}
    exact = trainer.model.double()
    exact.zero_grad()
    ids, mask = batch["prompt_completion_ids"], batch["agent_token_mask"].bool()
    logits = exact(input_ids=ids, attention_mask=batch["attention_mask"]).logits
    logp = torch.log_softmax(logits[:, :-1], -1).gather(-1, ids[:, 1:, None])[..., 0][mask[:, 1:]]
    d = batch["ref_per_token_logps"].double()[mask] - logp
    kl = -d if estimator == "k1" else d**2 / 2
    ratio = torch.exp(logp - batch["old_per_token_logps"].double()[mask])
    expected = 0.3 * (ratio * kl).sum() / mask.sum()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)
    for name, parameter in exact.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-5, rtol=1e-3)


def test_gradient_checkpointing_changes_nothing(tmp_path):
    checkpointing: dict[str, Any] = dict.fromkeys(NO_CHECKPOINTING, True)
    both(tmp_path, turns=2, layers=2, lora=True, beta=0.2, **checkpointing)


def test_sequence_level_importance_sampling_equals_that_of_trl(tmp_path):
    both(tmp_path, turns=2, loss_type="grpo", importance_sampling_level="sequence")


def test_the_padded_path_equals_trl_too(tmp_path):
    both(tmp_path, turns=2, layers=2, lora=True, beta=0.2, packed=False)
