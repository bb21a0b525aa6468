"""Each rollout's contribution to the loss of a micro-batch, as sums that are small enough to record.

From these and the recorded advantages, `engine/recompute/loss.py` computes the loss of a step again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object
from torch import Tensor

from ...rollouts.rollout import Rollout
from ...runs.types import LossTerms
from . import clipped_surrogate, importance_ratio, kl_of_tokens

CLIPPED_LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo")
"""TRL's losses whose policy-gradient term is −min(ρ·A, clip(ρ)·A) for each token."""


@dataclass(frozen=True)
class Clipping:
    """The configuration of the loss: its type (empty if its policy term is not −min(ρ·A, clip(ρ)·A)), the lower and
    upper clip range, whether ρ is one number per sequence, whether the KL term is multiplied by ρ."""

    loss_type: str
    low: float
    high: float
    by_sequence: bool
    corrected_kl: bool
    kl_estimator: str = "k3"


class LossTermsOfStep:
    """Collects the terms of all rollouts of an optimiser step, micro-batch by micro-batch, until they are taken.
    latest: those taken last."""

    def __init__(self, how: Clipping) -> None:
        self._how = how
        self._terms: dict[str, LossTerms] = {}
        self.latest: Mapping[str, LossTerms] = {}

    def add(self, batch: Mapping[str, Any], logprobs: Tensor, entropy: Tensor) -> None:
        """Add the terms of a batch. Skips a batch without `rollouts`."""
        if "rollouts" in batch:
            self._terms.update(loss_terms(batch, batch["rollouts"], logprobs, entropy, self._how))

    def take(self, processes: int) -> Mapping[str, LossTerms]:
        """Return the terms of all processes (a collective call), and clear them."""
        taken, self._terms = self._terms, {}
        parts = [taken] if processes == 1 else gather_object([taken])
        self.latest = {key: terms for part in parts for key, terms in part.items()}
        return self.latest


@torch.no_grad()
def loss_terms(
    batch: Mapping[str, Tensor], rollouts: Sequence[Rollout], logprobs: Tensor, entropy: Tensor, how: Clipping
) -> dict[str, LossTerms]:
    """Return the terms of each rollout by its key.

    batch: tensors [B, T] of `make_batch` for the B rollouts. logprobs, entropy: [B, T], of the policy.
    """
    mask = (batch["attention_mask"] * batch["agent_token_mask"]).bool()
    advantages = batch["advantages"]
    ratio = importance_ratio(logprobs, batch["old_per_token_logps"], mask, how.by_sequence)
    low = mask & (ratio < 1 - how.low) & (advantages < 0)
    high = mask & (ratio > 1 + how.high) & (advantages > 0)
    policy = clipped_surrogate(ratio, advantages, how.low, how.high)
    kl = torch.zeros_like(ratio)
    if "ref_per_token_logps" in batch:
        kl = kl_of_tokens(logprobs, batch["ref_per_token_logps"], how.kl_estimator)
        kl = kl * ratio if how.corrected_kl else kl
    free = mask & ~low & ~high
    counted = torch.where(free, ratio, 0.0) * batch.get("sampler_weights", 1.0)
    columns = torch.stack([counted, policy, kl, entropy]).cpu().double().numpy()
    flags = torch.stack([mask, low, high]).cpu().numpy()
    known = how.loss_type in CLIPPED_LOSSES
    # Advantages and weights differ between the tokens of a turn, so sums per turn cannot reproduce the term.
    return {
        r.key: _terms(r, columns[:, i], flags[:, i], known and r.importance is None and r.teacher_logprobs is None)
        for i, r in enumerate(rollouts)
        if r.key
    }


def _terms(rollout: Rollout, columns: np.ndarray, flags: np.ndarray, known: bool) -> LossTerms:
    """Sum over one rollout. columns: ρ (0 where clipped), policy term, KL term and entropy, [4, T]. flags: agent's
    token, clipped below, clipped above, [3, T]."""
    length = len(rollout)
    mask, low, high = flags[:, :length]
    turn = np.maximum(rollout.turn_ids, 0)[mask]

    def by_turn(values: np.ndarray) -> np.ndarray:
        return np.bincount(turn, weights=values[:length][mask], minlength=rollout.turns)

    ratio, policy, kl, entropy = columns
    return LossTerms(
        tokens=int(mask.sum()),
        ratio=tuple(by_turn(ratio).tolist()),
        low=tuple(by_turn(low).astype(int).tolist()),
        high=tuple(by_turn(high).astype(int).tolist()),
        policy=float(policy[:length][mask].sum()) if known else None,
        kl=float(kl[:length][mask].sum()),
        entropy=float(entropy[:length][mask].sum()),
    )
