"""Rollouts as the trainer handles them: one `Sample` a trajectory, ragged, until tensors are made of them.

Ragged rows make grouping, merging, replay and packing plain list operations; padding happens once, at the end
(`pad_samples`). `samples_from_trial` reads what `env.run_trial` returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...envs.trajectory import TokenArrays, Trajectory
from ...rewards.breakdown import AdvantageFormula, RewardBreakdown


class TrialError(ValueError):
    """What `run_trial` returned does not fit its contract; the message says which part."""


@dataclass
class Sample:
    """One rollout. Arrays are over its own T tokens, S is its number of turns.

    token_ids: int64 [T]. agent_mask: bool [T]. rewards: float32 [T], the environment's own. turn: int16 [T], -1 in
    the prompt. logprobs: float32 [T], of the policy that sampled each agent token (None: not known). ref_logprobs:
    float32 [T] under the reference. embeddings: float32 [S, D], mean of the reference's last hidden states over each
    turn's agent tokens. step_rewards: float32 [S], shaped. advantages: float32 [T]. formula: how they came about.
    replayed: from the buffer, not of this step.
    """

    token_ids: np.ndarray
    agent_mask: np.ndarray
    rewards: np.ndarray
    turn: np.ndarray
    prompt: int
    rollout: int
    final_reward: float = 0.0
    logprobs: np.ndarray | None = None
    ref_logprobs: np.ndarray | None = None
    embeddings: np.ndarray | None = None
    trajectory: Trajectory | None = None
    step_rewards: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    breakdown: RewardBreakdown | None = None
    advantages: np.ndarray | None = None
    formula: AdvantageFormula | None = None
    born: int = 0
    replayed: bool = False

    def __len__(self) -> int:
        return int(self.token_ids.shape[0])

    @property
    def turns(self) -> int:
        """Number of turns in which the agent wrote something."""
        return int(self.turn[self.agent_mask].max()) + 1 if self.agent_mask.any() else 0

    @property
    def prompt_length(self) -> int:
        """Tokens before the agent's first one; the whole length when it wrote nothing."""
        first = np.flatnonzero(self.agent_mask)
        return int(first[0]) if len(first) else len(self)

    def token_arrays(self) -> TokenArrays:
        """As the run record stores them."""
        logprobs = self.logprobs if self.logprobs is not None else np.zeros(len(self), np.float32)
        return TokenArrays(
            token_ids=self.token_ids.astype(np.int32),
            agent_mask=self.agent_mask,
            logprobs=logprobs,
            turn=self.turn,
            advantages=self.advantages,
        )


def samples_from_trial(result: Mapping[str, Any], prompts: Sequence[int], num_rollouts: int) -> list[Sample]:
    """The rollouts of one `run_trial`, prompt-major; `prompts[i]` is the index in the batch of its i-th task.

    Raises TrialError when a key is missing or a shape is wrong.
    """
    rows = len(prompts) * num_rollouts
    arrays = {}
    for key in ("padded_token_ids", "padded_attn_mask", "padded_agent_mask", "padded_rewards"):
        if key not in result:
            raise TrialError(f"run_trial returned no {key}")
        arrays[key] = _numpy(result[key])
        if arrays[key].ndim != 2 or arrays[key].shape[0] != rows:
            raise TrialError(
                f"run_trial: {key} has shape {list(arrays[key].shape)}; right would be [{rows}, T] "
                f"({len(prompts)} tasks x {num_rollouts} rollouts)"
            )
    shapes = {a.shape for a in arrays.values()}
    if len(shapes) != 1:
        raise TrialError(f"run_trial: padded arrays differ in shape: {sorted(shapes)}")
    optional = {key: _optional(result, key, next(iter(shapes))) for key in ("padded_logprobs", "padded_turn_ids")}
    trajectories = list(result.get("trajectories") or [None] * rows)
    final = [float(r) for r in (result["final_rewards"] if "final_rewards" in result else [0.0] * rows)]
    if len(trajectories) != rows or len(final) != rows:
        raise TrialError(f"run_trial: {len(trajectories)} trajectories, {len(final)} final_rewards for {rows} rollouts")

    samples = []
    for row in range(rows):
        valid = arrays["padded_attn_mask"][row].astype(bool)
        agent_mask = arrays["padded_agent_mask"][row].astype(bool)[valid]
        turns = optional["padded_turn_ids"]
        logprobs = optional["padded_logprobs"]
        samples.append(
            Sample(
                token_ids=arrays["padded_token_ids"][row][valid].astype(np.int64),
                agent_mask=agent_mask,
                rewards=arrays["padded_rewards"][row][valid].astype(np.float32),
                turn=turns_of(agent_mask) if turns is None else turns[row][valid].astype(np.int16),
                prompt=prompts[row // num_rollouts],
                rollout=row % num_rollouts,
                final_reward=final[row],
                logprobs=None if logprobs is None else logprobs[row][valid].astype(np.float32),
                trajectory=trajectories[row],
            )
        )
    return samples


def turns_of(agent_mask: np.ndarray) -> np.ndarray:
    """Turn of each token, int16 [T]: every unbroken run of agent tokens is a turn, and what follows it belongs to it;
    -1 before the first."""
    starts = agent_mask & ~np.concatenate([[False], agent_mask[:-1]])
    return (np.cumsum(starts) - 1).astype(np.int16)


def merge_samples(groups: Sequence[Sequence[Sample]]) -> list[Sample]:
    """Rollouts of several trials in one list, in the order of the batch: by prompt, then by rollout."""
    return sorted((s for group in groups for s in group), key=lambda s: (s.prompt, s.rollout))


def pad_rows(rows: Sequence[np.ndarray | None], length: int, value: float, dtype: torch.dtype) -> Tensor:
    """Rows of different length as one tensor [B, length], right-padded with `value`; None is a row of `value`."""
    out = torch.full((len(rows), length), value, dtype=dtype)
    for i, row in enumerate(rows):
        if row is not None and len(row):
            out[i, : len(row)] = torch.from_numpy(np.ascontiguousarray(row)).to(dtype)
    return out


def step_reward_tokens(sample: Sample) -> np.ndarray:
    """`step_rewards` [S] as per-token rewards [T]: each on the last agent token of its turn."""
    out = np.zeros(len(sample), np.float32)
    for turn, reward in enumerate(sample.step_rewards):
        where = np.flatnonzero(sample.agent_mask & (sample.turn == turn))
        if len(where):
            out[where[-1]] = reward
    return out


def rewards_by_turn(sample: Sample) -> np.ndarray:
    """The environment's per-token rewards summed over each turn, float32 [S]."""
    out = np.zeros(sample.turns, np.float32)
    for turn in range(sample.turns):
        out[turn] = sample.rewards[sample.turn == turn].sum()
    return out


def _numpy(value: Any) -> np.ndarray:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


def _optional(result: Mapping[str, Any], key: str, shape: tuple[int, ...]) -> np.ndarray | None:
    value = result.get(key)
    if value is None:
        return None
    array = _numpy(value)
    if array.shape != shape:
        raise TrialError(f"run_trial: {key} has shape {list(array.shape)}; right would be {list(shape)}")
    return array
