"""Faults that texts show: length that is paid, repetition, copies of the prompt, one answer for all, cut turns.

Registered with those of `detectors.py`. No torch, no numpy.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from ..configs import metric_names as metric
from ..configs.sections.rewards import DiagnosisConfig
from . import batches as need
from .batches import Batch, RolloutSummary
from .detectors import Finding, detector, ids_of, improvement
from .record_detectors import DETECTORS, ENOUGH, STEPS, goal

__all__ = ["DETECTORS"]  # all of them

FOLLOWS = 0.7
"""Correlation of reward and length within groups."""
GROWTH = 1.3
"""Length as a multiple of that at first."""
REPEATED, REPEATED_RISE = 0.4, 0.25
"""Mean share of repeated words in a text, and its rise."""
WORDS = 4
"""Words of a text that can repeat."""
ONE = 0.8
"""Share of the most frequent answer."""
CUT = 0.5
"""Share of rollouts that a limit ends."""
CLIPPED = 0.3
"""Share of clipped tokens."""
LEAST_KL = 0.05
"""KL in nats a token that a KL weight should at least allow."""


@detector("length_reward", need.REWARDS, need.LENGTHS)
def length_reward(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a reward that follows the length within groups, and texts that become longer."""
    if len(batches) < STEPS + 1:
        return []
    first, last = (fmean(r.tokens for r in b.rollouts) for b in (batches[0], batches[-1]))
    if last < GROWTH * first:
        return []
    groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for r in (r for b in batches for r in b.rollouts if r.tokens):
        groups[r.group].append((r.tokens, goal(r)))
    pairs: list[tuple[float, float]] = []
    for group in groups.values():
        length, reward = (math.fsum(values) / len(group) for values in zip(*group, strict=True))
        pairs += [(x - length, y - reward) for x, y in group]
    squares = math.fsum(x * x for x, _ in pairs), math.fsum(y * y for _, y in pairs)
    if len(pairs) < 4 * ENOUGH or min(squares) <= 1e-9:
        return []
    correlation = math.fsum(x * y for x, y in pairs) / math.sqrt(squares[0] * squares[1])
    if correlation <= FOLLOWS or improvement(_with_success(batches), limits):
        return []
    longest = sorted(batches[-1].rollouts, key=lambda r: -r.tokens)
    message = (
        f"the reward pays for length: reward right answers alone. Within groups its correlation with the length is "
        f"{correlation:.2f}, and texts grew from {first:.3g} to {last:.3g} tokens."
    )
    return [Finding("length_reward", message, correlation, FOLLOWS, ids_of(longest, limits))]


@detector("repetition", need.TEXTS)
def repetition(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find texts that repeat their words more and more."""
    series = [_repeated(b.rollouts) for b in batches]
    if len(series) < STEPS or series[-1] < REPEATED or series[-1] - min(series) < REPEATED_RISE:
        return []
    if improvement(_with_success(batches), limits):
        return []
    worst = sorted(batches[-1].rollouts, key=lambda r: -_repeated([r]))
    message = (
        f"the policy repeats itself: {worst[0].text[:60]!r}. {series[-1]:.0%} of the words of a text are repeated, and "
        f"{min(series):.0%} were within {len(batches)} steps."
    )
    return [Finding("repetition", message, series[-1], REPEATED, ids_of(worst, limits))]


@detector("one_answer", need.TEXTS, need.TASKS)
def one_answer(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find one answer for tasks with different right answers; without answers, one text for different tasks."""
    latest, first = (_answers(b.rollouts) for b in (batches[-1], batches[0]))
    expected = Counter(r.expected for r in batches[-1].rollouts if r.expected is not None)
    tasks = {r.task for r in batches[-1].rollouts}
    if len(batches) < STEPS or latest.total() < ENOUGH or len(tasks) < 4:
        return []
    answer, times = latest.most_common(1)[0]
    share = times / latest.total()
    usual = max(expected.values()) / expected.total() if expected else 0.0
    if share <= ONE or usual > share - 0.3 or first[answer] / max(first.total(), 1) > share - 0.3:
        return []
    message = (
        f"the policy gives one answer to all: {answer[:60]!r} is {share:.0%} of the answers to {len(tasks)} different "
        f"tasks. Does the reward accept it everywhere?"
    )
    hit = [r for r in batches[-1].rollouts if (r.answer or r.text) == answer]
    return [Finding("one_answer", message, share, ONE, ids_of(hit, limits))]


@detector("truncation", need.LENGTHS)
def truncation(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find rollouts that a limit ends."""
    rollouts = [r for b in batches[-STEPS:] for r in b.rollouts]
    cut = [r for r in rollouts if r.cut]
    share = len(cut) / len(rollouts)
    if len(batches) < STEPS or share <= CUT or len(rollouts) < ENOUGH:
        return []
    message = (
        f"a limit ends the rollouts: raise training.max_turn_tokens or max_trajectory_tokens, or see why texts do not "
        f"end. {len(cut):,} of {len(rollouts):,} rollouts were cut."
    )
    return [Finding("truncation", message, share, CUT, ids_of(cut, limits))]


@detector("clipped", need.CLIPPED)
def clipped(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find updates in which the clip range removes most of the gradient."""
    recent = [b.metrics.get(metric.CLIP_FRACTION, 0.0) for b in batches[-2 * STEPS :]]
    if len(recent) < 2 * STEPS or fmean(recent) <= CLIPPED:
        return []
    message = (
        f"the clip range stops the updates: widen `epsilon`, or make fewer updates for each batch. {fmean(recent):.0%} "
        f"of the tokens were clipped in {len(recent)} updates."
    )
    return [Finding("clipped", message, fmean(recent), CLIPPED)]


@detector("kl_weight", need.BETA, need.KL)
def kl_weight(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a KL weight that holds the policy at its reference.

    With advantages of variance 1 the optimum of A - beta KL is at a KL of 1 / (2 beta^2).
    """
    beta = batches[-1].metrics.get(metric.BETA, 0.0)
    allowed = 1 / (2 * beta * beta) if beta > 0 else math.inf
    if len(batches) < 2 * STEPS or allowed >= LEAST_KL or improvement(_with_success(batches), limits):
        return []
    kl = fmean(abs(b.metrics[metric.KL_MEAN]) for b in batches[-STEPS:])
    if kl > LEAST_KL:
        return []
    message = (
        f"the KL weight holds the policy at its reference: lower training.beta. {beta:.3g} allows a KL of about "
        f"{allowed:.1g} nats a token, and it is {kl:.1g}."
    )
    return [Finding("kl_weight", message, beta, math.sqrt(0.5 / LEAST_KL), ids_of(batches[-1].rollouts, limits))]


def _with_success(batches: Sequence[Batch]) -> list[Batch]:
    """Return the batches with known success. Rising rewards are no excuse where the reward is the fault."""
    return [b for b in batches if any(r.correct is not None for r in b.rollouts)]


def _repeated(rollouts: Iterable[RolloutSummary]) -> float:
    shares = [1 - len(set(words)) / len(words) for r in rollouts if len(words := r.text.split()) >= WORDS]
    return fmean(shares) if shares else 0.0


def _answers(rollouts: Iterable[RolloutSummary]) -> Counter[str]:
    return Counter((r.answer or r.text).strip() for r in rollouts)
