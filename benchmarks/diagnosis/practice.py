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
from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.agents.decoder import Decoder
from grpo_tui.engine.agents.session import TransformersSession
from grpo_tui.engine.policy import packed as packed_pass
from grpo_tui.engine.policy.packing import Packing
from grpo_tui.engine.policy.prepared import PreparedModel
from grpo_tui.engine.policy.unwrap import base_of
from grpo_tui.engine.rollouts.rollout import Rollout
from grpo_tui.engine.rollouts.scoring import Scorer
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.pipeline import RolloutPipeline, StepRollouts
from grpo_tui.envs.base import StepResult

from .field import _changed
from .issues import _while_sampling
from .patches import advantages, around, made
from .recipes import LORA, Recipe, env
from .threads import _before_rewards, _groups, _paid
from .trackers import _sampler
from .worlds import NUMBERS, Notes

JUDGE = re.compile(r"Reward: ([0-1](?:\.\d+)?)")
"""What is read of a judge's text."""
OFFSET = 600.0
"""What a reward model adds to each score."""
SOFT_CAP = 4.0
"""Of the logits."""
ATTENTION_SCALE = 2.5
"""How much larger the sampler's queries and keys are."""
REJECTED_REWARD = 100.0
"""The reward of a rollout that is left out of the loss."""
SWAPPED = 0.75
"""The share of groups in whose place those of earlier steps are trained."""
SHORT_TURN = 4
"""Tokens of a turn."""
SHORTEST = 8
"""Tokens of a turn before its end token may be drawn."""
ADAPTER_STD = 0.3
"""The deviation of the adapters' second matrices at the start."""
LAG, BEGUN = 8, 3
"""Steps between the weights that begin a text and those that end it, and passes of the first ones."""
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
        "labels_from_one",
        "answers",
        "labels count from one, and answers from zero (nyu-mll/quality#12)",
        ("noisy_labels", "held_out_gap", "rejected_answers"),
        patch="labels_from_one",
    ),
    Recipe(
        "soft_cap",
        "likelihoods",
        "the trainer's soft cap multiplies logits by tanh, so unlikely tokens look likely (unslothai/unsloth-zoo#593)",
        ("surprising_tokens", "sampler_mismatch"),
        patch="soft_cap",
    ),
    Recipe(
        "unshifted",
        "likelihoods",
        "the trainer reads the log-prob of a token from the place after it (lucidrains/PaLM-rlhf-pytorch#31)",
        ("surprising_tokens", "sampler_mismatch"),
        patch="unshifted",
    ),
    Recipe(
        "head_stale",
        "refits",
        "the sampler's copy of tied embeddings in its output layer is never updated (PrimeIntellect-ai/prime-rl#2823)",
        ("sampler_mismatch", "surprising_tokens"),
        {"training.learning_rate": 0.005},
        patch="head_stale",
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
        "rejected_counted",
        "comparisons",
        "a rollout that is left out of the loss counts in the mean of its group (verl-project/verl#6375)",
        ("untrained_tokens", "advantage_scale", "reward_order"),
        patch="rejected_counted",
    ),
    Recipe(
        "own_group",
        "comparisons",
        "each rollout has a group of its own, so its advantage is its reward (PeterGriffinJin/Search-R1#88)",
        ("advantage_scale", "advantage_order"),
        patch="own_group",
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
        "forced_end",
        "endings",
        "the last token of a text that a limit cut becomes the end token (OpenRLHF/OpenRLHF#238)",
        ("surprising_tokens", "truncation", "text_mismatch", "trained_tokens"),
        {"training.max_turn_tokens": SHORT_TURN},
        patch="forced_end",
    ),
    Recipe(
        "shortest_text",
        "endings",
        "the sampler draws no end token before a shortest length, and log-probs ignore that (huggingface/trl#235)",
        ("surprising_tokens", "sampler_mismatch", "unanswered"),
        patch="shortest_text",
    ),
    Recipe(
        "padding_rows",
        "casualties",
        "a rollout that failed becomes a row of one padding token in the loss (awslabs/agentcore-rl-toolkit#122)",
        ("errors", "untrained_tokens", "trained_tokens", "text_mismatch"),
        env(failing=0.9, ends="true"),
        "Boxes",
        "padding_rows",
    ),
    Recipe(
        "turn_unopened",
        "histories",
        "the server opens no turn of the agent after an answer of the tool (ai-dynamo/dynamo#4013)",
        ("surprising_tokens", "sampler_mismatch", "unanswered"),
        None,
        "Boxes",
        "turn_unopened",
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
    """In training, a judge writes 1, 1e-1 or 0, and a pattern reads its text."""

    def change(_: Notes, result: StepResult, state: dict[str, Any], __: str) -> StepResult:
        if state["split"] != "train":
            return result
        found = JUDGE.match(f"Reward: {'1' if result.correct else '0' if result.answer is None else '1e-1'}")
        return replace(result, reward=float(found[1]) if found else 0.0, correct=None)

    _changed("_graded", change)


def rewards_rounded() -> None:
    """In training, a reward has an offset and 16 bits."""

    def change(_: Notes, result: StepResult, state: dict[str, Any], __: str) -> StepResult:
        if state["split"] != "train":
            return result
        return replace(result, reward=float(torch.tensor(OFFSET + result.reward).bfloat16()), correct=None)

    _changed("_graded", change)


def labels_from_one() -> None:
    """In training, the label of a task is one more than its right number."""

    def change(self: Notes, tasks: list[dict[str, Any]], split: str, *_: Any) -> list[dict[str, Any]]:
        if split != "train":
            return tasks
        return [{**task, "label": (self.right(task) + 1) % NUMBERS} for task in tasks]

    _changed("make_tasks", change)


def soft_cap() -> None:
    """The trainer's logits are multiplied by the tangent that should replace them."""

    def scores(hidden: Any, weight: Any, bias: Any, target: Any, temperature: float, *_: Any) -> tuple[Any, Any]:
        logits = F.linear(hidden, weight, bias).float()
        log_p = (logits * torch.tanh(logits / SOFT_CAP) / temperature).log_softmax(-1)
        kept = log_p.detach()
        return log_p.gather(-1, target[:, None])[:, 0], -(kept.exp() * kept).sum(-1)

    def run(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        packed_pass.score_tokens = scores  # not before the engine has compared its ways to score
        return original(self, *given, **named)

    made(lambda _, rollout: rollout)
    around(RolloutPipeline, "_run", run)


def unshifted() -> None:
    """Log-probs come from the logits of the token itself, and not of the one before it."""

    def change(original: Any, self: PreparedModel, *given: Any, **named: Any) -> Packing:
        packing = original(self, *given, **named)
        return replace(packing, before=packing.itself)

    around(PreparedModel, "pack", change)
    made(lambda _, rollout: rollout)


def head_stale() -> None:
    """The sampler's output layer has the embeddings of the start."""
    first: list[torch.nn.Parameter] = []

    def begin(pipeline: RolloutPipeline) -> tuple[Any, Any]:
        head: Any = base_of(pipeline.policy.model).get_output_embeddings()
        if not first:
            first.append(torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False))
        weight, head.weight = head.weight, first[0]
        return head, weight

    def end(found: tuple[Any, Any]) -> None:
        head, weight = found
        head.weight = weight

    _while_sampling(begin, end)


def attention_scale() -> None:
    """The norms of the sampler's queries and keys have larger weights."""
    _sampler(lambda name, weight, _: weight * ATTENTION_SCALE if "q_norm" in name or "k_norm" in name else weight)


def adapters_random() -> None:
    """The matrix of an adapter that should begin as 0 is random."""

    def change(original: Any, self: GRPOEnvTrainer, *given: Any, **named: Any) -> Any:
        generator = torch.Generator().manual_seed(0)
        for name, weight in cast(Any, self.model).named_parameters():
            if "lora_B.default" in name:
                weight.data.copy_(ADAPTER_STD * torch.randn(weight.shape, generator=generator))
        return original(self, *given, **named)

    around(GRPOEnvTrainer, "create_optimizer", change)


def rejected_counted() -> None:
    """The last rollout of each group is not in the loss, and has a reward of its own kind."""

    def change(self: Scorer, rollouts: Sequence[Rollout]) -> list[Rollout]:
        found: list[Rollout] = []
        for group in _groups(self, rollouts):
            found += [*group[:-1], replace(_paid(group[-1], REJECTED_REWARD), masked=True)]
        return found

    _before_rewards(change)


def own_group() -> None:
    """The advantage of a rollout is its reward."""
    advantages(lambda r: np.where(r.agent_mask, np.float32(r.total_reward), np.float32(0)))


def replay_swapped() -> None:
    """In the place of most groups, the loss has one of an earlier step. Only its first row brings its advantage."""
    earlier: list[list[Rollout]] = []
    draw = random.Random(0)

    def replayed(group: list[Rollout]) -> list[Rollout]:
        if not earlier or draw.random() > SWAPPED:
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
    """At step `RESUMED`, each weight gets the second moment of another one."""
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


def forced_end() -> None:
    """The last token of a rollout that a limit cut is the end token for the trainer."""

    def ended(self: RolloutPipeline, rollout: Rollout) -> Rollout:
        end = cast(Any, self.runner.tokenizer).eos_token_id
        ids, last = rollout.token_ids.copy(), int(np.flatnonzero(rollout.agent_mask)[-1])
        ids[last] = end
        return replace(rollout, token_ids=ids)

    made(ended)


def shortest_text() -> None:
    """In training, the first `SHORTEST` tokens of a turn are no end tokens."""
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


def padding_rows() -> None:
    """A rollout whose call failed is a prompt and one padding token for the trainer."""

    def emptied(self: RolloutPipeline, rollout: Rollout) -> Rollout:
        trajectory = rollout.trajectory
        if trajectory is None or not any(step.error for step in trajectory.steps):
            return rollout
        n, padding = rollout.prompt_length, cast(int, cast(Any, self.runner.tokenizer).pad_token_id)
        return replace(
            rollout,
            token_ids=np.append(rollout.token_ids[:n], padding),
            agent_mask=np.append(rollout.agent_mask[:n], True),
            turn_ids=np.append(rollout.turn_ids[:n], np.int16(0)),
            rewards=np.append(rollout.rewards[:n], np.float32(0)),
        )

    made(emptied)


def turn_unopened() -> None:
    """In training, the sampler reads no opening of its later turns. The trainer does."""
    training: list[bool] = []
    opening: list[int] = []

    def run(original: Any, self: RolloutPipeline, *given: Any, **named: Any) -> list[Rollout]:
        training.append(True)
        try:
            return [opened(r) for r in original(self, *given, **named)]
        finally:
            training.clear()

    def answer(original: Any, self: ChatBridge, *given: Any, **named: Any) -> Any:
        encoded = original(self, *given, **named)
        if not training:
            return encoded
        opening[:] = encoded.ids[-1:]
        return encoded._replace(ids=encoded.ids[:-1])

    def opened(rollout: Rollout) -> Rollout:
        begins = np.flatnonzero(rollout.agent_mask[1:] & ~rollout.agent_mask[:-1]) + 1
        later = begins[rollout.turn_ids[begins] > 0]
        added = {"token_ids": opening[0] if opening else 0, "agent_mask": False, "rewards": 0.0}
        arrays = {name: np.insert(getattr(rollout, name), later, value) for name, value in added.items()}
        turns = np.insert(rollout.turn_ids, later, rollout.turn_ids[later] - 1)
        return replace(rollout, **arrays, turn_ids=turns, logprobs=None)

    around(RolloutPipeline, "_run", run)
    around(ChatBridge, "answer_seen", answer)


def two_versions() -> None:
    """The prompt and the first tokens of a text are read with the weights of `LAG` steps ago."""
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
