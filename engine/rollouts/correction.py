"""Importance correction for rollouts of another policy than the one under training.

With μ the policy that sampled (an older version, or the same one in a server's arithmetic) and π the policy as the
trainer has it at the beginning of the step, over the agent's tokens t of a rollout:

    token_truncate   w_t = min(π(t) / μ(t), cap)
    sequence_mask    w_t = Π π / μ for all t alike, and 0 where that is above the cap

The weights multiply the advantages, so they reach every loss that is linear in them; the clipped ratio of the loss is
then that of the policy under training to π. (Truncated importance sampling: Yao et al., "Your Efficient RL Framework
Secretly Brings You Off-Policy RL Training", 2025; TRL calls the modes alike.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from .rollout import Rollout

Correction = Literal["none", "token_truncate", "sequence_mask"]


def weights(
    logprobs: np.ndarray, sampled: np.ndarray, agent_mask: np.ndarray, how: Correction, cap: float
) -> np.ndarray:
    """w of one rollout, float32 [T], 1 off the agent's tokens.

    logprobs: of the policy π; sampled: of the policy μ; both float32 [T], nats. agent_mask: bool [T].
    """
    counted = agent_mask.copy()
    counted[:1] = False  # nothing comes before a first token
    difference = np.where(counted, logprobs.astype(np.float64) - sampled, 0.0)
    if how == "none":
        return np.ones(len(difference), np.float32)
    if how == "token_truncate":
        return np.where(counted, np.exp(np.minimum(difference, np.log(cap))), 1.0).astype(np.float32)
    total = float(difference.sum())
    whole = np.exp(total) if total <= np.log(cap) else 0.0
    return np.where(counted, whole, 1.0).astype(np.float32)


def corrected(sampled: Sequence[Rollout], present: Sequence[Rollout], how: Correction, cap: float) -> list[Rollout]:
    """Return rollouts with their weights and with the log-probs of the loss's ratio.

    sampled: with the log-probs of the policy that made them; present: the same with those of the policy as it is.
    """
    if how == "none":
        return list(sampled)
    done = []
    for made, now in zip(sampled, present, strict=True):
        assert made.logprobs is not None and now.logprobs is not None
        importance = weights(now.logprobs, made.logprobs, made.agent_mask, how, cap)
        done.append(replace(made, logprobs=now.logprobs, importance=importance))
    return done


def log_ratios(sampled: Sequence[Rollout], present: Sequence[Rollout]) -> list[np.ndarray]:
    """log π − log μ of the agent's tokens of each rollout, float64 [n], nats."""
    parts = []
    for made, now in zip(sampled, present, strict=True):
        assert made.logprobs is not None and now.logprobs is not None
        counted = made.agent_mask.copy()
        counted[:1] = False
        parts.append((now.logprobs.astype(np.float64) - made.logprobs)[counted])
    return parts


def mismatch(sampled: Sequence[Rollout], present: Sequence[Rollout]) -> np.ndarray:
    """|log π − log μ| of all the agent's tokens, float64 [n], nats."""
    return np.abs(np.concatenate([np.zeros(0), *log_ratios(sampled, present)]))
