"""Compare the sampler with the trainer on the first pass over a step's rollouts.

μ: the log-probs that the sampler recorded. π: those of the trainer's pass over the same policy. They differ by
rounding, stale weights, or another number format.

Before the first optimiser step both are the same policy, so their KL divergence is 0 except for rounding. If it is not,
the loss computes a different model from the one that acts, and every importance ratio of the run is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ...configs import metric_names as metric
from ..policy.unwrap import base_of
from ..rollouts.correction import Weighting
from ..rollouts.rollout import Rollout
from . import TrainingError
from .batch import Batch

LIMIT = 1e-3
"""Nats per token. Rounding gives less than 1e-9 in float32 and 3e-4 in bfloat16 (135 million parameters)."""


@dataclass
class Mismatch:
    """Sums over the micro-batches of a step. low, high: how far the ratio may deviate from 1 before it is clipped."""

    low: float
    high: float
    kl: float = 0.0
    outside: float = 0.0
    tokens: float = 0.0
    largest: float = 0.0
    trained: dict[str | tuple[int, int], np.ndarray] = field(default_factory=dict)
    """log π of rollouts by `_name`, float32 [T]. Only set where it replaces log μ in the loss."""

    def add(self, batch: Mapping[str, Any], logprobs: Tensor) -> None:
        """Count one micro-batch. batch: tensors [B, T] with the sampler's log-probs; logprobs: the trainer's [B, T]."""
        mask = fresh(batch)
        difference = torch.where(mask, logprobs - batch["old_per_token_logps"], 0.0).cpu()
        ratio = difference.exp()
        outside = (ratio < 1 - self.low) | (ratio > 1 + self.high)
        kl = (difference.double().expm1() - difference).clamp(max=1e6)  # k3, which is never negative
        sums = torch.stack([kl.sum(), outside.sum(), mask.sum().cpu()]).tolist()
        self.kl, self.outside, self.tokens = self.kl + sums[0], self.outside + sums[1], self.tokens + sums[2]
        self.largest = max(self.largest, float(difference.sum(1).abs().max()))

    def metrics(self) -> dict[str, float]:
        """Return the step's metrics, or none without fresh rollouts."""
        if not self.tokens:
            return {}
        return {
            metric.SAMPLER_KL: self.kl / self.tokens,
            metric.SAMPLER_CLIPPED: self.outside / self.tokens,
            metric.SAMPLER_RATIO: self.largest,
        }

    def on_policy(self, batch: Batch, logprobs: Tensor, weighting: Weighting) -> None:
        """Let the loss compare with the trained pass itself, and weight advantages by π / μ (`rollouts.correction`).

        logprobs: [B, T], of the trained pass. TRL's loss reads both from the batch after computing `logprobs`.
        """
        mask, now = fresh(batch), logprobs.detach()
        weights = weighting.weights(now - batch["old_per_token_logps"], mask)
        batch["advantages"] = batch["advantages"] * weights
        batch["sampler_weights"] = weights
        batch["old_per_token_logps"] = torch.where(mask, now, batch["old_per_token_logps"])
        rows = now.float().cpu().numpy()
        for row, rollout in zip(rows, batch.get("rollouts", ()), strict="rollouts" in batch):
            if not rollout.replayed:
                self.trained[_name(rollout)] = row[: len(rollout)].copy()

    def known(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Add the trainer's log-probs where they are known."""
        return [
            replace(r, trained_logprobs=self.trained[_name(r)]) if _name(r) in self.trained else r for r in rollouts
        ]


def _name(rollout: Rollout) -> str | tuple[int, int]:
    """Return the rollout's id, or its position in the step if the environment gave none."""
    return rollout.key or (rollout.group, rollout.index)


def fresh(batch: Mapping[str, Any]) -> Tensor:
    """Return a mask of the agent's tokens in rows sampled for this step, bool [B, T]."""
    mask = (batch["attention_mask"] * batch["agent_token_mask"]).bool()
    if "rollouts" not in batch:
        return mask
    return mask & torch.tensor([not r.replayed for r in batch["rollouts"]], device=mask.device)[:, None]


def drops_out(model: nn.Module) -> bool:
    """Return whether dropout makes the training pass differ from the pass that acts."""
    config = base_of(model).config.get_text_config(decoder=True)
    # Some models call torch's function instead of a module (OPT, BioGPT).
    rates = ("dropout", "attention_dropout", "activation_dropout", "hidden_dropout_prob")
    modules = (m for m in model.modules() if isinstance(m, nn.Dropout))
    return any(m.p for m in modules) or any(getattr(config, name, 0.0) for name in rates)


def check_unchanged(kl: float, half: bool) -> None:
    """Raise TrainingError if the KL before the first update (nats per token) exceeds the limit.

    half: the pass is in half precision.
    """
    if not kl <= LIMIT:
        fix = "Rounding in half precision adds to it: try model.compute: float32. " if half else ""
        raise TrainingError(
            f"the loss and the rollouts have different log-probs: before the first update their KL is {kl:.2g} nats "
            f"per token, and at most {LIMIT:g} is allowed. {fix}An environment that returns log-probs must return "
            "those of this policy. Otherwise the model computes different values in training and in rollouts: report "
            "it with its config.json"
        )
