"""The inputs of a loss, and the reduction that the trainer applies to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossInputs:
    """One micro-batch of B rollouts with at most T tokens; all float32 [B, T], in nats where they are log-probs.

    logprobs: of the policy, with gradient. old_logprobs: of the policy that sampled. advantages: as configured.
    entropy: of the policy's distributions. mask: 1 on the agent's tokens and 0 elsewhere. Other values at masked
    places have no meaning.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    entropy: Tensor
    mask: Tensor

    @property
    def ratio(self) -> Tensor:
        """π / π_old of each token, with gradient."""
        return torch.exp(self.logprobs - self.old_logprobs)


Loss = Callable[[LossInputs], Tensor]
"""The loss of every token, [B, T]; tokens outside the mask are dropped afterwards."""


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Return −min(ρ·A, clip(ρ, 1 − low, 1 + high)·A) of each token (PPO, arXiv 1707.06347)."""
    return -torch.min(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)


def kl_of_tokens(logprobs: Tensor, ref_logprobs: Tensor, estimator: str = "k3") -> Tensor:
    """Return −d (k1), d² / 2 (k2) or e^d − d − 1 (k3) with d = log π_ref − log π, [B, T] (Schulman, "Approximating KL
    divergence", 2020)."""
    difference = ref_logprobs - logprobs
    if estimator == "k1":
        return -difference
    return difference.square() / 2 if estimator == "k2" else torch.exp(difference) - difference - 1


def sum_over_tokens(
    loss: Loss, inputs: LossInputs, ref_logprobs: Tensor | None, beta: float, estimator: str = "k3"
) -> Tensor:
    """Return the sum of `loss` and of beta times the KL over the agent's tokens, a scalar; ref_logprobs [B, T]: None
    for no KL. The KL is weighted by the ratio, as TRL's is when samples are not those of the present policy."""
    per_token = loss(inputs)
    if ref_logprobs is not None:
        per_token = per_token + beta * inputs.ratio * kl_of_tokens(inputs.logprobs, ref_logprobs, estimator)
    return per_token.masked_fill(inputs.mask == 0, 0.0).sum()
