"""Importance correction for rollouts of a policy other than the one under training.

μ is the policy that sampled (an older version, or the same one in a server's arithmetic). π is the policy as the
trainer has it at the beginning of the step. Over the agent's tokens t of a rollout:

    ratio      r_t = π(t) / μ(t) (`token`), or Π π / μ, the same for all t (`sequence`)
    truncate   w_t = min(max(r_t, floor), cap)
    mask       w_t = r_t, and 0 outside [floor, cap]

The weights multiply the advantages, so they apply to every loss that is linear in them. The clipped ratio of the loss
then compares the policy under training with π. (Truncated importance sampling: Yao et al., "Your Efficient RL Framework
Secretly Brings You Off-Policy RL Training", 2025. `token_mask` is that of IcePop, arXiv 2510.18855. TRL uses the same
names for the modes.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .rollout import Rollout

Correction = Literal["none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]


@dataclass(frozen=True)
class Weighting:
    """How to compute the weights. A weight is limited to, or masked outside, [floor, cap]."""

    how: Correction = "token_truncate"
    floor: float = 0.0
    cap: float = 3.0

    def weights(self, log_ratio: Tensor, counted: Tensor) -> Tensor:
        """Return w, [B, T], 1 where `counted` (bool [B, T]) is False. log_ratio: log π − log μ, [B, T]."""
        if self.how == "none":
            return torch.ones_like(log_ratio)
        log_ratio = torch.where(counted, log_ratio, 0.0)
        if self.how.startswith("sequence"):
            log_ratio = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
        ratio = log_ratio.exp()
        if self.how.endswith("truncate"):
            limited = ratio.clamp(self.floor, self.cap)
        else:
            limited = torch.where((ratio < self.floor) | (ratio > self.cap), 0.0, ratio)
        return torch.where(counted, limited, 1.0)


def corrected(sampled: Sequence[Rollout], present: Sequence[Rollout], weighting: Weighting) -> list[Rollout]:
    """Return rollouts with their weights and with the log-probs for the ratio of the loss.

    sampled: with the log-probs of the policy that made them. present: the same with those of the current policy.
    """
    if weighting.how == "none":
        return list(sampled)
    done = []
    for rollout, now in zip(sampled, present, strict=True):
        assert rollout.logprobs is not None and now.logprobs is not None
        log_ratio = torch.from_numpy(now.logprobs.astype(np.float64) - rollout.logprobs)[None]
        weights = weighting.weights(log_ratio, torch.from_numpy(rollout.scored)[None])
        done.append(replace(rollout, logprobs=now.logprobs, importance=weights[0].float().numpy()))
    return done


def log_ratios(sampled: Sequence[Rollout], present: Sequence[Rollout]) -> list[np.ndarray]:
    """Return log π − log μ of the agent's tokens of each rollout, float64 [n], nats."""
    parts = []
    for rollout, now in zip(sampled, present, strict=True):
        assert rollout.logprobs is not None and now.logprobs is not None
        parts.append((now.logprobs.astype(np.float64) - rollout.logprobs)[rollout.scored])
    return parts
