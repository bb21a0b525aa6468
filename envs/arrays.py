"""Trajectories as padded arrays, and a name for a task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from .trajectory import TokenArrays, Trajectory


def pad_trajectories(
    trajectories: Sequence[Trajectory], tokens: Sequence[TokenArrays], *, pad_token_id: int = 0
) -> dict[str, np.ndarray]:
    """Return right-padded arrays [N, T] of N trajectories, as `MultiTurnEnv.run_trial` describes them."""
    n, length = len(tokens), max((len(t) for t in tokens), default=0)
    token_ids = np.full((n, length), pad_token_id, dtype=np.int64)
    attention = np.zeros((n, length), dtype=np.int64)
    agent_mask = np.zeros((n, length), dtype=bool)
    logprobs = np.zeros((n, length), dtype=np.float32)
    turn_ids = np.full((n, length), -1, dtype=np.int64)
    rewards = np.zeros((n, length), dtype=np.float32)
    for row, (trajectory, arrays) in enumerate(zip(trajectories, tokens, strict=True)):
        size = len(arrays)
        token_ids[row, :size] = arrays.token_ids
        attention[row, :size] = 1
        agent_mask[row, :size] = arrays.agent_mask
        logprobs[row, :size] = np.where(arrays.agent_mask, arrays.logprobs, 0.0)
        turn_ids[row, :size] = arrays.turn
        rewards[row, :size] = token_rewards(trajectory, size)
    return {
        "padded_token_ids": token_ids,
        "padded_attn_mask": attention,
        "padded_agent_mask": agent_mask,
        "padded_rewards": rewards,
        "padded_logprobs": logprobs,
        "padded_turn_ids": turn_ids,
    }


def token_rewards(trajectory: Trajectory, length: int) -> np.ndarray:
    """Return the rewards of a trajectory's steps as rewards of its T tokens, float32 [length].

    Each is on the last token that the agent wrote in that step. The reward of a step without tokens goes to the last
    token before it. Without any token it is dropped.
    """
    rewards = np.zeros(length, dtype=np.float32)
    last = -1
    for step in trajectory.steps:
        start, end = step.token_span
        last = end - 1 if end > start else last
        if last >= 0:
            rewards[last] += step.reward
    return rewards


def task_id(env: str, task: Any) -> str:
    """Return a task's name, equal in every run: 12 hexadecimal digits of its content."""
    content = json.dumps([env, task], sort_keys=True, default=str)
    return hashlib.sha1(content.encode("utf-8", "replace")).hexdigest()[:12]
