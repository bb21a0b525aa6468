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

from .parts import arguments, make_trainer, playback_rows, policy, rollout, tokenizer

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")


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


def both(tmp_path: Any, *, lora: bool = False, turns: int = 1, packed: bool = True, **changes: Any) -> None:
    """Train both and compare loss and all gradients of every step."""
    beta = changes.get("beta", 0.0)
    mine, theirs = policy(lora=lora), policy(lora=lora)
    if beta and not lora:  # TRL loads its reference from a folder
        theirs.save_pretrained(tmp_path / "policy")
        theirs = type(theirs).from_pretrained(tmp_path / "policy")
    ours = make_trainer(tmp_path, playback_rows(12, turns=turns), model=mine, packed=packed, **changes)
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


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("lora", [False, True])
@pytest.mark.parametrize("beta", [0.0, 0.2])
def test_single_turn_steps_equal_those_of_trl(tmp_path, loss, lora, beta):
    both(tmp_path, lora=lora, loss_type=loss, beta=beta)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_scaled_advantages_equal_those_of_trl(tmp_path, scale):
    both(tmp_path, scale_rewards=scale)


def test_multi_turn_steps_equal_those_of_trl_with_its_env_mask(tmp_path):
    both(tmp_path, turns=3, lora=True, beta=0.2)


def test_several_iterations_on_one_batch_equal_those_of_trl(tmp_path):
    """The second pass is off-policy: ratios and clipping matter."""
    both(tmp_path, turns=2, num_iterations=3, epsilon=0.05, learning_rate=0.5)


def test_accumulated_micro_batches_equal_those_of_trl(tmp_path):
    both(tmp_path, per_device_train_batch_size=4, gradient_accumulation_steps=2, loss_type="dapo", beta=0.2)


def test_gradient_checkpointing_changes_nothing(tmp_path):
    both(tmp_path, turns=2, lora=True, beta=0.2, **dict.fromkeys(NO_CHECKPOINTING, True))


def test_sequence_level_importance_sampling_equals_that_of_trl(tmp_path):
    both(tmp_path, turns=2, loss_type="grpo", importance_sampling_level="sequence")


def test_the_padded_path_equals_trl_too(tmp_path):
    both(tmp_path, turns=2, lora=True, beta=0.2, packed=False)
