"""Compute TRL's losses and their gradients from the inputs of the loss.

The loss of a micro-batch is Σ_t w_t · (c_t · p_t + β · k_t) over the tokens t of its rows: w_t averages, c_t leaves
tokens out or corrects for the sampler, p_t is the policy term, k_t the KL term. Both terms depend on the token's
log-prob and on the ratio ρ of the policy to the sampling policy. There is one ρ per token or per sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .settings import Settings

BOUND = 2e-5
"""The distance from a bound within which a float32 number may be on either side."""


@dataclass(frozen=True)
class LossRow:
    """One rollout in a micro-batch. Sequences cover its unmasked completion tokens, with log-probs in nats.

    logps: log-probs under the policy in training. old, reference, sampled: log-probs under other policies (None: not
    in the batch). mask: 1 for the policy's own tokens. weights: the correction for the sampler. entropies: None unless
    the loss uses them. entropy: their sum over the mask. gradient: of the loss for `logps`. outside: the sum of
    |gradient| over masked tokens.
    """

    id: str
    advantage: float
    logps: Sequence[float]
    mask: Sequence[float]
    gradient: Sequence[float]
    outside: float
    old: Sequence[float] | None = None
    reference: Sequence[float] | None = None
    sampled: Sequence[float] | None = None
    weights: Sequence[float] | None = None
    entropies: Sequence[float] | None = None
    entropy: float | None = None

    @property
    def count(self) -> float:
        return sum(self.mask)


@dataclass
class Term:
    """A token in the loss.

    policy, kl: p_t and k_t. by_ratio: dp/dρ. by_logp: dp/d(log π) at fixed ρ. kl_by_ratio, kl_by_logp: the same for k.
    near: whether ρ is so near to a bound that float32 may or may not clip. low, high: whether it counts as clipped.
    """

    ratio: float
    policy: float
    by_ratio: float = 0.0
    by_logp: float = 0.0
    kl: float = 0.0
    kl_by_ratio: float = 0.0
    kl_by_logp: float = 0.0
    near: bool = False
    low: bool = False
    high: bool = False
    factor: float = 1.0
    """c_t."""


@dataclass(frozen=True)
class ExpectedLoss:
    """The expected result of a micro-batch. size: the sum of absolute terms. gradients: per row and token. near: where
    float32 rounding decides the gradient. terms: per row."""

    loss: float
    size: float
    gradients: list[list[float]]
    near: list[list[bool]]
    terms: list[list[Term]]


def expected(
    rows: Sequence[LossRow], settings: Settings, accumulated: int, items: float | None, coarse: float = 1.0
) -> ExpectedLoss:
    """Return the loss of a micro-batch and its gradient.

    accumulated: micro-batches in this optimiser step. items: trained tokens of the whole generation. coarse: the
    coarseness of the numbers relative to float32.
    """
    terms = [row_terms(row, settings, BOUND * coarse) for row in rows]
    _leave_out(rows, terms, settings)
    averages = _averages(rows, settings, accumulated, items)
    loss = size = 0.0
    gradients: list[list[float]] = []
    for row, own, average in zip(rows, terms, averages, strict=True):
        by_ratio, direct = [], []
        for term, mask in zip(own, row.mask, strict=True):
            w = mask * average
            loss += w * (term.factor * term.policy + settings.beta * term.kl)
            size += w * (abs(term.factor * term.policy) + settings.beta * abs(term.kl))
            by_ratio.append(w * (term.factor * term.by_ratio + settings.beta * term.kl_by_ratio) * term.ratio)
            direct.append(w * (term.factor * term.by_logp + settings.beta * term.kl_by_logp))
        if settings.by_sequence:
            mean, n = math.fsum(by_ratio), max(row.count, 1.0)
            by_ratio = [mean * mask / n for mask in row.mask]
        gradients.append([a + b for a, b in zip(by_ratio, direct, strict=True)])
    near = [[any(t.near for t in own)] * len(own) if settings.by_sequence else [t.near for t in own] for own in terms]
    if settings.entropy_coef:
        bonus = _entropy(rows, terms, settings) / accumulated
        loss -= settings.entropy_coef * bonus
        size += abs(settings.entropy_coef * bonus)
    return ExpectedLoss(loss, size, gradients, near, terms)


def row_terms(row: LossRow, settings: Settings, bound: float = BOUND) -> list[Term]:
    """Return the terms of a row before any token is left out."""
    old = row.logps if row.old is None else row.old
    log_ratios = [lp - o for lp, o in zip(row.logps, old, strict=True)]
    phi = _phi(row, log_ratios, settings) if settings.loss_type == "vespo" else 0.0
    if settings.by_sequence:
        mean = math.fsum(r * m for r, m in zip(log_ratios, row.mask, strict=True)) / max(row.count, 1.0)
        log_ratios = [mean] * len(log_ratios)
    terms = []
    for t, log_ratio in enumerate(log_ratios):
        ratio = math.exp(min(log_ratio, 80.0))
        term = _policy(ratio, row.advantage, row.logps[t], phi, settings)
        term.near = any(abs(ratio - edge) < bound * (1 + edge) for edge in _edges(settings))
        if row.reference is not None and settings.beta:
            _add_kl(term, row.reference[t] - row.logps[t], settings)
        if row.weights is not None and settings.corrected and settings.loss_type != "vespo":
            term.factor *= row.weights[t]
        terms.append(term)
    return terms


def _policy(ratio: float, a: float, logp: float, phi: float, settings: Settings) -> Term:
    """Return the policy term of a token with ratio ρ and advantage a."""
    low, high, kind = settings.low, settings.high, settings.loss_type
    if kind == "cispo":
        kept = min(ratio, high)
        return Term(ratio, -kept * a * logp, by_logp=-kept * a, high=ratio > high and a > 0)
    if kind == "vespo":
        return Term(ratio, -phi * a * logp, by_logp=-phi * a)
    if kind == "sapo":
        t = settings.sapo_temperature_pos if a > 0 else settings.sapo_temperature_neg
        gate = 1 / (1 + math.exp(-t * (ratio - 1)))
        return Term(ratio, -a * gate * 4 / t, by_ratio=-a * 4 * gate * (1 - gate))
    clamped = min(max(ratio, low), high)
    free = ratio if settings.delta is None else min(ratio, settings.delta)
    first, second = free * a, clamped * a
    slopes = (a * (free == ratio), a * (clamped == ratio))
    slope = slopes[0] if first < second else slopes[1] if second < first else sum(slopes) / 2
    return Term(ratio, -min(first, second), by_ratio=-slope, low=free < low and a < 0, high=free > high and a > 0)


def _edges(settings: Settings) -> tuple[float, ...]:
    if settings.loss_type in ("sapo", "vespo"):
        return ()
    if settings.loss_type == "cispo":
        return (settings.high,)
    return (settings.low, settings.high, *([] if settings.delta is None else [settings.delta]))


def _add_kl(term: Term, difference: float, settings: Settings) -> None:
    """Add the k3 estimator to a term. difference: log π_ref − log π."""
    k3 = math.exp(min(difference, 80.0)) - difference - 1
    by_logp = 1 - math.exp(min(difference, 80.0))
    if settings.use_bias_correction_kl:
        term.kl, term.kl_by_ratio, term.kl_by_logp = k3 * term.ratio, k3, by_logp * term.ratio
    else:
        term.kl, term.kl_by_logp = k3, by_logp


def _phi(row: LossRow, log_ratios: Sequence[float], settings: Settings) -> float:
    """Return the VESPO weight of a sequence."""
    lowest = math.log(1e-8)
    log_ratio = math.fsum(min(max(r, -20.0), 20.0) * m for r, m in zip(log_ratios, row.mask, strict=True))
    log_w = min(max(log_ratio, lowest), 20.0)
    up = row.advantage >= 0
    k = settings.vespo_k_pos if up else settings.vespo_k_neg
    rate = max(settings.vespo_lambda_pos if up else settings.vespo_lambda_neg, 1e-4)
    return math.exp(rate + k * log_w - rate * math.exp(log_w))


def _leave_out(rows: Sequence[LossRow], terms: Sequence[Sequence[Term]], settings: Settings) -> None:
    """Set the factor to 0 for tokens that an option leaves out."""
    if settings.off_policy_mask_threshold is not None:
        for row, own in zip(rows, terms, strict=True):
            base = row.sampled or row.old or row.logps
            gaps = [(b - lp) * m for b, lp, m in zip(base, row.logps, row.mask, strict=True)]
            mean = math.fsum(g for g in gaps if not math.isnan(g)) / max(row.count, 1.0)
            for term in own:
                term.near |= row.advantage < 0 and abs(mean - settings.off_policy_mask_threshold) < BOUND
                term.factor *= row.advantage >= 0 or mean <= settings.off_policy_mask_threshold
    if settings.top_entropy_quantile < 1.0:
        threshold = _threshold(rows, 1 - settings.top_entropy_quantile)
        for row, own in zip(rows, terms, strict=True):
            for term, entropy in zip(own, row.entropies or (), strict=False):
                term.near |= abs(entropy - threshold) <= BOUND * 0.1 * (1 + abs(threshold))
                term.factor *= entropy >= threshold


def _threshold(rows: Sequence[LossRow], share: float) -> float:
    """Return the quantile of the entropies with torch's interpolation."""
    values = sorted(e for row in rows for e, m in zip(row.entropies or (), row.mask, strict=False) if m)
    if not values:
        return math.inf
    rank = share * (len(values) - 1)
    below = int(rank)
    above = min(below + 1, len(values) - 1)
    return values[below] + (rank - below) * (values[above] - values[below])


def _averages(rows: Sequence[LossRow], settings: Settings, accumulated: int, items: float | None) -> list[float]:
    """Return for each row the w_t of its unmasked tokens."""
    kind = settings.loss_type
    if kind in ("grpo", "sapo"):
        return [1 / max(row.count, 1.0) / len(rows) / accumulated for row in rows]
    if kind == "bnpo":
        weight = 1 / max(sum(row.count for row in rows), 1.0) / accumulated
    elif kind == "dr_grpo":
        weight = 1 / (len(rows) * settings.max_completion_length) / accumulated
    elif kind == "luspo":
        weight = 1 / len(rows) / accumulated
    else:
        window = accumulated / settings.steps_per_generation
        weight = 1 / (max(items or 0.0, 1.0) / settings.processes * window)
    return [weight] * len(rows)


def _entropy(rows: Sequence[LossRow], terms: Sequence[Sequence[Term]], settings: Settings) -> float:
    """Return the mean entropy that the entropy bonus uses."""
    if settings.top_entropy_quantile >= 1.0:
        return math.fsum(row.entropy or 0.0 for row in rows) / max(sum(row.count for row in rows), 1.0)
    pairs = [
        (entropy * mask * (term.factor != 0), mask * (term.factor != 0))
        for row, own in zip(rows, terms, strict=True)
        for term, entropy, mask in zip(own, row.entropies or (), row.mask, strict=False)
    ]
    return math.fsum(e for e, _ in pairs) / max(sum(n for _, n in pairs), 1.0)


def metrics(rows: Sequence[LossRow], result: ExpectedLoss, settings: Settings) -> dict[str, tuple[float, float]]:
    """Return the metrics of a micro-batch by TRL name, each with its smallest and largest possible value."""
    tokens = max(sum(row.count for row in rows), 1.0)
    found: dict[str, tuple[float, float]] = {}
    pairs = list(zip(rows, result.terms, strict=True))
    if settings.beta:
        kl = math.fsum(t.kl * m for row, own in pairs for t, m in zip(own, row.mask, strict=True)) / tokens
        found["kl"] = kl, kl
    if all(row.entropy is not None for row in rows):
        entropy = math.fsum(row.entropy or 0.0 for row in rows) / tokens
        found["entropy"] = entropy, entropy
    if settings.loss_type in ("grpo", "bnpo", "dr_grpo", "dapo", "luspo"):
        low, high = ([_share(row, own, name, settings) for row, own in pairs] for name in ("low", "high"))
        both = [_share(row, own, "any", settings) for row, own in pairs]
        found["clip_ratio/low_mean"] = _mean(rows, low, settings)
        found["clip_ratio/high_mean"] = _mean(rows, high, settings)
        found["clip_ratio/region_mean"] = _mean(rows, both, settings)
        counted = [i for i, row in enumerate(rows) if row.count or settings.by_sequence]
        if counted:
            found["clip_ratio/low_min"] = min(low[i][0] for i in counted), min(low[i][1] for i in counted)
            found["clip_ratio/high_max"] = max(high[i][0] for i in counted), max(high[i][1] for i in counted)
    elif settings.loss_type == "cispo":
        shares = [_share(row, own, "high", settings) for row, own in pairs]
        found["cispo_clip_ratio"] = _mean(rows, shares, settings)
    return found


def _share(row: LossRow, terms: Sequence[Term], which: str, settings: Settings) -> tuple[float, float]:
    """Return the minimum and maximum share of clipped tokens."""
    flags = [(t.low or t.high if which == "any" else getattr(t, which), t.near) for t in terms]
    if settings.by_sequence:
        flag, near = flags[0] if flags else (False, False)
        return float(flag and not near), float(flag or near)
    n = max(row.count, 1.0)
    low = sum(m for (flag, near), m in zip(flags, row.mask, strict=True) if flag and not near)
    high = sum(m for (flag, near), m in zip(flags, row.mask, strict=True) if flag or near)
    return low / n, high / n


def _mean(rows: Sequence[LossRow], shares: Sequence[tuple[float, float]], settings: Settings) -> tuple[float, float]:
    weights = [1.0 if settings.by_sequence else row.count for row in rows]
    total = max(sum(weights), 1.0)
    low, high = (math.fsum(s[side] * w for s, w in zip(shares, weights, strict=True)) / total for side in (0, 1))
    return low, high
