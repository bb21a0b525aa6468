"""Convert the result of `env.run_trial` into rollouts.

Environments of this project hand over their ragged `tokens` beside the padded arrays, and these are taken as they
are. A class that only returns the padded arrays of the contract is read from those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ...configs.errors import GrpoTuiError
from ...envs.arrays import token_rewards
from ...envs.trajectory import TokenArrays, Trajectory
from .rollout import Rollout

REQUIRED = ("padded_token_ids", "padded_attn_mask", "padded_agent_mask", "padded_rewards")
OPTIONAL = ("padded_logprobs", "padded_turn_ids")


class TrialError(GrpoTuiError, ValueError):
    """The result of `run_trial` does not fit its contract; the message names the part."""


def rollouts_from_trial(
    result: Mapping[str, Any], groups: Sequence[int], num_rollouts: int, policy_version: int = 0
) -> list[Rollout]:
    """Return the rollouts of one `run_trial`, by task and then by rollout; `groups[i]` is the group of its i-th task.

    Raises TrialError when a key is missing, a shape is wrong, or the padded rewards are not those of the steps.
    """
    rows = len(groups) * num_rollouts
    padded = _checked(result, rows, f"{len(groups)} tasks x {num_rollouts} rollouts")
    trajectories: list[Trajectory | None] = list(result.get("trajectories") or [None] * rows)
    final = [float(r) for r in (result["final_rewards"] if "final_rewards" in result else [0.0] * rows)]
    if len(trajectories) != rows or len(final) != rows:
        raise TrialError(f"run_trial: {len(trajectories)} trajectories, {len(final)} final_rewards for {rows} rollouts")
    tokens: Sequence[TokenArrays] | None = result.get("tokens")
    images: Sequence[Sequence[Any]] = result.get("images") or [()] * rows
    made = []
    for row in range(rows):
        trajectory = trajectories[row]
        if tokens is not None and isinstance(tokens[row], TokenArrays) and isinstance(trajectory, Trajectory):
            arrays = _ragged(tokens[row], trajectory)
        else:
            arrays = _unpadded(padded, row)
        made.append(
            Rollout(
                **arrays,
                group=groups[row // num_rollouts],
                index=row % num_rollouts,
                final_reward=final[row],
                trajectory=trajectory,
                policy_version=policy_version,
                images=tuple(shown.image for shown in images[row]),
            )
        )
    if tokens is not None and any(not _as_padded(r, padded["padded_rewards"][i]) for i, r in enumerate(made)):
        raise TrialError(
            "run_trial: padded_rewards are not the rewards of the trajectories' steps; give the reward in `step`, or "
            "leave `tokens` out of what run_trial returns"
        )
    return made


def turns_of(agent_mask: np.ndarray) -> np.ndarray:
    """Turn of each token, int16 [T]: every unbroken run of agent tokens is a turn, and what follows it belongs to it;
    -1 before the first. agent_mask: bool [T]."""
    starts = agent_mask & ~np.concatenate([[False], agent_mask[:-1]])
    return (np.cumsum(starts) - 1).astype(np.int16)


def _ragged(tokens: TokenArrays, trajectory: Trajectory) -> dict[str, Any]:
    """Read the fields of a rollout from an environment's own arrays."""
    return {
        "token_ids": tokens.token_ids.astype(np.int64),
        "agent_mask": tokens.agent_mask.astype(bool),
        "turn_ids": tokens.turn.astype(np.int16),
        "rewards": token_rewards(trajectory, len(tokens)),
        "logprobs": np.where(tokens.agent_mask, tokens.logprobs, 0.0).astype(np.float32),
    }


def _unpadded(padded: Mapping[str, np.ndarray], row: int) -> dict[str, Any]:
    """Read the fields of a rollout from one row of the padded arrays."""
    valid = padded["padded_attn_mask"][row].astype(bool)
    agent_mask = padded["padded_agent_mask"][row].astype(bool)[valid]
    turn_ids, logprobs = padded.get("padded_turn_ids"), padded.get("padded_logprobs")
    fields = {
        "token_ids": padded["padded_token_ids"][row][valid].astype(np.int64),
        "agent_mask": agent_mask,
        "turn_ids": turns_of(agent_mask) if turn_ids is None else turn_ids[row][valid].astype(np.int16),
        "rewards": padded["padded_rewards"][row][valid].astype(np.float32),
    }
    return fields if logprobs is None else fields | {"logprobs": logprobs[row][valid].astype(np.float32)}


def _checked(result: Mapping[str, Any], rows: int, said: str) -> dict[str, np.ndarray]:
    """Return the padded arrays [rows, T] of a trial, with the optional ones that are present."""
    arrays: dict[str, np.ndarray] = {}
    for key in (*REQUIRED, *OPTIONAL):
        value = result.get(key)
        if value is None:
            if key in REQUIRED:
                raise TrialError(f"run_trial returned no {key}")
            continue
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
        if array.ndim != 2 or array.shape[0] != rows:
            raise TrialError(f"run_trial: {key} has shape {list(array.shape)}; right would be [{rows}, T] ({said})")
        arrays[key] = array
    shapes = {a.shape for a in arrays.values()}
    if len(shapes) != 1:
        raise TrialError(f"run_trial: padded arrays differ in shape: {sorted(shapes)}")
    return arrays


def _as_padded(rollout: Rollout, row: np.ndarray) -> bool:
    return bool(np.allclose(rollout.rewards, row[: len(rollout)], atol=1e-6, equal_nan=True))
