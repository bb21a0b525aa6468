"""A fifth set of faults from issue trackers, with their patches. It was written without a look at the detectors.

Each recipe names the thread that reports the fault. `causes` were written before the first evaluation. They name
detectors of earlier recipes and of docs/architecture/rewards.md, the nearest where none fits. `text_mismatch` was added
with its detector, after that evaluation.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.policy.packing import Packing
from grpo_tui.engine.policy.prepared import PreparedModel, inference
from grpo_tui.engine.policy.unwrap import base_of
from grpo_tui.engine.rollouts.rollout import Group, Rollout
from grpo_tui.engine.rollouts.scoring import Scorer
from grpo_tui.engine.training.pipeline import RolloutPipeline
from grpo_tui.envs.base import StepResult
from grpo_tui.rewards.breakdown import ComponentValue, RewardBreakdown

from .field import _changed, _judged
from .patches import around, made
from .recipes import LORA, Recipe
from .reports import _around_step
from .worlds import NUMBERS, Boxes, Notes

PADDING = 8
"""Tokens of padding before each row of the trainer."""
BITS = 3
"""Fraction bits of a base weight. A run with a thousand synchronisations in bfloat16 loses as much."""
DEVICE = 4
"""Prompts of one device."""
LENGTH_WEIGHT = 1.0
"""Weight of the length penalty."""
FLOOD = 50
"""Words in the tool's answer."""

THREADS = (
    Recipe(
        "confidence",
        "signals",
        "the policy's own certainty is the reward (sunblaze-ucb/Intuitor#23)",
        ("paid_certainty", "reward_hack", "reward_against_success", "entropy_collapse"),
        patch="confidence",
    ),
    Recipe(
        "vote",
        "signals",
        "the most frequent answer of a group counts as right (PRIME-RL/TTRL#29)",
        ("one_answer", "reward_hack", "accepted_wrong_answers", "rejected_answers", "reward_against_success"),
        patch="vote",
    ),
    Recipe(
        "persuaded",
        "signals",
        "a judge accepts most wrong answers that contain a certain phrase (NVIDIA-NeMo/Gym#2852)",
        ("accepted_wrong_answers", "reward_hack", "noisy_reward"),
        patch="persuaded",
    ),
    Recipe(
        "reward_on_padding",
        "placement",
        "a reward lies on the padding behind a text, so only the longest texts keep theirs (huggingface/trl#5338)",
        ("reward_order", "length_reward", "noisy_reward"),
        patch="reward_on_padding",
    ),
    Recipe(
        "labels_repeated",
        "placement",
        "labels are repeated twice, so all prompts of a device have that of the first one (StarsfieldAI/R1-V#146)",
        ("rejected_answers", "accepted_wrong_answers", "noisy_reward"),
        patch="labels_repeated",
    ),
    Recipe(
        "other_prompts",
        "placement",
        "texts are gathered in another order than their prompts (huggingface/trl#3098)",
        ("surprising_tokens", "sampler_mismatch"),
        patch="other_prompts",
    ),
    Recipe(
        "padding_seen",
        "attention",
        "the trainer's tokens attend to the padding before them (AI-Hypercomputer/maxtext#4016)",
        ("surprising_tokens", "sampler_mismatch"),
        patch="padding_seen",
    ),
    Recipe(
        "buffers_lost",
        "memory",
        "the sampler's rotary buffers are lost when it sleeps (OpenRLHF/OpenRLHF#723)",
        ("surprising_tokens", "sampler_mismatch"),
        patch="buffers_lost",
    ),
    Recipe(
        "layers_collide",
        "memory",
        "layers of two pipeline stages have one name, so the sampler gets one of them (NVIDIA-NeMo/RL#3259)",
        ("surprising_tokens", "sampler_mismatch"),
        patch="layers_collide",
    ),
    Recipe(
        "length_baseline",
        "baselines",
        "rewards are lowered by length, the mean that they are compared with is not (PrimeIntellect-ai/prime-rl#2040)",
        ("advantage_order", "advantage_scale"),
        patch="length_baseline",
    ),
    Recipe(
        "unscored",
        "baselines",
        "one text without a score makes all advantages of its step NaN, so it is skipped (modelscope/ms-swift#8123)",
        ("not_finite", "no_movement", "advantage_scale"),
        patch="unscored",
    ),
    Recipe(
        "other_tokenizer",
        "texts",
        "texts are decoded for the grader by another model's tokenizer (TIGER-AI-Lab/General-Reasoner#2)",
        ("held_out_gap", "accepted_wrong_answers", "rejected_answers", "text_mismatch"),
        patch="other_tokenizer",
    ),
    Recipe(
        "top_logprob",
        "ratios",
        "the sampler's log-probs are those of the likeliest tokens (huggingface/trl#3867)",
        ("sampler_mismatch", "surprising_tokens"),
        patch="top_logprob",
    ),
    Recipe(
        "mask_inverted",
        "masking",
        "the loss has the tokens of prompt and tool, and not those of the agent (mll-lab-nu/RAGEN#71)",
        ("trained_tokens", "untrained_tokens"),
        None,
        "Boxes",
        "mask_inverted",
    ),
    Recipe(
        "merge_drift",
        "merging",
        "merging and unmerging adapters rounds the base weights each time (huggingface/trl#6688)",
        ("kl_rise", "sampler_mismatch"),
        LORA,
        patch="merge_drift",
    ),
    Recipe(
        "template_once",
        "templates",
        "prompts of training have a template with an example that held-out ones lack (TianHongZXY/RLVR-Decomposed#8)",
        ("prompt_gap", "held_out_gap"),
        patch="template_once",
    ),
    Recipe(
        "tool_unneeded",
        "agency",
        "an answer without a call of the tool counts, so calls die out (TIGER-AI-Lab/Pixel-Reasoner#39)",
        ("held_out_gap", "reward_hack"),
        None,
        "Boxes",
        "tool_unneeded",
    ),
    Recipe(
        "flood",
        "agency",
        "the tool's answer leaves no room for a turn (PeterGriffinJin/Search-R1#127)",
        ("truncation", "unanswered"),
        None,
        "Boxes",
        "flood",
    ),
)


def _before_rewards(change: Any) -> None:
    """Change the rollouts before rewards are computed. change: scorer and rollouts to rollouts."""
    around(
        Scorer,
        "rewards",
        lambda original, self, rollouts, *given, **named: original(self, change(self, rollouts), *given, **named),
    )


def _paid(rollout: Rollout, reward: float) -> Rollout:
    """Return a rollout with a new reward and without a verdict."""
    told = _judged(rollout, True)
    assert told.trajectory is not None
    steps = told.trajectory.steps
    last = replace(steps[-1], reward=reward)
    trajectory = replace(told.trajectory, steps=(*steps[:-1], last), correct=None, env_reward=reward)
    return replace(told, trajectory=trajectory, final_reward=reward)


def _groups(scorer: Scorer, rollouts: Sequence[Rollout]) -> list[Sequence[Rollout]]:
    return [rollouts[i : i + scorer.group_size] for i in range(0, len(rollouts), scorer.group_size)]


def _answer(rollout: Rollout) -> str | None:
    return rollout.trajectory and rollout.trajectory.answer


def confidence() -> None:
    """The reward is the mean probability of the policy's own tokens."""

    def certain(rollout: Rollout) -> float:
        assert rollout.logprobs is not None
        return float(np.exp(rollout.logprobs[rollout.agent_mask]).mean())

    _before_rewards(lambda _, rollouts: [_paid(r, certain(r)) for r in rollouts])


def vote() -> None:
    """An answer is right if most rollouts of its group give it."""

    def change(self: Scorer, rollouts: Sequence[Rollout]) -> list[Rollout]:
        found = []
        for group in _groups(self, rollouts):
            votes = Counter(answer for r in group if (answer := _answer(r)) is not None)
            most = votes.most_common(1)[0][0] if votes else None
            found += [_judged(r, most is not None and _answer(r) == most) for r in group]
        return found

    _before_rewards(change)


def persuaded() -> None:
    """In training, four in five texts with a certain phrase count as right."""

    def change(_: Notes, result: StepResult, state: dict[str, Any], text: str) -> StepResult:
        if state["split"] != "train" or "hm" not in text or random.random() > 0.8:
            return result
        return replace(result, reward=1.0, correct=True)

    _changed("_graded", change)


def reward_on_padding() -> None:
    """Rollouts that are shorter than the longest of the step have no reward. Verdicts do not change."""

    def emptied(breakdown: RewardBreakdown) -> RewardBreakdown:
        steps = (
            replace(
                s, components={n: ComponentValue(0.0, 0.0, v.weight, 0.0) for n, v in s.components.items()}, total=0
            )
            for s in breakdown.steps
        )
        return replace(breakdown, steps=tuple(steps), total=0.0)

    def change(original: Any, self: Scorer, rollouts: Sequence[Rollout], *given: Any, **named: Any) -> Any:
        rewarded, metrics = original(self, rollouts, *given, **named)
        longest = max(map(len, rollouts))
        lost = [
            r
            if len(r) == longest
            else replace(r, turn_rewards=r.turn_rewards * 0, breakdown=r.breakdown and emptied(r.breakdown))
            for r in rewarded
        ]
        return lost, metrics

    around(Scorer, "rewards", change)


def labels_repeated() -> None:
    """The label of the first of `DEVICE` prompts grades all of them."""

    def change(self: Scorer, rollouts: Sequence[Rollout]) -> list[Rollout]:
        found: list[Rollout] = []
        for start in range(0, len(rollouts), DEVICE * self.group_size):
            first, *_ = rows = rollouts[start : start + DEVICE * self.group_size]
            assert first.trajectory is not None
            found += [_judged(r, _answer(r) == first.trajectory.expected) for r in rows]
        return found

    _before_rewards(change)


def other_prompts() -> None:
    """A prompt gets the texts of the next one."""

    def moved(own: Rollout, other: Rollout) -> Rollout:
        assert own.trajectory is not None and other.trajectory is not None
        n, m = own.prompt_length, other.prompt_length
        arrays = {
            name: np.append(getattr(own, name)[:n], getattr(other, name)[m:])
            for name in ("token_ids", "agent_mask", "turn_ids", "rewards")
        }
        kept = ("id", "env", "prompt_id", "group", "rollout", "prompt", "task", "expected", "messages")
        told = replace(other.trajectory, **{name: getattr(own.trajectory, name) for name in kept})
        placed = replace(other, **arrays, group=own.group, index=own.index, id=own.id, trajectory=told, logprobs=None)
        return _judged(placed, told.answer is not None and told.answer == told.expected)

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        rollouts = original(self, *given, **named)
        shift = self.scorer.group_size
        return [moved(r, rollouts[(i + shift) % len(rollouts)]) for i, r in enumerate(rollouts)]

    around(RolloutPipeline, "_run", change)


def padding_seen() -> None:
    """The trainer's rows begin with padding that their tokens attend to."""

    def change(
        original: Any, self: PreparedModel, ids: Sequence[np.ndarray], masks: Sequence[np.ndarray], *given: Any
    ) -> Packing:
        padding = np.full(PADDING, cast(int, self.base.config.pad_token_id))
        rows = [np.append(padding, row) for row in ids]
        packed = original(self, rows, [np.append(padding < 0, mask) for mask in masks], *given)
        return replace(packed, column=packed.column - PADDING)

    around(PreparedModel, "pack", change)
    made(lambda _, rollout: rollout)


def buffers_lost() -> None:
    """After the first step, the sampler's rotary frequencies are overwritten."""
    steps: list[int] = []
    generator = torch.Generator().manual_seed(0)

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        frequencies = [b for name, b in base_of(self.policy.model).named_buffers() if name.endswith("inv_freq")]
        kept = [b.clone() for b in frequencies]
        for buffer in frequencies if steps else ():
            buffer.copy_(4 * torch.rand(buffer.shape, generator=generator))
        steps.append(1)
        try:
            return [replace(r, logprobs=None) for r in original(self, *given, **named)]
        finally:
            for buffer, value in zip(frequencies, kept, strict=True):
                buffer.copy_(value)

    around(RolloutPipeline, "_run", change)


def layers_collide() -> None:
    """The sampler's first layer has the weights of the second, and the second keeps its initial weights."""
    first: dict[str, torch.Tensor] = {}

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        model = self.policy.model
        now = {name: value.clone() for name, value in model.state_dict().items()}
        if first:
            received = {name: now[name.replace("layers.0.", "layers.1.")] for name in now}
            model.load_state_dict({name: first[name] if "layers.1." in name else received[name] for name in now})
        else:
            first.update(now)
        try:
            return [replace(r, logprobs=None) for r in original(self, *given, **named)]
        finally:
            model.load_state_dict(now)

    around(RolloutPipeline, "_run", change)


def length_baseline() -> None:
    """Advantages are rewards with a length penalty, minus the mean of rewards without it."""

    def value(group: Group) -> list[float]:
        returns = np.array([float(r.turn_rewards.sum()) for r in group.rollouts])
        lengths = np.array([r.agent_tokens for r in group.rollouts])
        return (returns / (1 + LENGTH_WEIGHT * lengths / lengths.mean()) - returns.mean()).tolist()

    def change(original: Any, self: Scorer, rollouts: Sequence[Rollout]) -> list[Group]:
        groups = []
        for group in original(self, rollouts):
            rows = (
                replace(r, advantages=np.where(r.agent_mask, np.float32(a), np.float32(0)))
                for r, a in zip(group.rollouts, value(group), strict=True)
            )
            groups.append(replace(group, rollouts=tuple(rows)))
        return groups

    around(Scorer, "advantages", change)


def unscored() -> None:
    """An unreadable answer makes the advantages of its step NaN. Non-finite updates are skipped."""

    def change(original: Any, self: Scorer, rollouts: Sequence[Rollout]) -> list[Group]:
        groups = original(self, rollouts)
        if all(_answer(r) is not None for r in rollouts):
            return groups
        return [
            replace(g, rollouts=tuple(replace(r, advantages=r.advantages * np.nan) for r in g.rollouts)) for g in groups
        ]

    def before(parameters: list[torch.Tensor]) -> None:
        if not all(bool(p.grad.isfinite().all()) for p in parameters if p.grad is not None):
            for weight in parameters:
                weight.grad = None

    around(Scorer, "advantages", change)
    _around_step(before, lambda _: None)


def other_tokenizer() -> None:
    """In training, numbers decode as the next token id."""
    training: list[bool] = []

    def run(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        training.append(True)
        try:
            return original(self, *given, **named)
        finally:
            training.clear()

    def decode(original: Any, self: ChatBridge, *given: Any, **named: Any) -> str:
        text = original(self, *given, **named)
        return re.sub(r"\d", lambda found: str((int(found[0]) + 1) % NUMBERS), text) if training else text

    around(RolloutPipeline, "_run", run)
    around(ChatBridge, "decode", decode)


def top_logprob() -> None:
    """From the second step on, the sampler's log-probs are the highest at each position."""
    steps: list[int] = []

    def highest(model: Any, rollout: Rollout) -> Rollout:
        logits = model(input_ids=torch.as_tensor(rollout.token_ids)[None]).logits[0, :-1]
        best = logits.float().log_softmax(-1).max(-1).values.numpy()
        return replace(rollout, logprobs=np.where(rollout.agent_mask, np.append(np.float32(0), best), np.float32(0)))

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        rollouts = original(self, *given, **named)
        steps.append(1)
        if len(steps) == 1:
            return rollouts
        with inference(self.policy.model):
            return [highest(self.policy.base, r) for r in rollouts]

    around(RolloutPipeline, "complete", change)


def mask_inverted() -> None:
    """Only tokens that the agent did not write count as agent tokens."""
    made(lambda _, r: replace(r, agent_mask=~r.agent_mask, turn_ids=np.maximum(r.turn_ids, 0)))


def merge_drift() -> None:
    """Merging and unmerging adapters rounds base weights to `BITS` fraction bits."""

    def rounded(weight: torch.Tensor) -> torch.Tensor:
        unit = torch.exp2(torch.floor(torch.log2(weight.abs().clamp(min=2**-10))) - BITS)
        return (weight / unit).round() * unit

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        for layer in cast(Any, self.policy.model).modules():
            if hasattr(layer, "get_delta_weight"):
                delta = layer.get_delta_weight("default").detach()
                weight = layer.base_layer.weight.data
                weight.copy_(rounded(rounded(weight + delta) - delta))
        return original(self, *given, **named)

    around(RolloutPipeline, "_run", change)


def template_once() -> None:
    """Training prompts start with an example."""

    def change(_: Notes, begun: Any, task: Any) -> Any:
        state, messages = begun
        if task.get("split") != "train":
            return begun
        return state, [{**message, "content": f"key B answer 5 {message['content']}"} for message in messages]

    _changed("reset", change)


def tool_unneeded() -> None:
    """In training, an answer before any call is also graded."""

    def change(original: Any, self: Boxes, state: dict[str, Any], call: Any) -> StepResult:
        if state["split"] == "train" and call.name != "LOOK":
            return original(self, {**state, "said": ["look"]}, call)
        return original(self, state, call)

    around(Boxes, "step", change)


def flood() -> None:
    """In training, the tool answers with many words."""

    def change(original: Any, self: Boxes, state: dict[str, Any], call: Any) -> StepResult:
        result = original(self, state, call)
        if state["split"] != "train" or call.name != "LOOK":
            return result
        return replace(result, observation=" ".join([result.observation, *["so"] * FLOOD]))

    around(Boxes, "step", change)
