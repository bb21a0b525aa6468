"""Rewards per step of a trajectory as rewards per turn of its tokens, with and without shaping."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...configs.sections.rewards import SHAPED
from .rollout import Rollout


def by_turn(rewards: np.ndarray, turns: int) -> np.ndarray:
    """Rewards per step of the trajectory as rewards per turn of tokens, float32 [turns]: a last step without tokens
    adds to the one before it, so that nothing is lost."""
    out = np.zeros(turns, np.float32)
    n = min(turns, len(rewards))
    out[:n] = rewards[:n]
    if turns:
        out[-1] += rewards[n:].sum()
    return out


def unshaped(rollout: Rollout) -> Rollout:
    """The same rollout with everything but `SHAPED` in its rewards, and no breakdown."""
    if rollout.breakdown is None:
        return rollout
    steps = [
        sum(value.contribution or 0.0 for name, value in step.components.items() if name not in SHAPED)
        for step in rollout.breakdown.steps
    ]
    rewards = by_turn(np.array(steps, np.float32), rollout.turns)
    return replace(rollout, turn_rewards=rewards, breakdown=None)
