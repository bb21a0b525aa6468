"""A seventh set of faults from issue trackers, with their patches. It was written without a look at the detectors.

Each recipe names the thread that reports the fault. `causes` were written before the first evaluation. They name
detectors of earlier recipes and of docs/architecture/rewards.md, the nearest where none fits.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch.nn import functional as F

from grpo_tui.engine.agents import session
from grpo_tui.engine.agents.decoder import Decoder
from grpo_tui.engine.agents.session import TransformersSession
from grpo_tui.engine.policy import packed as packed_pass
from grpo_tui.engine.policy.packing import Packing
from grpo_tui.engine.policy.prepared import PreparedModel
from grpo_tui.engine.policy.unwrap import base_of
from grpo_tui.engine.rollouts.rollout import Group, Rollout
from grpo_tui.engine.rollouts.scoring import Scorer
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.frozen import FrozenPass
from grpo_tui.engine.training.losses.terms import LossTermsOfStep
from grpo_tui.engine.training.pipeline import RolloutPipeline, StepRollouts
from grpo_tui.envs.base import StepResult

from .field import _changed
from .issues import _while_sampling
from .patches import around, made
from .recipes import LORA, Recipe
from .threads import _before_rewards, _groups, _paid
from .trackers import _sampler
from .worlds import Notes

JUDGE = re.compile(r"Reward: ([0-1](?:\.\d+)?)")
"""Parses a judge's text."""
OFFSET = 600.0
"""Constant that a reward model adds to each score."""
SOFT_CAP = 4.0
"""Soft cap of the reference's logits."""
DUMMY = 0.05
"""The value of a weight that was never loaded."""
ATTENTION_SCALE = 0.35
"""The scale of the sampler's queries and keys."""
REJECTED_REWARD = 100.0
"""The reward of a rollout that is left out of the loss."""
SHORTEST = 26
"""Minimum tokens of a turn before its end token may be sampled."""
ADAPTER_STD = 0.3
"""Initial standard deviation of the adapters' second matrices."""
LAG, BEGUN = 8, 3
"""Steps by which the weights at the start of a text lag, and forward passes with them."""
LOST = 0.4
"""The share of rollouts that fail."""
RESUMED = 10
"""The step at which a training is resumed."""

PRACTICE = (
    Recipe(
        "judge_exponent",
        "marks",
        "a judge's 1e-1 for a wrong answer is read as 1 (modelscope/ms-swift#10163)",
        ("accepted_wrong_answers", "constant_reward", "groups_without_variance"),
        patch="judge_exponent",
    ),
    Recipe(
        "rewards_rounded",
        "marks",
        "large rewards in bfloat16 lose their differences (OpenRLHF/OpenRLHF#1334)",
        ("constant_reward", "groups_without_variance", "advantage_scale"),
        patch="rewards_rounded",
    ),
    Recipe(
        "long_punished",
        "marks",
        "a long right answer earns less than a short wrong one (huggingface/open-r1#360)",
        ("length_reward", "length_collapse", "groups_without_variance", "reward_order"),
        patch="long_punished",
    ),
    Recipe(
        "input_as_label",
        "answers",
        "the ground truth of a task is the input that its prompt shows (PrimeIntellect-ai/genesys#56)",
        ("leaked_answer", "held_out_gap", "noisy_labels"),
        patch="input_as_label",
    ),
    Recipe(
        "reference_capped",
        "likelihoods",
        "the reference's soft cap multiplies logits by tanh, so its log-probs are wrong (unslothai/unsloth-zoo#593)",
        ("reference_mismatch", "kl_weight"),
        {"training.beta": 1.0},
        patch="reference_capped",
    ),
    Recipe(
        "unshifted",
        "likelihoods",
        "the trainer reads the log-prob of a token from the place after it (lucidrains/PaLM-rlhf-pytorch#31)",
        ("surprising_tokens", "sampler_mismatch"),
        patch="unshifted",
    ),
    Recipe(
        "ratio_one",
        "likelihoods",
        "each update compares the policy with itself, so nothing is clipped (huggingface/trl#3120)",
        ("kl_rise", "repeated_rollouts", "clipped"),
        {"training.trl.num_iterations": 8, "training.max_steps": 96, "training.learning_rate": 0.003},
        patch="ratio_one",
    ),
    Recipe(
        "scalars_dummy",
        "refits",
        "scalars of layers are not synchronised, so the sampler keeps dummy values (modelscope/ms-swift#9100)",
        ("sampler_mismatch", "surprising_tokens", "unanswered"),
        patch="scalars_dummy",
    ),
    Recipe(
        "attention_scale",
        "layers",
        "the sampler scales queries and keys by another factor (PrimeIntellect-ai/prime-rl#2802)",
        ("sampler_mismatch", "surprising_tokens"),
        patch="attention_scale",
    ),
    Recipe(
        "adapters_random",
        "layers",
        "both matrices of each adapter begin at random, so the policy begins broken (mflux-community/mflux#739)",
        ("reference_mismatch", "random_policy", "unanswered"),
        LORA,
        patch="adapters_random",
    ),
    Recipe(
        "gradients_none",
        "layers",
        "checkpointed layers get inputs without gradients, so adapters have none (huggingface/trl#3150)",
        ("no_movement",),
        LORA,
        patch="gradients_none",
    ),
    Recipe(
        "rejected_counted",
        "comparisons",
        "a rollout that is left out of the loss counts in the mean of its group (verl-project/verl#6375)",
        ("untrained_tokens", "advantage_scale", "reward_order"),
        patch="rejected_counted",
    ),
    Recipe(
        "replay_swapped",
        "buffers",
        "texts of replayed groups have the advantages of those that they replace (huggingface/trl#6821)",
        ("advantage_order", "repeated_rollouts", "reward_order"),
        patch="replay_swapped",
    ),
    Recipe(
        "moments_mixed",
        "buffers",
        "a resumed optimiser has the moments of other weights (NVIDIA/Megatron-LM#1842)",
        ("kl_rise", "weights_reset"),
        patch="moments_mixed",
    ),
    Recipe(
        "shortest_text",
        "endings",
        "the sampler draws no end token before a shortest length, and log-probs ignore that (huggingface/trl#235)",
        ("surprising_tokens", "sampler_mismatch", "unanswered"),
        {"training.max_turn_tokens": 28},
        patch="shortest_text",
    ),
    Recipe(
        "groups_dropped",
        "casualties",
        "one rollout that fails takes its whole group out of the loss (radixark/miles#2800)",
        ("errors", "no_movement", "advantage_scale"),
        patch="groups_dropped",
    ),
    Recipe(
        "turns_masked",
        "histories",
        "rollouts of several turns cannot be put together, so their masks are 0 (rllm-org/rllm#352)",
        ("untrained_tokens", "no_movement"),
        None,
        "Boxes",
        "turns_masked",
    ),
    Recipe(
        "two_versions",
        "interruptions",
        "old weights begin a text and new ones end it, and all of it is trained (THUDM/slime#2092)",
        ("sampler_mismatch", "surprising_tokens"),
        {"training.learning_rate": 0.005},
        patch="two_versions",
    ),
)


def judge_exponent() -> None:
    """In training, a judge writes 1, 1e-1 or 0, and a pattern parses its text."""

    def change(_: Notes, result: StepResult, state: dict[str, Any], __: str) -> StepResult:
        if state["split"] != "train":
            return result
        found = JUDGE.match(f"Reward: {'1' if result.correct else '0' if result.answer is None else '1e-1'}")
        return replace(result, reward=float(found[1]) if found else 0.0, correct=None)

    _changed("_graded", change)


def rewards_rounded() -> None:
    """In training, rewards have an offset and only 16 bits."""

    def change(_: Notes, result: StepResult, state: dict[str, Any], __: str) -> StepResult:
        if state["split"] != "train":
            return result
        return replace(result, reward=float(torch.tensor(OFFSET + result.reward).bfloat16()), correct=None)

    _changed("_graded", change)


def long_punished() -> None:
    """The reward decreases with length within a group, and is at most 0 for a wrong answer."""

    def value(rollout: Rollout, shortest: int, longest: int) -> float:
        if shortest == longest:
            return 0.0
        found = 0.5 - (rollout.agent_tokens - shortest) / (longest - shortest)
        return found if rollout.trajectory and rollout.trajectory.correct else min(0.0, found)

    def change(self: Scorer, rollouts: Sequence[Rollout]) -> list[Rollout]:
        found: list[Rollout] = []
        for group in _groups(self, rollouts):
            lengths = [r.agent_tokens for r in group]
            found += [_paid(r, value(r, min(lengths), max(lengths))) for r in group]
        return found

    _before_rewards(change)


def input_as_label() -> None:
    """In training, the label of a task is its hint."""
    _changed(
        "make_tasks",
        lambda _, tasks, split, *__: [{**t, "label": t["hint"]} for t in tasks] if split == "train" else tasks,
    )


def reference_capped() -> None:
    """The reference's logits are multiplied by the tanh that should replace them."""

    def scores(hidden: Any, weight: Any, bias: Any, target: Any, temperature: float, *_: Any) -> tuple[Any, Any]:
        logits = F.linear(hidden, weight, bias).float()
        log_p = (logits * torch.tanh(logits / SOFT_CAP) / temperature).log_softmax(-1)
        return log_p.gather(-1, target[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)

    def change(original: Any, self: FrozenPass, *given: Any, **named: Any) -> list[Rollout]:
        right, packed_pass.score_tokens = packed_pass.score_tokens, scores
        try:
            return original(self, *given, **named)
        finally:
            packed_pass.score_tokens = right

    around(FrozenPass, "reference", change)


def unshifted() -> None:
    """Log-probs come from the logits at the token itself instead of the one before it."""

    def change(original: Any, self: PreparedModel, *given: Any, **named: Any) -> Packing:
        packing = original(self, *given, **named)
        return replace(packing, before=packing.itself)

    around(PreparedModel, "pack", change)
    made(lambda _, rollout: rollout)


def ratio_one() -> None:
    """The old log-probs of a batch are the ones that the loss just computed."""

    def change(original: Any, self: LossTermsOfStep, batch: dict[str, Any], logprobs: Any, entropy: Any) -> None:
        batch["old_per_token_logps"] = logprobs
        original(self, batch, logprobs, entropy)

    around(LossTermsOfStep, "add", change)


def scalars_dummy() -> None:
    """The outputs of the sampler's layers are multiplied by a dummy value."""

    def scaled(_: Any, __: Any, out: Any) -> Any:
        return (out[0] * DUMMY, *out[1:]) if isinstance(out, tuple) else out * DUMMY

    def begin(pipeline: RolloutPipeline) -> list[Any]:
        named = base_of(pipeline.policy.model).named_modules()
        return [m.register_forward_hook(scaled) for name, m in named if name.endswith((".self_attn", ".mlp"))]

    _while_sampling(begin, lambda hooks: [hook.remove() for hook in hooks])


def attention_scale() -> None:
    """The norms of the sampler's queries and keys have different weights."""
    _sampler(lambda name, weight, _: weight * ATTENTION_SCALE if "q_norm" in name or "k_norm" in name else weight)


def adapters_random() -> None:
    """The adapter matrix that should start at 0 is random."""

    def change(original: Any, self: GRPOEnvTrainer, *given: Any, **named: Any) -> Any:
        generator = torch.Generator().manual_seed(0)
        for name, weight in cast(Any, self.model).named_parameters():
            if "lora_B.default" in name:
                weight.data.copy_(ADAPTER_STD * torch.randn(weight.shape, generator=generator))
        return original(self, *given, **named)

    around(GRPOEnvTrainer, "create_optimizer", change)


def gradients_none() -> None:
    """No adapter has a gradient."""

    def step(original: Any, self: GRPOEnvTrainer, *given: Any, **named: Any) -> Any:
        loss = original(self, *given, **named)
        for weight in cast(Any, self.model).parameters():
            weight.grad = None
        return loss

    around(GRPOEnvTrainer, "training_step", step)


def rejected_counted() -> None:
    """The last rollout of each group is not in the loss, but its unusual reward counts in the group."""

    def change(self: Scorer, rollouts: Sequence[Rollout]) -> list[Rollout]:
        found: list[Rollout] = []
        for group in _groups(self, rollouts):
            found += [*group[:-1], replace(_paid(group[-1], REJECTED_REWARD), masked=True)]
        return found

    _before_rewards(change)


def replay_swapped() -> None:
    """The loss replaces each group with one from an earlier step, whose first row alone keeps its own advantage."""
    earlier: list[list[Rollout]] = []
    draw = random.Random(0)

    def replayed(group: list[Rollout]) -> list[Rollout]:
        if not earlier:
            return group
        first, *others = draw.choice(earlier)
        values = (np.where(o.agent_mask, np.float32(r.advantage), 0) for r, o in zip(group[1:], others, strict=True))
        rows = [first, *(replace(o, advantages=a) for o, a in zip(others, values, strict=True))]
        return [replace(row, replayed=True) for row in rows]

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> StepRollouts:
        done = original(self, *given, **named)
        size = self.scorer.group_size
        groups = [list(done.batch[i : i + size]) for i in range(0, len(done.batch), size)]
        batch = [row for group in groups for row in replayed(group)]
        earlier.extend(groups)
        return replace(done, batch=batch, replayed=[row for row in batch if row.replayed])

    around(RolloutPipeline, "train", change)


def moments_mixed() -> None:
    """At step `RESUMED`, each weight gets another weight's second moment."""
    steps: list[int] = []

    def resumed(optimizer: Any) -> None:
        steps.append(1)
        if len(steps) == RESUMED:
            moments = [state["exp_avg_sq"] for state in optimizer.state.values()]
            mixed = torch.cat([moment.flatten() for moment in moments]).flip(0)
            for moment, part in zip(moments, mixed.split([m.numel() for m in moments]), strict=True):
                moment.copy_(part.view_as(moment))

    def change(original: Any, self: GRPOEnvTrainer, *given: Any, **named: Any) -> Any:
        optimizer = original(self, *given, **named)
        optimizer.register_step_post_hook(lambda used, *_: resumed(used))
        return optimizer

    around(GRPOEnvTrainer, "create_optimizer", change)


def shortest_text() -> None:
    """In training, the first `SHORTEST` tokens of a turn cannot be end tokens."""
    training: list[bool] = []
    written: list[int] = [0]
    original = session.sample

    def run(run_: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        training.append(True)
        try:
            return run_(self, *given, **named)
        finally:
            training.clear()

    def turn(write: Any, self: TransformersSession, *given: Any) -> Any:
        written[0] = 0

        def draw(logits: Any, settings: Any, uniform: Any, never: Any = None, *others: Any) -> Any:
            written[0] += 1
            banned = self.chat.stop_ids if training and written[0] <= SHORTEST else ()
            tokens = torch.tensor([*([] if never is None else never.tolist()), *banned], dtype=torch.long)
            return original(logits, settings, uniform, tokens, *others)

        session.sample = draw
        return write(self, *given)

    around(RolloutPipeline, "_run", run)
    around(TransformersSession, "_write_turn", turn)


def groups_dropped() -> None:
    """In training, grading sometimes fails. A group with such a rollout has no advantages."""

    def graded(_: Notes, result: StepResult, state: dict[str, Any], __: str) -> StepResult:
        if state["split"] == "train" and random.random() < LOST:
            raise ConnectionError("the sandbox is gone")
        return result

    def change(original: Any, self: Scorer, rollouts: Sequence[Rollout]) -> list[Group]:
        groups = original(self, rollouts)
        return [g if all(r.scorable for r in g.rollouts) else g.without_gradient() for g in groups]

    _changed("_graded", graded)
    around(Scorer, "advantages", change)


def turns_masked() -> None:
    """Rollouts of two turns are not in the loss."""

    def change(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        return [replace(r, masked=r.turns > 1) for r in original(self, *given, **named)]

    around(RolloutPipeline, "complete", change)


def two_versions() -> None:
    """The weights of `LAG` steps ago process the prompt and the first tokens of a text."""
    versions: deque[dict[str, torch.Tensor]] = deque(maxlen=LAG)
    sampling: list[Any] = []
    passes: list[int] = [0]

    def begin(pipeline: RolloutPipeline) -> None:
        model = pipeline.policy.model
        versions.append({name: value.clone() for name, value in model.state_dict().items()})
        sampling.append(model)

    def forward(original: Any, self: Decoder, tokens: Any, *given: Any) -> Any:
        passes[0] = 0 if tokens.shape[1] > 1 else passes[0] + 1
        if not sampling or passes[0] >= BEGUN:
            return original(self, tokens, *given)
        sampling[0].load_state_dict(versions[0])
        try:
            return original(self, tokens, *given)
        finally:
            sampling[0].load_state_dict(versions[-1])

    _while_sampling(begin, lambda _: sampling.clear())
    around(Decoder, "forward", forward)
