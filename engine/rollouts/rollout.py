"""The data of training: `Rollout`, one trajectory with its tokens and everything computed from them.

A rollout is ragged (its arrays have its own length) and immutable. Each stage returns a new one with its fields filled
in:

    environment → token_ids, agent_mask, turn_ids, rewards, logprobs, trajectory      (`trial`)
    reference   → ref_logprobs, embeddings                                            (`training.frozen`)
    teacher     → teacher_logprobs                                                    (`training.teacher`)
    rewards     → turn_rewards, breakdown                                             (`scoring`)
    advantages  → advantages, formula                                                 (`advantages`)

One place converts rollouts to tensors [B, T] (`training.batch`), just before the loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from ...envs.trajectory import TokenArrays, Trajectory
from ...rewards.breakdown import AdvantageFormula, RewardBreakdown

if TYPE_CHECKING:
    from ..policy.vision.processor import ModelImage

Selected = Literal["", "trained", "filtered", "replaced", "unscored"]
"""trained: it is in the step's batch. filtered: its group has no signal. replaced: the same, and a replayed rollout
took its place in the batch. unscored: it failed in the environment."""


@dataclass(frozen=True, eq=False)
class Rollout:
    """One rollout of T tokens and S turns.

    token_ids: int64 [T]. agent_mask: bool [T], True on tokens that the agent wrote for this rollout, False in turns
    repeated from another one (`envs.tree`). turn_ids: int16 [T], -1 in the prompt; an observation belongs to the turn
    that it answers. rewards: float32 [T], the environment's own. group: index of the prompt in the batch. index: of the
    rollout within its group. final_reward: the environment's sum.

    logprobs: float32 [T], nats, of the policy that sampled each agent token (None: not known). trained_logprobs:
    float32 [T], nats, of the same policy in the trained pass, if that computes in half precision (else None).
    ref_logprobs: float32 [T], nats, under the reference. teacher_logprobs: float32 [T], nats, under the teacher of a
    distillation. embeddings: float32 [S, D], the reference's last hidden states averaged over each turn's agent tokens.
    turn_rewards: float32 [S], shaped. advantages: float32 [T]. formula: how they were computed.

    masked: its tokens are left out of the loss.
    importance: float32 [T], factors of the advantages in the loss (`correction`; None: 1).

    policy_version: optimiser steps of the policy that sampled it. replayed: drawn from the replay buffer, not sampled
    for this step. draw_probability: the probability that it was drawn first. id: the trajectory's, also if the
    trajectory itself was dropped. selected: its use in its own step (see `Selected`; empty before the selection).
    images: those shown to a vision-language policy, in the order of their tokens.
    """

    token_ids: np.ndarray
    agent_mask: np.ndarray
    turn_ids: np.ndarray
    rewards: np.ndarray
    group: int
    index: int
    final_reward: float = 0.0
    logprobs: np.ndarray | None = None
    trained_logprobs: np.ndarray | None = None
    ref_logprobs: np.ndarray | None = None
    teacher_logprobs: np.ndarray | None = None
    embeddings: np.ndarray | None = None
    trajectory: Trajectory | None = None
    turn_rewards: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    breakdown: RewardBreakdown | None = None
    advantages: np.ndarray | None = None
    formula: AdvantageFormula | None = None
    importance: np.ndarray | None = None
    policy_version: int = 0
    replayed: bool = False
    masked: bool = False
    draw_probability: float | None = None
    id: str = ""
    selected: Selected = ""
    images: tuple[ModelImage, ...] = ()

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def key(self) -> str:
        """The id of its trajectory in the record; empty if the environment gave none."""
        return self.id if self.trajectory is None else self.trajectory.id

    @property
    def turns(self) -> int:
        """S, the number of turns in which the agent wrote something."""
        return int(self.turn_ids[self.agent_mask].max()) + 1 if self.agent_mask.any() else 0

    @property
    def prompt_length(self) -> int:
        """Tokens before the first turn; the whole length without turns."""
        first = np.flatnonzero(self.turn_ids >= 0)
        return int(first[0]) if len(first) else len(self)

    @property
    def agent_tokens(self) -> int:
        return int(self.agent_mask.sum())

    @property
    def scored(self) -> np.ndarray:
        """The agent's tokens that have a log-prob, bool [T]. The first token of a row has none."""
        scored = self.agent_mask.copy()
        scored[:1] = False
        return scored

    @property
    def total_reward(self) -> float:
        """The shaped reward of the whole rollout."""
        return float(self.turn_rewards.sum())

    @property
    def weighted_advantages(self) -> np.ndarray | None:
        """Advantages as used in the loss: times `importance`."""
        weighted = self.advantages is not None and self.importance is not None
        return self.advantages * self.importance if weighted else self.advantages  # type: ignore[operator]

    @property
    def advantage(self) -> float:
        """A single advantage for display: the mean over the agent's tokens; 0 without any."""
        if self.advantages is None or not self.agent_mask.any():
            return 0.0
        return float(self.advantages[self.agent_mask].mean())

    @property
    def log_ratios(self) -> np.ndarray | None:
        """log π − log π_ref of each agent token but a first one, float32; None without a reference."""
        logprobs = self.logprobs if self.trained_logprobs is None else self.trained_logprobs
        if logprobs is None or self.ref_logprobs is None:
            return None
        return (logprobs - self.ref_logprobs)[self.scored]

    @property
    def scorable(self) -> bool:
        """False if the rollout failed in the environment, so that its reward is meaningless."""
        return self.trajectory is None or not self.trajectory.failed

    def mean_by_turn(self, values: np.ndarray) -> np.ndarray:
        """Average per-token values [T, ...] over each turn's agent tokens, float32 [S, ...]; 0 for a turn without."""
        out = np.zeros((self.turns, *values.shape[1:]), np.float32)
        for turn in range(self.turns):
            where = self.agent_mask & (self.turn_ids == turn)
            if where.any():
                out[turn] = values[where].mean(0)
        return out

    def reward_by_turn(self) -> np.ndarray:
        """Sum the environment's per-token rewards over each turn, float32 [S]."""
        return np.array([self.rewards[self.turn_ids == turn].sum() for turn in range(self.turns)], np.float32)

    def without_gradient(self) -> Rollout:
        """Return the rollout with advantages of 0, so that a filtered rollout does not act as amplified noise."""
        return self if self.advantages is None else replace(self, advantages=np.zeros_like(self.advantages))

    def for_loss(self) -> Rollout:
        """Return the fields that the loss needs, for another process."""
        return replace(self, id=self.key, trajectory=None, breakdown=None, embeddings=None, formula=None)

    def token_arrays(self) -> TokenArrays:
        """Return the arrays in the form of the run record."""
        overlays = {"trainer": self.trained_logprobs, "teacher": self.teacher_logprobs}
        return TokenArrays(
            token_ids=self.token_ids.astype(np.int32),
            agent_mask=self.agent_mask,
            logprobs=self.logprobs if self.logprobs is not None else np.zeros(len(self), np.float32),
            turn=self.turn_ids,
            advantages=self.advantages,
            overlays={name: values for name, values in overlays.items() if values is not None},
        )


@dataclass(frozen=True)
class Group:
    """The rollouts of one prompt, which are compared with each other. signal: whether they differ enough to learn
    from."""

    rollouts: tuple[Rollout, ...]
    signal: bool = True

    @property
    def solved(self) -> bool:
        """Whether all its rollouts are known to be right."""
        return all(r.trajectory is not None and r.trajectory.correct is True for r in self.rollouts)

    def without_gradient(self) -> Group:
        """Return the group with advantages of 0."""
        return replace(self, rollouts=tuple(r.without_gradient() for r in self.rollouts))


def rollouts_of(groups: Sequence[Group]) -> list[Rollout]:
    """Return the rollouts of all groups, in order."""
    return [r for g in groups for r in g.rollouts]


def in_batch_order(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Sort by group, then by index: the order of the batch's rows."""
    return sorted(rollouts, key=lambda r: (r.group, r.index))
