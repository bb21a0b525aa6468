"""Convert the result of `env.run_trial` into rollouts.

`MultiTurnEnv.run_trial` returns ragged `tokens`. Any other class may instead return the padded arrays of the contract:
`padded_token_ids`, `padded_attn_mask`, `padded_agent_mask`, `padded_rewards`, all [rollouts, T].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ...configs.errors import GrpoTuiError
from ...envs.trajectory import TokenArrays, Trajectory, token_rewards
from .rollout import Rollout

REQUIRED = ("padded_token_ids", "padded_attn_mask", "padded_agent_mask", "padded_rewards")
OPTIONAL = ("padded_logprobs", "padded_turn_ids")


class TrialError(GrpoTuiError, ValueError):
    """The result of `run_trial` does not fit its contract. The message names the part."""


def rollouts_from_trial(
    result: Mapping[str, Any], groups: Sequence[int], num_rollouts: int, policy_version: int = 0
) -> list[Rollout]:
    """Return the rollouts of one `run_trial`, by task and then by rollout. `groups[i]` is the group of its i-th task.

    Padded arrays take precedence over `tokens`. Raises TrialError if a key is missing or a shape is wrong.
    """
    rows = len(groups) * num_rollouts
    trajectories: list[Trajectory | None] = list(result.get("trajectories") or [None] * rows)
    final = [float(r) for r in (result["final_rewards"] if "final_rewards" in result else [0.0] * rows)]
    images: Sequence[Sequence[Any]] = result.get("images") or [()] * rows
    tokens = None if any(key in result for key in REQUIRED) else result.get("tokens")
    for name, values in (("trajectories", trajectories), ("final_rewards", final), ("tokens", tokens)):
        if values is not None and len(values) != rows:
            raise TrialError(f"run_trial: {len(values)} {name} for {rows} rollouts")
    if tokens is None:
        arrays = _unpadded(result, rows, f"{len(groups)} tasks x {num_rollouts} rollouts")
    else:
        arrays = [_ragged(one, trajectory) for one, trajectory in zip(tokens, trajectories, strict=True)]
    return [
        Rollout(
            **arrays[row],
            group=groups[row // num_rollouts],
            index=row % num_rollouts,
            final_reward=final[row],
            trajectory=trajectories[row],
            policy_version=policy_version,
            images=tuple(shown.image for shown in images[row]),
        )
        for row in range(rows)
    ]


def turns_of(agent_mask: np.ndarray) -> np.ndarray:
    """Return the turn of each token, int16 [T], -1 before the first turn. agent_mask: bool [T].

    Every unbroken run of agent tokens is a turn. The tokens after it belong to it.
    """
    starts = agent_mask & ~np.concatenate([[False], agent_mask[:-1]])
    return (np.cumsum(starts) - 1).astype(np.int16)


def _ragged(tokens: TokenArrays, trajectory: Trajectory | None) -> dict[str, Any]:
    if not isinstance(tokens, TokenArrays) or not isinstance(trajectory, Trajectory):
        raise TrialError("run_trial: each of `tokens` must be TokenArrays, with a Trajectory in `trajectories`")
    return {
        "token_ids": tokens.token_ids.astype(np.int64),
        "agent_mask": tokens.agent_mask.astype(bool),
        "turn_ids": tokens.turn.astype(np.int16),
        "rewards": token_rewards(trajectory, len(tokens)),
        "logprobs": np.where(tokens.agent_mask, tokens.logprobs, 0.0).astype(np.float32),
    }


def _unpadded(result: Mapping[str, object], rows: int, reason: str) -> list[dict[str, Any]]:
    """Cut the padded arrays to the tokens that the attention mask covers."""
    padded = _checked(result, rows, reason)
    found = []
    for row in range(rows):
        valid = padded["padded_attn_mask"][row].astype(bool)
        cut = {name: array[row][valid] for name, array in padded.items()}
        agent_mask = cut["padded_agent_mask"].astype(bool)
        fields = {
            "token_ids": cut["padded_token_ids"].astype(np.int64),
            "agent_mask": agent_mask,
            "turn_ids": cut.get("padded_turn_ids", turns_of(agent_mask)).astype(np.int16),
            "rewards": cut["padded_rewards"].astype(np.float32),
        }
        if "padded_logprobs" in cut:
            fields["logprobs"] = cut["padded_logprobs"].astype(np.float32)
        found.append(fields)
    return found


def _checked(result: Mapping[str, object], rows: int, reason: str) -> dict[str, np.ndarray]:
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
            raise TrialError(f"run_trial: {key} has shape {list(array.shape)}; expected [{rows}, T] ({reason})")
        arrays[key] = array
    shapes = {a.shape for a in arrays.values()}
    if len(shapes) != 1:
        raise TrialError(f"run_trial: padded arrays differ in shape: {sorted(shapes)}")
    return arrays
