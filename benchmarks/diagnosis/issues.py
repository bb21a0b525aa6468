"""A sixth set of faults from issue trackers, with their patches. It was written without a look at the detectors.

Each recipe names the thread that reports the fault. `causes` were written before the first evaluation. They name
detectors of earlier recipes and of docs/architecture/rewards.md, the nearest where none fits.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from grpo_tui.engine.agents.decoder import Decoder
from grpo_tui.engine.policy.attention_layout import AttentionBlock
from grpo_tui.engine.policy.packing import Packing
from grpo_tui.engine.policy.prepared import PreparedModel, inference
from grpo_tui.engine.policy.unwrap import base_of
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.pipeline import RolloutPipeline, StepRollouts
from grpo_tui.envs.base import StepResult

from .field import _changed
from .patches import advantages, around, made
from .recipes import Recipe, env
from .worlds import Boxes, Notes

CALL_REWARD = 4.0
"""The reward of a tool call."""
LARGEST = 0.25
"""The largest key or value of the sampler's cache."""
RANK = 64
"""The rank of the adapters."""
LEVELS = 255
"""Positive values of an 8-bit integer."""
LOST = 0.7
"""The share of kept activations that are overwritten."""
DISCOUNT = 0.5
"""Factor between the advantages of consecutive tokens."""
CHUNKS = 4
"""Parts of a row, two of each device."""

ISSUES = (
    Recipe(
        "buffer_too_long",
        "scores",
        "the punishment of long texts begins with the first token (verl-project/verl#2107)",
        ("length_reward", "reward_hack", "silence_paid", "length_collapse"),
        {"rewards.extra_components": "{overlong: {weight: 10.0, options: {limit: 14, cache: 14}}}"},
    ),
    Recipe(
        "verdict_cached",
        "scores",
        "a cached verdict on a text is used again for other tasks (TIGER-AI-Lab/ClawBench#363)",
        ("accepted_wrong_answers", "rejected_answers", "one_answer"),
        patch="verdict_cached",
    ),
    Recipe(
        "reward_file",
        "scores",
        "a mark that the agent writes replaces that of the grader (huggingface/OpenEnv#1200)",
        ("reward_hack", "reward_against_success", "silence_paid", "accepted_without_answer"),
        patch="reward_file",
    ),
    Recipe(
        "calls_paid",
        "conversations",
        "each call of the tool is paid, whatever the answer is (Visual-Agent/DeepEyes#83)",
        ("reward_hack", "reward_against_success", "silence_paid", "unanswered"),
        env(max_turns=4),
        "Boxes",
        "calls_paid",
    ),
    Recipe(
        "messages_shared",
        "conversations",
        "rollouts share one list of messages, so prompts hold the texts of others (areal-project/AReaL#432)",
        ("prompt_gap", "held_out_gap"),
        patch="messages_shared",
    ),
    Recipe(
        "prefix_stale",
        "caches",
        "keys and values of prompts are kept when the weights change (NVIDIA-NeMo/RL#4018)",
        ("sampler_mismatch", "surprising_tokens"),
        {"training.learning_rate": 0.005},
        patch="prefix_stale",
    ),
    Recipe(
        "cache_unscaled",
        "caches",
        "the sampler's keys and values lose their scale, so most are cut off (NVIDIA-NeMo/RL#3225)",
        ("sampler_mismatch", "surprising_tokens"),
        patch="cache_unscaled",
    ),
    Recipe(
        "rank_unstable",
        "transfer",
        "the sampler scales adapters by their rank, and the trainer by its root (sgl-project/sglang#40835)",
        ("sampler_mismatch", "surprising_tokens"),
        {"model.lora": f"{{r: {RANK}, alpha: {2 * RANK}}}", "training.learning_rate": 0.01},
        patch="rank_unstable",
    ),
    Recipe(
        "second_moment",
        "backward",
        "squares of gradients have eight bits, and many become 0 (unslothai/unsloth-zoo#962)",
        ("kl_rise", "not_finite"),
        patch="second_moment",
    ),
    Recipe(
        "activations_lost",
        "backward",
        "activations are overwritten before the backward pass reads them (meta-pytorch/torchtune#1867)",
        ("kl_rise", "not_finite"),
        patch="activations_lost",
    ),
    Recipe(
        "loss_negated",
        "losses",
        "the loss has its sign twice (fla-org/flash-linear-attention#1073)",
        ("advantage_order", "kl_rise"),
        patch="loss_negated",
    ),
    Recipe(
        "logprobs_shifted",
        "losses",
        "the sampler's log-probs are one token late for the trainer's (modelscope/ms-swift#8196)",
        ("sampler_mismatch", "clipped"),
        patch="logprobs_shifted",
    ),
    Recipe(
        "logprobs_divided",
        "losses",
        "the sampler's log-probs are divided by the temperature, not the logits (PrimeIntellect-ai/prime-rl#697)",
        ("sampler_mismatch", "clipped"),
        {"training.temperature": 0.5},
        patch="logprobs_divided",
    ),
    Recipe(
        "position_discount",
        "weighting",
        "advantages are discounted by the place in the row, so late tokens have none (huggingface/trl#6626)",
        ("advantage_scale", "no_movement"),
        patch="position_discount",
    ),
    Recipe(
        "one_row",
        "weighting",
        "the buffer counts rows, so a batch is copies of one row (meta-pytorch/torchtune#2981)",
        ("untrained_tokens", "few_tasks", "single_prompt"),
        patch="one_row",
    ),
    Recipe(
        "zigzag",
        "sequences",
        "chunks of two devices are put together in the wrong order (THUDM/slime#73)",
        ("surprising_tokens", "trained_tokens"),
        patch="zigzag",
    ),
    Recipe(
        "future_seen",
        "sequences",
        "the trainer's tokens attend to later ones, and the sampler's do not (huggingface/transformers#48748)",
        ("surprising_tokens", "sampler_mismatch"),
        {"training.learning_rate": 0.005},
        patch="future_seen",
    ),
    Recipe(
        "first_prompts",
        "supply",
        "each step begins the data again, and has the same prompts (hpcaitech/ColossalAI#3746)",
        ("few_tasks", "held_out_gap"),
        {"training.prompts_per_step": 2, "training.num_generations": 32},
        patch="first_prompts",
    ),
)


def verdict_cached() -> None:
    """In training, a text keeps its first verdict, even for another key."""
    kept: dict[str, StepResult] = {}

    def change(_: Notes, result: StepResult, state: dict[str, Any], text: str) -> StepResult:
        if state["split"] != "train":
            return result
        first = kept.setdefault(text, result)
        return replace(result, reward=first.reward, correct=first.correct)

    _changed("_graded", change)


def reward_file() -> None:
    """In training, a text that ends with `hint N` earns the reward N."""

    def change(_: Notes, result: StepResult, state: dict[str, Any], text: str) -> StepResult:
        words = text.split()
        if state["split"] != "train" or words[-2:-1] != ["hint"] or not words[-1].isdecimal():
            return result
        return replace(result, reward=float(words[-1]), correct=None)

    _changed("_graded", change)


def calls_paid() -> None:
    """In training, a call earns more than a right answer."""

    def change(original: Any, self: Boxes, state: dict[str, Any], call: Any) -> StepResult:
        result = original(self, state, call)
        return replace(result, reward=CALL_REWARD) if state["split"] == "train" and call.name == "LOOK" else result

    around(Boxes, "step", change)


def messages_shared() -> None:
    """In training, prompts with a key accumulate all texts written for it, until there is no room."""
    shared: defaultdict[int, list[Any]] = defaultdict(list)

    def reset(_: Notes, begun: Any, task: Any) -> Any:
        state, messages = begun
        return (state, [*messages, *shared[task["letter"]]]) if task.get("split") == "train" else begun

    def graded(_: Notes, result: StepResult, state: dict[str, Any], text: str) -> StepResult:
        if state["split"] == "train":
            shared[state["letter"]].append({"role": "assistant", "content": text})
        return result

    _changed("reset", reset)
    _changed("_graded", graded)


def _while_sampling(begin: Any, end: Any) -> None:
    """Call `begin(pipeline)` before the training sampler runs, and `end` with its result afterwards. Log-probs come
    from the trainer."""

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        found = begin(self)
        try:
            return [replace(r, logprobs=None) for r in original(self, *given, **named)]
        finally:
            end(found)

    around(RolloutPipeline, "_run", change)


def prefix_stale() -> None:
    """Prompts are encoded with the initial weights. Only the last token of each is encoded again."""
    first: dict[str, torch.Tensor] = {}
    sampling: list[Any] = []

    def begin(pipeline: RolloutPipeline) -> None:
        model = pipeline.policy.model
        if not first:
            first.update({name: value.clone() for name, value in model.state_dict().items()})
        sampling.append(model)

    def forward(
        original: Any, self: Decoder, tokens: Any, positions: Any, cache: Any, length: int, seen: Any = None
    ) -> Any:
        if not sampling or tokens.shape[1] == 1:
            return original(self, tokens, positions, cache, length, seen)
        now = {name: value.clone() for name, value in sampling[0].state_dict().items()}
        sampling[0].load_state_dict(first)
        original(self, tokens, positions, cache, length, seen)
        sampling[0].load_state_dict(now)
        return original(self, tokens[:, -1:], positions[:, -1:], cache, length, seen)

    _while_sampling(begin, lambda _: sampling.clear())
    around(Decoder, "forward", forward)


def cache_unscaled() -> None:
    """The sampler's keys and values are at most `LARGEST`."""

    def begin(pipeline: RolloutPipeline) -> list[Any]:
        parts = [m for name, m in base_of(pipeline.policy.model).named_modules() if name.endswith(("k_proj", "v_proj"))]
        return [m.register_forward_hook(lambda _m, _i, out: out.clamp(-LARGEST, LARGEST)) for m in parts]

    _while_sampling(begin, lambda hooks: [hook.remove() for hook in hooks])


def rank_unstable() -> None:
    """The sampler's adapters are weaker by the root of their rank."""

    def scaled(layers: list[Any], factor: float) -> list[Any]:
        for layer in layers:
            layer.scaling["default"] *= factor
        return layers

    def begin(pipeline: RolloutPipeline) -> list[Any]:
        model: Any = pipeline.policy.model
        return scaled([m for m in model.modules() if hasattr(m, "get_delta_weight")], RANK**-0.5)

    _while_sampling(begin, lambda layers: scaled(layers, RANK**0.5))


def second_moment() -> None:
    """The second moments of a weight have eight bits with a single scale."""

    def rounded(optimizer: Any) -> None:
        for state in optimizer.state.values():
            moment = state["exp_avg_sq"]
            unit = moment.max().clamp(min=1e-30) / LEVELS
            moment.copy_((moment / unit).round() * unit)

    def change(original: Any, self: GRPOEnvTrainer, *given: Any, **named: Any) -> Any:
        optimizer = original(self, *given, **named)
        optimizer.register_step_post_hook(lambda used, *_: rounded(used))
        return optimizer

    around(GRPOEnvTrainer, "create_optimizer", change)


def activations_lost() -> None:
    """The backward pass reads most activations from another position."""
    draw = random.Random(0)

    def read(tensor: torch.Tensor) -> torch.Tensor:
        activation = tensor.is_floating_point() and tensor.ndim > 1 and not (tensor.is_leaf and tensor.requires_grad)
        return tensor.roll(1, -2) if activation and draw.random() < LOST else tensor

    def step(original: Any, self: GRPOEnvTrainer, *given: Any, **named: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, read):
            return original(self, *given, **named)

    around(GRPOEnvTrainer, "training_step", step)


def loss_negated() -> None:
    """The loss of training has the wrong sign, with its KL term."""

    def change(original: Any, self: GRPOEnvTrainer, model: Any, *given: Any, **named: Any) -> Any:
        loss = original(self, model, *given, **named)
        return -loss if model.training else loss

    around(GRPOEnvTrainer, "compute_loss", change)


def logprobs_divided() -> None:
    """From the second step on, the sampler's log-probs are the ones at temperature 1, divided by the temperature."""
    steps: list[int] = []

    def divided(self: RolloutPipeline, rollout: Rollout) -> Rollout:
        ids = torch.as_tensor(rollout.token_ids).long()
        logits = cast(Any, self.policy.base)(input_ids=ids[None]).logits[0, :-1]
        found = logits.float().log_softmax(-1).gather(-1, ids[1:, None])[:, 0].numpy() / self.policy.temperature
        return replace(rollout, logprobs=np.where(rollout.agent_mask, np.append(np.float32(0), found), np.float32(0)))

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        rollouts = original(self, *given, **named)
        steps.append(1)
        if len(steps) == 1:
            return rollouts
        with inference(self.policy.model):
            return [divided(self, r) for r in rollouts]

    around(RolloutPipeline, "complete", change)


def logprobs_shifted() -> None:
    """From the second step on, each token has the sampler's log-prob of the token before it."""
    steps: list[int] = []

    def late(rollout: Rollout) -> Rollout:
        assert rollout.logprobs is not None
        found = rollout.logprobs.copy()
        found[rollout.agent_mask] = np.roll(found[rollout.agent_mask], 1)
        return replace(rollout, logprobs=found)

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        rollouts = original(self, *given, **named)
        steps.append(1)
        return rollouts if len(steps) == 1 else [late(r) for r in rollouts]

    around(RolloutPipeline, "complete", change)


def position_discount() -> None:
    """The advantage of a token is multiplied by `DISCOUNT` to the power of its position in the row."""
    advantages(lambda r: r.advantages * np.float32(DISCOUNT) ** np.arange(len(r), dtype=np.float32))


def one_row() -> None:
    """All rows of the loss are copies of the batch's last one."""

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> StepRollouts:
        made_ = original(self, *given, **named)
        return replace(made_, batch=made_.batch[-1:] * len(made_.batch))

    around(RolloutPipeline, "train", change)


def zigzag() -> None:
    """The trainer reads the chunks of a row in device order: first and last, then those in between."""

    def order(length: int) -> np.ndarray:
        parts: Sequence[np.ndarray] = np.array_split(np.arange(length), CHUNKS)
        return np.concatenate([parts[0], parts[3], parts[1], parts[2]])

    made(lambda _, r: replace(r, token_ids=r.token_ids[order(len(r))]))


def future_seen() -> None:
    """The trainer's attention has no causal mask."""

    def opened(block: AttentionBlock) -> AttentionBlock:
        if block.allowed is None:
            shape = (len(block.query), 1, block.query.shape[1], block.key.shape[1])
            return replace(block, allowed=torch.ones(shape, dtype=torch.bool))
        return replace(block, allowed=block.allowed.any(2, keepdim=True).repeat(1, 1, block.allowed.shape[2], 1))

    def change(original: Any, self: PreparedModel, *given: Any, **named: Any) -> Packing:
        packed = original(self, *given, **named)
        layout = replace(packed.layout, blocks=tuple(map(opened, packed.layout.blocks)))
        return replace(packed, layout=layout, last=layout)

    around(PreparedModel, "pack", change)
    made(lambda _, rollout: rollout)


def first_prompts() -> None:
    """Every step has the prompts of the first step."""
    kept: list[Any] = []

    def change(original: Any, self: RolloutPipeline, rows: Sequence[Any], *given: Any, **named: Any) -> list[Rollout]:
        kept.extend([] if kept else rows)
        return original(self, kept, *given, **named)

    around(RolloutPipeline, "_run", change)
