"""TRL's own metrics and completion table, from rollouts: what TRL fills itself where it generates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..rollouts.rollout import Rollout


def completion_metrics(rollouts: Sequence[Rollout], group_size: int) -> dict[str, float]:
    """Return reward, its spread, and lengths in agent tokens, by TRL's names."""
    rewards = np.array([r.total_reward for r in rollouts], dtype=np.float64)
    lengths = np.array([r.agent_tokens for r in rollouts], dtype=np.float64)
    spread = rewards.reshape(-1, group_size).std(1) if len(rewards) % group_size == 0 else rewards
    return {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "frac_reward_zero_std": float((spread < 1e-8).mean()),
        "environment_reward": float(np.mean([r.final_reward for r in rollouts])),
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": float(lengths.min()),
        "completions/max_length": float(lengths.max()),
        **_clipped(rollouts, lengths),
    }


def _clipped(rollouts: Sequence[Rollout], lengths: np.ndarray) -> dict[str, float]:
    """Return the share of rollouts cut by a limit, and the lengths of the others (0 if there are none)."""
    if any(r.trajectory is None for r in rollouts):
        return {}
    cut = np.array([r.trajectory is not None and r.trajectory.cut for r in rollouts])
    ended = lengths[~cut] if not cut.all() else np.zeros(1)
    return {
        "completions/clipped_ratio": float(cut.mean()),
        "completions/mean_terminated_length": float(ended.mean()),
        "completions/min_terminated_length": float(ended.min()),
        "completions/max_terminated_length": float(ended.max()),
    }


def completion_logs(rollout: Rollout, table: dict[str, Any]) -> None:
    """Append a rollout to TRL's completion table."""
    if rollout.trajectory is not None:
        table["prompt"].append(rollout.trajectory.prompt)
        table["completion"].append("\n".join(s.text for s in rollout.trajectory.steps))
        table["rewards"]["total"].append(rollout.total_reward)
        table["advantages"].append(rollout.advantage)
