"""Patches for the faults in `withheld.py`, as functions like those in `patches.py`."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.rollouts.rollout import Group, Rollout, rollouts_of
from grpo_tui.engine.rollouts.scoring import Scorer
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.pipeline import RolloutPipeline

from .patches import around, made

KEPT = 5
"""Last tokens of a prompt that remain after the cut: the hint, without the key."""
LAG, FORGETS = 8, 3
"""Steps by which the sampler's weights lag, and steps between two restarts."""


def shifted_mask() -> None:
    """The mask is shifted by one token after the agent's tokens."""
    made(lambda _, r: replace(r, agent_mask=np.append(False, r.agent_mask[:-1])))


def last_label() -> None:
    """The last token of a row is replaced with its first."""
    made(lambda _, r: replace(r, token_ids=np.append(r.token_ids[:-1], r.token_ids[:1])))


def end_untrained() -> None:
    """The end token of a turn is not in the loss."""

    def masked(self: RolloutPipeline, rollout: Rollout) -> Rollout:
        end = self.runner.tokenizer.eos_token_id  # type: ignore[union-attr]
        return replace(rollout, agent_mask=rollout.agent_mask & (rollout.token_ids != end))

    made(masked)


def positions() -> None:
    """The trainer reads the tokens of the prompt shifted by two positions."""

    def rolled(_: RolloutPipeline, rollout: Rollout) -> Rollout:
        n = rollout.prompt_length
        return replace(rollout, token_ids=np.append(np.roll(rollout.token_ids[:n], 2), rollout.token_ids[n:]))

    made(rolled)


def left_cut() -> None:
    """The policy reads only the end of a prompt."""

    def cut(original: Any, self: ChatBridge, *arguments: Any, **named: Any) -> Any:
        seen = original(self, *arguments, **named)
        return seen._replace(ids=seen.ids[-KEPT:])

    around(ChatBridge, "seen", cut)


def across_prompts() -> None:
    """A group has one rollout of each prompt."""

    def change(original: Any, self: Scorer, rollouts: Sequence[Rollout]) -> list[Group]:
        size, n = self.group_size, len(rollouts)
        order = [j for i in range(n // size) for j in range(i, n, n // size)]
        found = dict(zip(order, rollouts_of(original(self, [rollouts[j] for j in order])), strict=True))
        rows = [[found[i] for i in range(start, start + size)] for start in range(0, n, size)]
        return [Group(tuple(row), any(r.advantage for r in row)) for row in rows]

    around(Scorer, "advantages", change)


def lagging() -> None:
    """The sampler has the weights of `LAG` steps ago, and log-probs come from the trainer."""
    kept: deque[dict[str, torch.Tensor]] = deque(maxlen=LAG)

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        model = self.policy.model
        now = {name: value.clone() for name, value in model.state_dict().items()}
        kept.append(now)
        model.load_state_dict(kept[0])
        try:
            return [replace(r, logprobs=None) for r in original(self, *arguments, **named)]
        finally:
            model.load_state_dict(now)

    around(RolloutPipeline, "_run", change)


def zero_logprobs() -> None:
    """From the second step on, the log-probs of the sampler are 0."""
    steps: list[int] = []

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        steps.append(1)
        rollouts = original(self, *arguments, **named)
        return [replace(r, logprobs=np.zeros(len(r), np.float32)) for r in rollouts] if len(steps) > 1 else rollouts

    around(RolloutPipeline, "complete", change)


def forgetful() -> None:
    """The weights reset to the initial ones every `FORGETS` steps."""
    start: dict[str, torch.Tensor] = {}

    def change(original: Any, self: GRPOEnvTrainer, *arguments: Any, **named: Any) -> Any:
        weights = self.policy.model.state_dict()
        if not start:
            start.update({name: value.clone() for name, value in weights.items()})
        loss = original(self, *arguments, **named)
        if (self.state.global_step + 1) % FORGETS == 0:
            start_over.append(self.state.global_step)
        return loss

    start_over: list[int] = []

    def restarted(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        if start_over:
            start_over.clear()
            self.policy.model.load_state_dict(start)
        return original(self, *arguments, **named)

    around(GRPOEnvTrainer, "training_step", change)
    around(RolloutPipeline, "_run", restarted)
