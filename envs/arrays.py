"""Rewards of steps as rewards of tokens, and a name for a task."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from .trajectory import Trajectory


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
