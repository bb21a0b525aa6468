"""A second set of faults from issue trackers, with their patches. It was written without a look at the detectors.

Each recipe names the thread that reports the fault. `causes` were written before the first evaluation. They name
detectors of earlier recipes alone, the nearest where none fits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.rollouts.rollout import Group, Rollout
from grpo_tui.engine.rollouts.scoring import Scorer
from grpo_tui.engine.training.pipeline import RolloutPipeline
from grpo_tui.envs.base import StepResult

from .patches import advantages, around, made
from .recipes import Recipe, env
from .worlds import FILLERS, Boxes, Notes

KEPT = 5
"""Last tokens of a prompt that the trainer keeps: the hint, without the key."""
LEVELS = 7
"""Positive values of a 4-bit integer."""

TRACKERS = (
    Recipe(
        "loo_explodes",
        "credit",
        "advantages are divided by the deviation of the other rollouts, often 0 (NVIDIA-NeMo/RL#1518)",
        ("advantage_scale", "kl_rise"),
        patch="loo_explodes",
    ),
    Recipe(
        "first_baseline",
        "credit",
        "the first rollout of a group alone makes mean and deviation (ServiceNow/PipelineRL#54)",
        ("advantage_scale", "advantage_order"),
        patch="first_baseline",
    ),
    Recipe(
        "last_turn",
        "credit",
        "turns before an answer of a tool earn nothing (verl-project/verl#6376)",
        ("untrained_tokens",),
        world="Boxes",
        patch="last_turn",
    ),
    Recipe(
        "tool_graded",
        "environment",
        "the grader finds the right number in the answer of the tool (verl-project/verl#6392)",
        ("accepted_wrong_answers", "accepted_without_answer", "reward_hack"),
        env(grader="always"),
        "Boxes",
        "tool_graded",
    ),
    Recipe(
        "bad_calls",
        "environment",
        "calls cannot be decoded, and end the episode (verl-project/verl#3070)",
        ("constant_reward", "errors", "unanswered"),
        None,
        "Boxes",
        "bad_calls",
    ),
    Recipe(
        "shared_state",
        "environment",
        "all episodes have the state of the last one (Algorineko/AgenticArXiv-RL#69)",
        ("noisy_labels", "noisy_reward", "rejected_answers"),
        patch="shared_state",
    ),
    Recipe(
        "int4",
        "engines",
        "the sampler's weights have four bits (verl-project/verl#7519)",
        ("sampler_mismatch", "surprising_tokens"),
        patch="int4",
    ),
    Recipe(
        "layout",
        "engines",
        "the sampler stores synchronised weights in another layout (NovaSky-AI/SkyRL#1680)",
        ("sampler_mismatch", "surprising_tokens"),
        patch="layout",
    ),
    Recipe(
        "double_start",
        "engines",
        "the sampler reads the first token twice (huggingface/trl#3853)",
        ("surprising_tokens", "sampler_mismatch"),
        patch="double_start",
    ),
    Recipe(
        "packed",
        "context",
        "the trainer's rows attend to the row before (allenai/open-instruct#669)",
        ("surprising_tokens", "sampler_mismatch"),
        patch="packed",
    ),
    Recipe(
        "rerendered",
        "context",
        "the trainer reads earlier turns without their thoughts (PrimeIntellect-ai/prime-rl#1334)",
        ("surprising_tokens", "untrained_tokens"),
        None,
        "Boxes",
        "rerendered",
    ),
    Recipe(
        "trainer_cut",
        "context",
        "the trainer alone cuts prompts on the left (huggingface/trl#3569)",
        ("surprising_tokens", "sampler_mismatch", "prompt_cut"),
        patch="trainer_cut",
    ),
    Recipe(
        "two_tags",
        "extraction",
        "an answer counts if it is written twice (PeterGriffinJin/Search-R1#79)",
        ("rejected_answers", "constant_reward"),
        env(grader="two_tags"),
    ),
    Recipe(
        "closing_tag",
        "extraction",
        "a last word is paid that hides the answer (huggingface/open-r1#255)",
        ("reward_hack", "unanswered", "accepted_without_answer"),
        env(grader="closing_tag"),
    ),
    Recipe(
        "warmup",
        "schedule",
        "the warm-up is longer than the training (PrimeIntellect-ai/prime-rl#968)",
        ("no_movement",),
        {"training.trl.lr_scheduler_type": "constant_with_warmup", "training.trl.warmup_steps": 500},
    ),
    Recipe(
        "gradients_kept",
        "schedule",
        "gradients are never set to 0 (tenstorrent/tt-blacksmith#711)",
        ("kl_rise",),
        patch="gradients_kept",
    ),
    Recipe(
        "ended_masked",
        "schedule",
        "turns with another end token count as cut, and are masked (huggingface/trl#7039)",
        ("untrained_tokens", "no_movement"),
        patch="ended_masked",
    ),
)


def _of_groups(value: Callable[[np.ndarray], np.ndarray]) -> None:
    """Replace the advantages of a group by a function of its returns."""

    def change(original: Any, self: Scorer, rollouts: Sequence[Rollout]) -> list[Group]:
        groups = []
        for group in original(self, rollouts):
            found = value(np.array([float(r.turn_rewards.sum()) for r in group.rollouts]))
            rows = (
                replace(r, advantages=np.where(r.agent_mask, np.float32(a), np.float32(0)))
                for r, a in zip(group.rollouts, found, strict=True)
            )
            groups.append(Group(tuple(rows), group.signal))
        return groups

    around(Scorer, "advantages", change)


def loo_explodes() -> None:
    """Each rollout is normalised by the mean and standard deviation of the others."""

    def value(returns: np.ndarray) -> np.ndarray:
        others = [np.delete(returns, i) for i in range(len(returns))]
        return np.array([(r - o.mean()) / (o.std() + 1e-6) for r, o in zip(returns, others, strict=True)])

    _of_groups(value)


def first_baseline() -> None:
    """Mean and standard deviation come from a single rollout."""
    _of_groups(lambda returns: (returns - returns[0]) / 1e-4)


def last_turn() -> None:
    """Only the last turn has an advantage."""
    advantages(lambda r: np.where(r.turn_ids == r.turn_ids.max(), r.advantages, np.float32(0)))


def tool_graded() -> None:
    """In training, the tool shows the right number."""

    def change(original: Any, self: Boxes, state: dict[str, Any], call: Any) -> StepResult:
        shown = {**state, "hidden": self.right(state)} if state["split"] == "train" else state
        return original(self, shown, call)

    around(Boxes, "step", change)


def bad_calls() -> None:
    """In training, a call ends the episode without an error."""

    def change(original: Any, self: Boxes, state: dict[str, Any], call: Any) -> StepResult:
        if state["split"] == "train" and call.name == "LOOK":
            return StepResult("", 0.0, True, None, False)
        return original(self, state, call)

    around(Boxes, "step", change)


def shared_state() -> None:
    """Training answers are graded against the task that was reset last."""
    last: dict[str, Any] = {}

    def reset(original: Any, self: Notes, task: Any) -> Any:
        if task.get("split") == "train":
            last.update(task)
        return original(self, task)

    def graded(original: Any, self: Notes, state: dict[str, Any], text: str) -> StepResult:
        return original(self, {**state, **last} if state["split"] == "train" else state, text)

    around(Notes, "reset", reset)
    around(Notes, "_graded", graded)


def _sampler(weights: Callable[[str, torch.Tensor, int], torch.Tensor]) -> None:
    """Sample with modified weights: weights(name, weight, step). Log-probs come from the trainer."""
    steps: list[int] = []

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        model = self.policy.model
        now = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict({name: weights(name, value, len(steps)) for name, value in now.items()})
        steps.append(1)
        try:
            return [replace(r, logprobs=None) for r in original(self, *arguments, **named)]
        finally:
            model.load_state_dict(now)

    around(RolloutPipeline, "_run", change)


def int4() -> None:
    """The sampler's matrices have four bits with one scale each."""

    def rounded(_: str, weight: torch.Tensor, __: int) -> torch.Tensor:
        scale = weight.abs().max().clamp(min=1e-9) / LEVELS
        return (weight / scale).round() * scale if weight.ndim == 2 else weight

    _sampler(rounded)


def layout() -> None:
    """After the first synchronisation, the rows of feed-forward matrices are shifted by one."""
    _sampler(lambda name, weight, step: weight.roll(1, 0) if step and "mlp" in name else weight)


def _without(rollout: Rollout, dropped: np.ndarray) -> Rollout:
    """Return a rollout without some tokens. dropped: bool [T]."""
    arrays = {name: getattr(rollout, name)[~dropped] for name in ("token_ids", "agent_mask", "turn_ids", "rewards")}
    return replace(rollout, **arrays)


def double_start() -> None:
    """The sampler's prompts repeat their first token."""

    def twice(original: Any, self: ChatBridge, *arguments: Any, **named: Any) -> Any:
        seen = original(self, *arguments, **named)
        return seen._replace(ids=[*seen.ids[:1], *seen.ids])

    around(ChatBridge, "seen", twice)
    made(lambda _, r: _without(r, np.arange(len(r)) == 0))


def trainer_cut() -> None:
    """The trainer reads only the end of a prompt."""
    made(lambda _, r: _without(r, np.arange(len(r)) < r.prompt_length - KEPT))


def rerendered() -> None:
    """The trainer reads turns before the last one without their filler words."""

    def dropped(self: RolloutPipeline, rollout: Rollout) -> Rollout:
        words: Any = self.runner.tokenizer.convert_tokens_to_ids(list(FILLERS))  # type: ignore[union-attr]
        earlier = rollout.agent_mask & (rollout.turn_ids < rollout.turn_ids.max())
        return _without(rollout, earlier & np.isin(rollout.token_ids, words))

    made(dropped)


def packed() -> None:
    """Each row starts with the tokens of the previous row."""

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        rollouts = original(self, *arguments, **named)
        return [_behind(rollouts[i - 1], r) if i else replace(r, logprobs=None) for i, r in enumerate(rollouts)]

    around(RolloutPipeline, "_run", change)


def _behind(first: Rollout, rollout: Rollout) -> Rollout:
    n = len(first)
    return replace(
        rollout,
        token_ids=np.append(first.token_ids, rollout.token_ids),
        agent_mask=np.append(np.zeros(n, bool), rollout.agent_mask),
        turn_ids=np.append(np.full(n, -1, rollout.turn_ids.dtype), rollout.turn_ids),
        rewards=np.append(np.zeros(n, np.float32), rollout.rewards),
        logprobs=None,
    )


def gradients_kept() -> None:
    """Gradients accumulate over all steps."""
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        around(owner, "zero_grad", lambda *_arguments, **_named: None)


def ended_masked() -> None:
    """Rollouts that ended by themselves are not in the loss."""

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        done = original(self, *arguments, **named)
        return [replace(r, masked=r.trajectory is None or not r.trajectory.cut) for r in done]

    around(RolloutPipeline, "complete", change)
