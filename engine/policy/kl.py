"""Exact KL divergence over the vocabulary, and the controller that sets its weight.

Per token KL(p ‖ q) = Σ_v p(v) · (log p(v) − log q(v)), in nats. Callers average over tokens, so the size depends
neither on the length of a trajectory nor on padding, and one `target_kl` fits all of them. KL(policy ‖ reference) is
the *reverse* and KL(reference ‖ policy) the *forward* direction.

The sum is computed as Σ p·(d + e^(−d) − 1) with d = log p − log q. It equals the definition because Σp = Σq = 1, but
every term is ≥ 0 and the first-order rounding errors of d cancel, so small divergences stay accurate in float32 and
are never negative.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor


class KLDirections(NamedTuple):
    """KL per token in both directions, each of the logits' shape without the vocabulary axis."""

    reverse: Tensor
    """KL(policy ‖ reference); the penalty in the loss."""
    forward: Tensor
    """KL(reference ‖ policy)."""


def _divergence(logp: Tensor, logq: Tensor) -> Tensor:
    """Return KL(p ‖ q) over the last axis of two normalised log-distributions; ∞ if q lacks a token of p."""
    both_zero = torch.isneginf(logp) & torch.isneginf(logq)
    p, q = logp.exp(), logq.exp()
    p_zero = torch.isneginf(logp)
    difference = logp.masked_fill(p_zero, 0.0) - logq.masked_fill(p_zero, 0.0)
    near = difference.abs() < 1.0
    d = difference.masked_fill(~near, 0.0)  # the unused branch must not poison the gradient
    far = difference.masked_fill(near, 0.0)
    terms = torch.where(near, p * (d + torch.expm1(-d)), p * far - p + q)
    terms = torch.where(p_zero, q, terms).masked_fill(both_zero, 0.0)
    return terms.sum(-1)


def _log_softmax(logits: Tensor) -> Tensor:
    """Normalise in at least float32. Half precision is too coarse for a KL of a hundredth of a nat."""
    return torch.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), dim=-1)


def kl_directions(policy_logits: Tensor, reference_logits: Tensor) -> KLDirections:
    """Return both directions from one pair of log-softmaxes: logits [..., T, V] → two of [..., T]."""
    policy, reference = _log_softmax(policy_logits), _log_softmax(reference_logits)
    return KLDirections(_divergence(policy, reference), _divergence(reference, policy))


@dataclass(frozen=True)
class TopKDistribution:
    """The k likeliest tokens of a distribution and one bucket for the rest; all log-probs normalised, in nats.

    indices: int [..., T, k]; logprobs: [..., T, k]; tail: [..., T], −∞ if nothing is left over.
    """

    indices: Tensor
    logprobs: Tensor
    tail: Tensor


def top_k_distribution(logits: Tensor, k: int) -> TopKDistribution:
    """Keep the k likeliest tokens of [..., T, V] logits; k ≥ V keeps all of them."""
    logprobs = _log_softmax(logits)
    k = min(k, logits.shape[-1])
    top, indices = logprobs.topk(k, dim=-1)
    return TopKDistribution(indices, top, _tail(logprobs, indices))


def _tail(logprobs: Tensor, indices: Tensor) -> Tensor:
    """Return the log of the probability outside `indices`, summed directly (1 − Σ would cancel)."""
    return torch.logsumexp(logprobs.scatter(-1, indices.long(), -math.inf), dim=-1)


def top_k_directions(policy_logits: Tensor, reference: TopKDistribution) -> KLDirections:
    """Return both KLs between the policy and a stored top-k reference, over k tokens and one tail bucket.

    policy_logits: [..., T, V] → two of [..., T]. Merging tokens into a bucket can only lose information (log-sum
    inequality), so each value is a true lower bound of the exact KL, and equals it for k ≥ V − 1.
    """
    logprobs = _log_softmax(policy_logits)
    indices = reference.indices.long()
    kept = logprobs.gather(-1, indices)
    if indices.shape[-1] < logprobs.shape[-1]:
        policy = torch.cat([kept, _tail(logprobs, indices).unsqueeze(-1)], -1)
        stored = torch.cat([reference.logprobs, reference.tail.unsqueeze(-1)], -1).to(policy.dtype)
    else:
        policy, stored = kept, reference.logprobs.to(kept.dtype)
    return KLDirections(_divergence(policy, stored), _divergence(stored, policy))


@dataclass(frozen=True)
class BetaChange:
    """One change of beta: the step, both values, the mean KL that caused it, and the reason in one sentence."""

    step: int
    old: float
    new: float
    mean_kl: float
    reason: str


@dataclass(eq=False)
class BetaController:
    """Sets the weight of the KL penalty (docs/architecture/online.md). KLs in nats per token.

    After each update, the mean of the last `window` KLs is compared with the target. Above `target_kl + kl_tolerance`,
    beta is multiplied by `factor`. Below `target_kl − kl_tolerance`, it is divided by it. In between (bounds included)
    it stays. Beta never leaves `[min_beta, max_beta]`; with `fixed` it never moves.
    """

    beta_update_mode: Literal["fixed", "auto"] = "auto"
    initial_beta: float = 0.02
    target_kl: float = 0.05
    kl_tolerance: float = 0.01
    factor: float = 1.2
    min_beta: float = 1e-4
    max_beta: float = 10.0
    window: int = 20

    def __post_init__(self) -> None:
        self._automatic = self.beta_update_mode == "auto"
        self.beta = self._clamped(self.initial_beta) if self._automatic else self.initial_beta
        self._recent: deque[float] = deque(maxlen=self.window)
        self._start: deque[float] = deque(maxlen=self.window)

    @property
    def mean_kl_divergence(self) -> float:
        """Mean KL of the last `window` updates, nats per token; 0 before the first."""
        return math.fsum(self._recent) / len(self._recent) if self._recent else 0.0

    @property
    def leaving(self) -> bool:
        """Whether the policy is moving away from where it started: in the last `window` updates, the newer half has a
        larger mean KL to the start than the older half."""
        values = list(self._start)
        half = len(values) // 2
        return half > 0 and math.fsum(values[-half:]) > math.fsum(values[:half])

    def update(self, kl: float, step: int, start_kl: float | None = None) -> BetaChange | None:
        """Count the KL of one update (even if it was clipped or rejected) and apply the rule.

        start_kl: KL to the policy that learning started from, nats per token. While it grows, beta does not fall: many
        small steps in one direction add up.

        Raises ValueError for a KL that is not finite: it would stay in the mean for a whole window.
        """
        if not math.isfinite(kl):
            raise ValueError(f"the KL divergence of step {step} is {kl}; it must be a finite number")
        self._recent.append(float(kl))
        if start_kl is not None and math.isfinite(start_kl):
            self._start.append(float(start_kl))
        if not self._automatic:
            return None
        mean, target, tolerance, factor = self.mean_kl_divergence, self.target_kl, self.kl_tolerance, self.factor
        if mean > target + tolerance:
            new = self._clamped(self.beta * factor)
            reason = f"×{factor:g}: mean KL {mean:.4g} is above {target:g} + {tolerance:g}, the policy moves too fast"
        elif mean < target - tolerance and not self.leaving:
            new = self._clamped(self.beta / factor)
            reason = f"÷{factor:g}: mean KL {mean:.4g} is below {target:g} − {tolerance:g}, the updates are too small"
        else:
            return None
        if new == self.beta:  # already at the clamp
            return None
        if new in (self.min_beta, self.max_beta):
            reason += f"; held at the limit {new:g}"
        change = BetaChange(step, self.beta, new, mean, reason)
        self.beta = new
        return change

    def state_dict(self) -> dict[str, object]:
        return {"beta": self.beta, "recent": list(self._recent), "start": list(self._start)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the result of `state_dict`. The window, the clamps, and in fixed mode beta, stay as this controller was
        configured."""
        if self._automatic:
            self.beta = self._clamped(float(state["beta"]))
        self._recent = deque(map(float, state["recent"]), maxlen=self.window)
        self._start = deque(map(float, state.get("start", ())), maxlen=self.window)

    def _clamped(self, beta: float) -> float:
        return min(max(beta, self.min_beta), self.max_beta)
