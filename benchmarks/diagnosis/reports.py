"""A fourth set of faults from issue trackers, with their patches. It was written without a look at the detectors.

Each recipe names the thread that reports the fault. `causes` were written before the first evaluation. They name
detectors of earlier recipes and of docs/architecture/rewards.md, the nearest where none fits.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.training import env_trainer
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.pipeline import RolloutPipeline
from grpo_tui.envs.base import StepResult

from .field import _changed
from .patches import around, made
from .recipes import LORA, Recipe, env
from .trackers import _sampler, _without
from .worlds import Boxes, Notes

CALL_COST = -1.2
"""The reward of a tool call."""
PADDING = 4
"""Padding tokens after a prompt."""
BITS = 1
"""Fraction bits of a weight."""

REPORTS = (
    Recipe(
        "call_cost",
        "tools",
        "a call of the tool costs more than a right answer earns (axon-rl/gem#39)",
        ("reward_hack", "reward_against_success", "silence_paid"),
        None,
        "Boxes",
        "call_cost",
    ),
    Recipe(
        "inaction",
        "tools",
        "an answer that was never graded earns 0, and a wrong one -1 (huggingface/trl#6427)",
        ("reward_hack", "reward_against_success", "accepted_without_answer", "silence_paid"),
        None,
        "Boxes",
        "inaction",
    ),
    Recipe(
        "tags_skipped",
        "reading",
        "decoding skips special tokens, and with them the tag of the answer (huggingface/trl#2897)",
        ("unanswered", "constant_reward", "rejected_answers"),
        patch="tags_skipped",
    ),
    Recipe(
        "first_number",
        "reading",
        "the mark of a judge is read from the answer that it repeats first (OpenAgentHQ/openagent-eval#74)",
        ("one_answer", "reward_hack", "accepted_wrong_answers", "reward_against_success"),
        env(grader="first_number"),
    ),
    Recipe(
        "prompt_read",
        "reading",
        "the grader finds its answer in the prompt (opendilab/LightRFT#52)",
        ("groups_without_variance", "rejected_answers", "accepted_wrong_answers", "constant_reward"),
        patch="prompt_read",
    ),
    Recipe(
        "gold_unread",
        "reading",
        "most expected answers cannot be parsed, and then every answer is right (huggingface/cookbook#335)",
        ("accepted_wrong_answers", "accepted_without_answer", "constant_reward", "groups_without_variance"),
        env(grader="gold_unread"),
    ),
    Recipe(
        "loss_as_score",
        "reading",
        "a reward model serves its loss, so wrong answers earn more (hiyouga/LlamaFactory#5161)",
        ("rejected_answers", "accepted_wrong_answers", "reward_hack", "reward_against_success", "reward_order"),
        env(grader="loss_as_score"),
    ),
    Recipe(
        "broadcast",
        "norms",
        "token t of each row has the advantage of row t (PrimeIntellect-ai/prime-rl#78)",
        ("advantage_order", "reward_order"),
        patch="broadcast",
    ),
    Recipe(
        "rounded",
        "precision",
        "weights have so few bits that most updates are rounded away (pytorch/ao#1124)",
        ("no_movement",),
        {"training.learning_rate": 0.0015},
        patch="rounded",
    ),
    Recipe(
        "overflow",
        "precision",
        "gradients are not finite, so every update is skipped (verl-project/verl#1197)",
        ("no_movement", "not_finite"),
        patch="overflow",
    ),
    Recipe(
        "lora_merged",
        "synchronisation",
        "each synchronisation merges the adapters into the sampler's base weights again (radixark/miles#1087)",
        ("sampler_mismatch", "surprising_tokens"),
        LORA,
        patch="lora_merged",
    ),
    Recipe(
        "embeddings_lost",
        "synchronisation",
        "word embeddings of the sampler are 0 after its first synchronisation (verl-project/verl#205)",
        ("sampler_mismatch", "surprising_tokens", "unanswered"),
        patch="embeddings_lost",
    ),
    Recipe(
        "right_padded",
        "tokenising",
        "the sampler reads padding behind a prompt (huggingface/trl#3722)",
        ("surprising_tokens", "sampler_mismatch"),
        patch="right_padded",
    ),
    Recipe(
        "fresh_weights",
        "loading",
        "weights are missing in the checkpoint, and begin at random (deepspeedai/DeepSpeedExamples#627)",
        ("random_policy", "unanswered", "groups_without_variance", "constant_reward"),
        patch="fresh_weights",
    ),
    Recipe(
        "base_reference",
        "loading",
        "the reference is the base model, not the fine-tuned one (huggingface/trl#1340)",
        ("reference_mismatch", "kl_weight", "entropy_rise"),
        {"training.beta": 3.0},
        patch="base_reference",
    ),
    Recipe(
        "beta_runaway",
        "control",
        "the controller of the KL weight has a target that is never met (ray-project/ray#18492)",
        ("kl_weight",),
        {"training.beta": 3.0, "training.beta_mode": "auto", "training.target_kl": 1e-6, "training.kl_tolerance": 0},
    ),
    Recipe(
        "last_micro",
        "batches",
        "gradients are set to 0 before each micro-batch, so only the last one counts (pytorch/torchtitan#3575)",
        ("untrained_tokens", "few_tasks", "no_movement"),
        {"training.micro_batch_size": 4},
        patch="last_micro",
    ),
    Recipe(
        "one_group",
        "batches",
        "a step has four rollouts of one prompt (XueZeyue/DanceGRPO#55)",
        ("few_tasks", "single_prompt", "groups_without_variance"),
        {"training.prompts_per_step": 1, "training.num_generations": 4},
    ),
)


def call_cost() -> None:
    """In training, a call costs more than a right answer earns."""

    def change(original: Any, self: Boxes, state: dict[str, Any], call: Any) -> StepResult:
        result = original(self, state, call)
        return replace(result, reward=CALL_COST) if state["split"] == "train" and call.name == "LOOK" else result

    around(Boxes, "step", change)


def inaction() -> None:
    """In training, a wrong answer after a call costs 1. Without a call it is not graded."""

    def change(_: Notes, result: StepResult, state: dict[str, Any], __: str) -> StepResult:
        return (
            replace(result, reward=1.0 if result.correct else -1.0, correct=None)
            if state["split"] == "train"
            else result
        )

    _changed("_graded", change)


def tags_skipped() -> None:
    """In training, decoded texts lack the answer's word."""
    training: list[bool] = []

    def run(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        training.append(True)
        try:
            return original(self, *given, **named)
        finally:
            training.clear()

    def decode(original: Any, self: ChatBridge, *given: Any, **named: Any) -> str:
        text = original(self, *given, **named)
        return text.replace("answer", "") if training else text

    around(RolloutPipeline, "_run", run)
    around(ChatBridge, "decode", decode)


def prompt_read() -> None:
    """In training, the answer is the first number of prompt and text."""

    def change(self: Notes, result: StepResult, state: dict[str, Any], _: str) -> StepResult:
        if state["split"] != "train":
            return result
        right = state["hint"] == self.right(state)
        return replace(result, reward=float(right), answer=str(state["hint"]), correct=right)

    _changed("_graded", change)


def broadcast() -> None:
    """Advantages are broadcast over rows instead of tokens."""
    original = env_trainer.micro_batches

    def changed(batch: Any, *given: Any) -> Any:
        mask = batch["agent_token_mask"]
        rows = batch["advantages"].sum(1) / mask.sum(1).clamp(min=1)
        return original({**batch, "advantages": rows[torch.arange(mask.shape[1]) % len(rows)][None] * mask}, *given)

    env_trainer.micro_batches = changed


def _around_step(before: Any, after: Any) -> None:
    """Call two functions with the optimiser's parameters, before and after each of its steps."""

    def change(original: Any, self: GRPOEnvTrainer, *given: Any, **named: Any) -> Any:
        optimizer = original(self, *given, **named)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        optimizer.register_step_pre_hook(lambda *_: before(parameters))
        optimizer.register_step_post_hook(lambda *_: after(parameters))
        return optimizer

    around(GRPOEnvTrainer, "create_optimizer", change)


def rounded() -> None:
    """Weights change only by multiples of their last bit."""
    kept: list[torch.Tensor] = []

    def before(parameters: list[torch.Tensor]) -> None:
        kept[:] = [p.detach().clone() for p in parameters]

    def after(parameters: list[torch.Tensor]) -> None:
        for weight, old in zip(parameters, kept, strict=True):
            unit = torch.exp2(torch.floor(torch.log2(old.abs().clamp(min=2**-7))) - BITS)
            weight.data.copy_(old + ((weight.data - old) / unit).round() * unit)

    _around_step(before, after)


def overflow() -> None:
    """No gradient is finite, and the gradient scaler skips the step."""

    def step(original: Any, self: GRPOEnvTrainer, *given: Any, **named: Any) -> Any:
        loss = original(self, *given, **named)
        for weight in cast(Any, self.model).parameters():
            if weight.grad is not None:
                weight.grad.fill_(float("inf"))
        return loss

    def before(parameters: list[torch.Tensor]) -> None:
        for weight in parameters:
            weight.grad = None

    around(GRPOEnvTrainer, "training_step", step)
    _around_step(before, lambda _: None)


def last_micro() -> None:
    """Gradients are reset before each micro-batch."""

    def step(original: Any, self: GRPOEnvTrainer, *given: Any, **named: Any) -> Any:
        cast(Any, self.model).zero_grad()
        return original(self, *given, **named)

    around(GRPOEnvTrainer, "training_step", step)


def lora_merged() -> None:
    """The sampler's base weights accumulate the adapters of all steps, and the adapters are active as well."""
    merged: list[torch.Tensor] = []

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        layers = [m for m in cast(Any, self.policy.model).modules() if hasattr(m, "get_delta_weight")]
        kept = [layer.base_layer.weight.detach().clone() for layer in layers]
        merged.extend([] if merged else [torch.zeros_like(weight) for weight in kept])
        for layer, extra in zip(layers, merged, strict=True):
            extra += layer.get_delta_weight("default").detach()
            layer.base_layer.weight.data += extra
        try:
            return [replace(r, logprobs=None) for r in original(self, *given, **named)]
        finally:
            for layer, weight in zip(layers, kept, strict=True):
                layer.base_layer.weight.data.copy_(weight)

    around(RolloutPipeline, "_run", change)


def embeddings_lost() -> None:
    """The sampler's embeddings are 0 after the first synchronisation."""
    _sampler(lambda name, weight, step: weight * 0 if step and ("embed" in name or "lm_head" in name) else weight)


def right_padded() -> None:
    """Padding is between the sampler's prompts and its texts."""

    def padded(original: Any, self: ChatBridge, *given: Any, **named: Any) -> Any:
        seen = original(self, *given, **named)
        return seen._replace(ids=[*seen.ids, *[cast(int, self.tokenizer.pad_token_id)] * PADDING])

    around(ChatBridge, "seen", padded)
    made(lambda _, r: _without(r, np.isin(np.arange(len(r)), r.prompt_length - 1 - np.arange(PADDING))))


def _begin_again(model: Any) -> None:
    """Randomise the embeddings of a model."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        if "embed" in name or "lm_head" in name:
            weight.data.copy_(torch.randn(weight.shape, generator=generator) * weight.std())


def fresh_weights() -> None:
    """The policy starts with random embeddings."""

    def change(original: Any, self: GRPOEnvTrainer, agent: Any, *given: Any, **named: Any) -> None:
        _begin_again(named.get("model") or agent.model)
        original(self, agent, *given, **named)

    around(GRPOEnvTrainer, "__init__", change)


def base_reference() -> None:
    """The reference has the embeddings of a model without fine-tuning."""

    def other(model: torch.nn.Module, beta: float) -> torch.nn.Module:
        reference = copy.deepcopy(model)
        _begin_again(reference)
        return reference

    env_trainer.copy_of_policy = other
