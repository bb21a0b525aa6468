"""Losses per token, one file each, and the reduction that the trainer applies to them.

TRL's losses keep TRL's names and run TRL's own code. Any other loss is a function from `LossInputs` to the loss of
every token. The trainer takes the mean over the step's agent tokens and adds the KL penalty. The loss `reinforce` is
the function of that name in `reinforce.py`. To add one, copy that file and enter the name in the configuration's
`OwnLoss` (`configs/sections/training.py`). A function in a file of your own needs no entry: name it in the
configuration as `training.loss_type: path/to/file.py:function`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from ....configs.sections.training import OWN_LOSSES, TRL_LOSSES
from ....envs.user_code import UserCodeError, find_module
from .. import TrainingError


@dataclass(frozen=True)
class LossInputs:
    """One micro-batch of B rollouts with at most T tokens. All tensors are float32 [B, T], log-probs in nats.

    logprobs: of the policy, with gradient. old_logprobs: of the policy that sampled. advantages: as configured.
    entropy: of the policy's distributions. mask: 1 on the agent's tokens and 0 elsewhere. Other values at masked
    positions have no meaning.
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
"""Returns the loss of every token, [B, T]. Tokens outside the mask are dropped afterwards."""


def own_loss(name: str) -> Loss | None:
    """Return the loss called `name` in this folder, or the user's function at `package.module.function` or
    `file.py:function`. Returns None for one of TRL's losses. Raises TrainingError."""
    if name in TRL_LOSSES:
        return None
    if name in OWN_LOSSES:
        return getattr(importlib.import_module(f".{name}", __package__), name)
    if "." not in name:
        known = ", ".join((*TRL_LOSSES, *OWN_LOSSES))
        raise TrainingError(f'training.loss_type: there is no loss "{name}": {known}, or file.py:function')
    try:
        module, function = find_module(name)
    except UserCodeError as problem:
        raise TrainingError(f"training.loss_type: {problem}") from problem
    found = getattr(module, function, None)
    if not callable(found):
        raise TrainingError(f"training.loss_type: {module.__name__} has no function {function}")
    return cast("Loss", found)


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, by_sequence: bool) -> Tensor:
    """Return π / π_old of each token, [B, T], and 1 outside the mask (bool [B, T]). by_sequence: each token gets the
    geometric mean over its sequence (GSPO, arXiv 2507.18071)."""
    log_ratio = torch.where(mask, logprobs - old_logprobs, 0.0)
    if by_sequence:
        log_ratio = (log_ratio.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)).expand_as(log_ratio)
    return log_ratio.exp()


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
    """Return the sum of `loss` and of beta times the KL over the agent's tokens, a scalar. ref_logprobs: [B, T], or
    None for no KL. The KL is weighted by the ratio, as TRL does for samples of an earlier policy."""
    per_token = loss(inputs)
    if ref_logprobs is not None:
        per_token = per_token + beta * inputs.ratio * kl_of_tokens(inputs.logprobs, ref_logprobs, estimator)
    return per_token.masked_fill(inputs.mask == 0, 0.0).sum()
