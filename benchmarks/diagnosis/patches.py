"""Faults that no setting causes. Each function changes the engine in the process of one training."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from typing import Any, cast

import numpy as np
import torch

from grpo_tui.engine.agents.chat import ChatBridge
from grpo_tui.engine.rollouts.rollout import Group, Rollout, rollouts_of
from grpo_tui.engine.rollouts.scoring import Scorer
from grpo_tui.engine.training.env_trainer import GRPOEnvTrainer
from grpo_tui.engine.training.pipeline import RolloutPipeline


def apply(name: str) -> None:
    """Apply the patch with this name, from this module or one that uses it."""
    from . import field, issues, practice, reports, threads, trackers, unseen_patches, withheld_patches

    modules = (practice, issues, threads, reports, field, trackers, withheld_patches, unseen_patches)
    {**{k: v for module in modules for k, v in vars(module).items()}, **globals()}[name]()


def around(owner: type, name: str, change: Callable[..., Any]) -> None:
    """Replace a method by `change(original, self, *arguments)`."""
    original = getattr(owner, name)

    @wraps(original)
    def changed(self: Any, *arguments: Any, **named: Any) -> Any:
        return change(original, self, *arguments, **named)

    setattr(owner, name, changed)


# ---------------------------------------------------------------------------------------- grouping and arithmetic


def sign() -> None:
    """Advantages have the wrong sign."""
    advantages(lambda r: -r.advantages)


def batch_of_one() -> None:
    """Each rollout is its own group, so it is compared with itself."""
    advantages(lambda r: np.zeros_like(r.advantages))


def advantages(value: Callable[[Any], np.ndarray]) -> None:
    """Replace the advantages of each rollout."""

    def change(original: Any, self: Scorer, rollouts: Sequence[Rollout]) -> list[Group]:
        return [
            Group(tuple(replace(r, advantages=value(r)) for r in group.rollouts), group.signal)
            for group in original(self, rollouts)
        ]

    around(Scorer, "advantages", change)


def groups_mixed() -> None:
    """Advantages come from the rewards of other rollouts of the batch."""

    def change(original: Any, self: Scorer, rollouts: Sequence[Rollout]) -> list[Group]:
        others = random.sample(list(rollouts), len(rollouts))
        swapped = [
            replace(r, turn_rewards=o.turn_rewards, breakdown=o.breakdown, trajectory=o.trajectory, rewards=o.rewards)
            for r, o in zip(rollouts, others, strict=True)
        ]
        groups = original(self, swapped)
        found = iter(rollouts_of(groups))
        return [
            Group(tuple(replace(own[id_], advantages=_all(own[id_], next(found))) for id_ in range(len(own))), g.signal)
            for g, own in zip(groups, _split(rollouts, self.group_size), strict=True)
        ]

    around(Scorer, "advantages", change)


def _all(rollout: Rollout, other: Rollout) -> np.ndarray:
    return np.where(rollout.agent_mask, np.float32(other.advantage), np.float32(0))


def _split(rollouts: Sequence[Rollout], size: int) -> list[list[Rollout]]:
    return [list(rollouts[i : i + size]) for i in range(0, len(rollouts), size)]


def kl_sign() -> None:
    """The KL penalty is a bonus."""

    def change(original: Any, self: GRPOEnvTrainer, *arguments: Any, **named: Any) -> Any:
        self.beta = -self.beta
        try:
            return original(self, *arguments, **named)
        finally:
            self.beta = -self.beta

    around(GRPOEnvTrainer, "compute_loss", change)


# ---------------------------------------------------------------------------------------------------------- tokens


def made(change: Callable[[RolloutPipeline, Rollout], Rollout]) -> None:
    """Change each rollout after sampling. Its log-probs are computed again."""

    def changed(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        return [replace(change(self, r), logprobs=None) for r in original(self, *arguments, **named)]

    around(RolloutPipeline, "_run", changed)


def tool_trained() -> None:
    """Tool output counts as agent tokens."""
    made(lambda _, r: replace(r, agent_mask=r.turn_ids >= 0))


def prompt_trained() -> None:
    """The prompt counts as agent tokens."""
    made(lambda _, r: replace(r, agent_mask=np.arange(len(r)) > 0, turn_ids=np.maximum(r.turn_ids, 0)))


def retokenised() -> None:
    """Words of the agent are split into letters before training."""

    def change(self: RolloutPipeline, rollout: Rollout) -> Rollout:
        tokenizer: Any = self.runner.tokenizer
        ids: list[int] = []
        source: list[int] = []
        for i, token in enumerate(rollout.token_ids.tolist()):
            text = tokenizer.convert_ids_to_tokens(token)
            split = rollout.agent_mask[i] and not text.startswith("<|") and len(text) > 1
            parts = tokenizer.convert_tokens_to_ids(list(text)) if split else [token]
            ids += parts
            source += [i] * len(parts)
        last = np.append(np.diff(source) > 0, True)
        return replace(
            rollout,
            token_ids=np.array(ids, rollout.token_ids.dtype),
            agent_mask=rollout.agent_mask[source],
            turn_ids=rollout.turn_ids[source],
            rewards=np.where(last, rollout.rewards[source], np.float32(0)),
        )

    made(change)


def no_end() -> None:
    """A turn ends only at a token that is never written."""

    def change(original: Any, self: ChatBridge, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.stop_ids = (int(cast(Any, self.tokenizer).pad_token_id),)

    around(ChatBridge, "__init__", change)


# -------------------------------------------------------------------------------------------------- policy versions


def stale() -> None:
    """The sampler keeps the initial weights."""
    kept: dict[str, torch.Tensor] = {}

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        weights = self.policy.model.state_dict()
        now = {name: value.clone() for name, value in weights.items()}
        if not kept:
            kept.update(now)
        self.policy.model.load_state_dict(kept)
        try:
            return original(self, *arguments, **named)
        finally:
            self.policy.model.load_state_dict(now)

    around(RolloutPipeline, "_run", change)


def adapter_off() -> None:
    """The sampler runs the base model without adapters."""

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        model: Any = self.policy.model
        with model.disable_adapter():
            return original(self, *arguments, **named)

    around(RolloutPipeline, "_run", change)


def other_logprobs() -> None:
    """The old log-probs come from the reference."""

    def change(original: Any, self: RolloutPipeline, *arguments: Any, **named: Any) -> list[Rollout]:
        return [replace(r, logprobs=r.ref_logprobs) for r in original(self, *arguments, **named)]

    around(RolloutPipeline, "complete", change)
