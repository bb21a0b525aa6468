"""Check the loss of each step against the recorded terms and advantages of each rollout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...configs import metric_names as metric
from ...configs.sections.training import TrainingConfig
from ..runs.types import LossTerms, Use
from .items import RecordedRollout
from .ledger import Report

LOSS = 2e-4
"""Tolerance relative to the sum of absolute terms. The loss is a float32 sum over thousands of signed terms."""


class Loss:
    """Checks the loss, one step after another."""

    def __init__(self, training: TrainingConfig, report: Report) -> None:
        self.training = training
        self.report = report
        report.given["ratios, KL terms and entropies of rollouts"] = (
            "they come from forward passes, and only the results computed from them are checked"
        )

    def step(
        self,
        step: int,
        batch: Sequence[tuple[RecordedRollout, Use]],
        items: Sequence[RecordedRollout],
        metrics: Mapping[str, float],
    ) -> None:
        """Check one step. batch: the rollouts in the loss. items: all rollouts sampled for the step."""
        self._kl(step, items, metrics)
        terms = [(item, use.loss) for item, use in batch if use.loss is not None]
        if not terms:
            self.report.given["loss"] = "its terms are not recorded (the record is of an earlier version)"
            return
        rows = self.training.prompts_per_step * self.training.num_generations
        self.report.same(f"step {step}", "rollouts in the batch", len(terms), rows)
        for item, loss in terms:
            self._policy(step, item, loss)
        losses = [loss for _, loss in terms]
        tokens = sum(loss.tokens for loss in losses)
        place = f"step {step}"
        entropy = math.fsum(loss.entropy for loss in losses) / max(tokens, 1)
        self.report.number(place, "metric train/entropy", metrics.get(metric.ENTROPY), entropy)
        if any(loss.policy is None for loss in losses):
            reason = f"of {self.training.loss_type}, and of rollouts with importance weights, is not recorded"
            self.report.given["loss"] = f"the policy-gradient term {reason}"
            return
        clipped = sum(sum(loss.low) + sum(loss.high) for loss in losses) / max(tokens, 1)
        self.report.number(place, "metric train/clip_fraction", metrics.get(metric.CLIP_FRACTION), clipped)
        beta = metrics.get(metric.BETA, 0.0)
        found = self._loss(losses, tokens, beta)
        if found is None:
            self.report.given["loss"] = f"the mean of {self.training.loss_type} is over micro-batches"
            return
        value, size = found
        self.report.number(place, "metric train/loss", metrics.get(metric.LOSS), value, tolerance=LOSS, size=size)

    def _policy(self, step: int, item: RecordedRollout, loss: LossTerms) -> None:
        """Check −Σ A·ρ over the tokens of each turn. Where ρ is clipped, it equals its bound."""
        place = f"step {step}, rollout {item.row.id} in the loss"
        masked = self.training.trl.get("mask_truncated_completions") and item.record.trajectory.cut
        self.report.same(place, "tokens", loss.tokens, 0 if masked else item.agent_tokens)
        if loss.policy is None or self.training.advantages == "reward":
            return
        below, beyond = self.training.clip_range
        columns = zip(item.record.step_advantages, loss.ratio, loss.low, loss.high, strict=True)
        parts = [-a * (ratio + low * (1 - below) + above * (1 + beyond)) for a, ratio, low, above in columns]
        size = math.fsum(map(abs, parts))
        self.report.number(place, "policy-gradient term", loss.policy, math.fsum(parts), tolerance=LOSS, size=size)

    def _loss(self, losses: Sequence[LossTerms], tokens: int, beta: float) -> tuple[float, float] | None:
        """Return the loss of the step and the size for its tolerance; None if the loss depends on micro-batches."""
        kind = self.training.loss_type
        totals = [(loss.policy or 0.0) + beta * loss.kl for loss in losses]
        size = [abs(loss.policy or 0.0) + beta * abs(loss.kl) for loss in losses]
        if kind == "grpo":
            share = [1 / max(loss.tokens, 1) / len(losses) for loss in losses]
        elif kind == "dapo":
            share = [1 / max(tokens, 1)] * len(losses)
        elif kind == "dr_grpo":
            share = [1 / (len(losses) * self.training.max_trajectory_tokens)] * len(losses)
        else:
            return None
        pairs = list(zip(totals, size, share, strict=True))
        return math.fsum(w * s for w, _, s in pairs), math.fsum(a * s for _, a, s in pairs)

    def _kl(self, step: int, items: Sequence[RecordedRollout], metrics: Mapping[str, float]) -> None:
        sums = [(item.record.log_ratio_sum, item.agent_tokens) for item in items]
        known = [(s, n) for s, n in sums if s is not None]
        if metric.KL_MEAN not in metrics or not known:
            return
        mean = math.fsum(s for s, _ in known) / max(sum(n for _, n in known), 1)
        self.report.number(f"step {step}", "metric kl/mean", metrics[metric.KL_MEAN], mean, tolerance=1e-6, size=1.0)
