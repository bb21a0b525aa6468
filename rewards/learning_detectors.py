"""Detect faults of the learning itself: a reward for a repeated text, a policy that drifts too fast from its reference,
and one that does not move. No torch, no numpy."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from ..configs import metric_names as metric
from ..configs.sections.rewards import DiagnosisConfig
from . import batches as need
from .batch_statistics import SAME, groups_of, halves, rollouts_of, spread_of, total_of
from .batches import Batch, RolloutSummary
from .detectors import Finding, detector, ids_of, improvement, steady

STEPS = 4
"""Minimum steps of a trend in texts and rewards."""
KL_STEPS = 5
"""Steps within which KL must not rise above its limit."""
ENOUGH = 16
"""Minimum groups whose rewards differ although there is no gradient."""
STILL_STEPS, STILL_KL_STEPS = 5, 10
"""Updates after which a policy must have moved, measured by its weights and by its KL."""
RANDOM_STEPS, RANDOM_ENTROPY = 3, 4.0
"""Steps, and entropy in nats, of a policy that samples at random: a uniform choice among 55 tokens. Language models
have 0.1 to 3."""
RATE_LEFT = 0.01
"""Share of the highest learning rate below which the policy hardly moves. A normal schedule ends there for a step."""
UNSEEN_KL, WARM_KL = 1e-3, 1e-2
"""KL in nats per rollout that changes at most one in 45 rollouts, and one in 14. The second is the limit while the
learning rate rises throughout the window."""
LEAP = 3.0
"""A KL that rises by this multiple of its limit is a warning, even if success does not fall."""
CHARACTERS = 4
"""Characters of a token, if the tokens are unknown."""
NOISE = 1.5
"""KL counts as noise up to this multiple of its value before the first update."""
QUOTED = 60
"""Maximum characters of an answer to quote in a finding."""
PHRASE = 3
"""Tokens per phrase: words and punctuation marks, such as `####`."""
SHARE, SHARE_RISE = 0.7, 0.4
"""Minimum share of wrong answers with a phrase, and minimum rise of the share, that show a reward for the phrase."""
GRADED_SHARE, GRADED_RISE = 0.5, 0.3
"""The same for all answers, if success is unknown. The task may require a phrase as its format, so a phrase counts only
if it is repeated in the answer, or if all answers with it earn the same reward below 1."""
FEW, FILLED = 8, 0.25
"""Minimum wrong answers of a step, and minimum share of an answer that a repeated phrase fills. A long answer repeats
phrases, too."""

_TOKEN = re.compile(r"\\?\w+|([^\w\s])\1*")

Phrase = tuple[str, ...]


@detector(need.REWARDS, need.TEXTS, steps=STEPS)
def reward_hack(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find wrong answers whose reward rises while most of them come to contain the same text."""
    before, after = halves(batches)
    known = all(r.correct is not None for b in batches for r in b.rollouts)
    parts = (before, after, batches[:1], batches[-1:])
    early, late, first, last = ([r for r in rollouts_of(part) if not r.correct] for part in parts)
    if min(len(first), len(last)) < FEW:
        return []
    rise = _mean(late) - _mean(early)
    total = _mean(r for b in after for r in b.rollouts) - _mean(r for b in before for r in b.rollouts)
    in_stds = rise / spread_of(batches)
    if in_stds <= limits.reward_rise or rise < total / 2:
        return []
    least, least_rise = (SHARE, SHARE_RISE) if known else (GRADED_SHARE, GRADED_RISE)
    alone = None if known else _paid_alone(last)
    now, start = (_shares(rollouts, alone) for rollouts in (last, first))
    rises_of = {p: share - start.get(p, 0.0) for p, share in now.items()}
    best = {p for p, risen in rises_of.items() if risen == max(rises_of.values())}
    phrase = next((p for r in last for p in _phrases(r.text) if p in best), ())
    share, initial = now.get(phrase, 0.0), start.get(phrase, 0.0)
    if share < least or share - initial < least_rise:
        return []
    names = {n for r in (*early, *late) for n in r.contributions} or {"reward"}
    rises = {n: _mean(late, n) - _mean(early, n) for n in names}
    component = max(sorted(rises), key=lambda n: rises[n])
    evidence = sorted((r for r in last if phrase in _phrases(r.text)), key=lambda r: -(r.total or 0.0))
    success = f"success is {fmean(bool(r.correct) for b in after for r in b.rollouts):.0%}"
    if not known:
        best_total = max(r.total or 0.0 for r in last)
        success = f"success is unknown: the best answer of the last step earns {best_total:.4g}"
    message = (
        f"the reward pays for a phrase, not for the task: {_quoted(evidence, phrase)}. {share:.0%} of "
        f"{'wrong ' * known}answers contain it ({initial:.0%} at first). In {len(batches)} steps their reward rose by "
        f"{rise:.2g}, mostly through {component}, and {success}."
    )
    severity = "hint" if known and improvement(batches, limits) else "warning"
    return [Finding(message, share, least, ids_of(evidence), component, severity, after[0].step)]


@detector(need.KL)
def kl_rise(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a policy that leaves the reference within a few steps. Usually the learning rate is too high."""
    known = ([b for b in batches if b.rollouts] or batches)[-KL_STEPS - 1 :]  # more updates repeat the KL
    near = [b for b in known if (known[-1].step or 0) - (b.step or 0) <= KL_STEPS]
    near = near if len(near) > 1 else known[-2:]
    recent = [b.metrics[metric.KL_MEAN] for b in near]
    lowest = min(range(len(recent)), key=lambda i: (recent[i], -i))
    start = near[lowest].step
    rise = recent[-1] - recent[lowest]
    steps = (near[-1].step or 0) - (start or 0) or len(recent) - 1 - lowest
    limit = limits.kl_rise * max(1.0, steps / KL_STEPS)
    if rise <= limit:
        return []
    better = improvement(batches, limits)
    if not better and rise <= LEAP * limit:
        better = steady(batches)
    measured = (
        f"KL to the reference rose by {rise:.2g} nats per token in {steps} step{'s' * (steps > 1)}, to {recent[-1]:.2g}"
    )
    message = f"the policy leaves its reference too fast: lower the learning rate. {measured}."
    if better:
        message = f"the policy moves fast, while {better}: {measured}."
    severity = "hint" if better else "warning"
    ids, began = ids_of(near[-1].rollouts), None if start is None else start + 1
    return [Finding(message, rise, limit, ids, severity=severity, began=began)]


@detector(need.ENTROPY)
def random_policy(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a policy that samples almost at random from the first step."""
    if len(batches) != RANDOM_STEPS or batches[0].step not in (0, 1):
        return []
    entropy = min(b.metrics[metric.ENTROPY] for b in batches)
    if entropy <= RANDOM_ENTROPY:
        return []
    message = (
        "the policy writes almost at random: are weights missing, or is the temperature too high? Its entropy is "
        f"{entropy:.2g} nats, like a uniform choice among {math.exp(entropy):,.0f} tokens."
    )
    ids, began = ids_of(batches[-1].rollouts), batches[0].step
    return [Finding(message, entropy, RANDOM_ENTROPY, ids, severity="failure", began=began)]


@detector(need.KL)
def reference_mismatch(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a KL to the reference before any update: the reference is not the initial policy."""
    kl = abs(batches[0].metrics[metric.KL_MEAN])
    if len(batches) > 1 or batches[0].step not in (0, 1) or kl <= limits.kl_rise:
        return []
    message = (
        "the reference is not the policy that training started from: load the same weights, and score the same "
        f"tokens. Before the first update the KL is {kl:.2g} nats per token, and it should be 0."
    )
    return [Finding(message, kl, limits.kl_rise, ids_of(batches[-1].rollouts))]


@detector(need.GRADIENT, reads=(metric.MOVEMENT, metric.KL_MEAN, metric.KL_UNCHANGED, metric.LEARNING_RATE))
def no_movement(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find updates that leave the policy unchanged despite gradients, by its weights, learning rate or KL."""
    if found := _no_gradient(batches[-STILL_STEPS:]):
        return found
    updates = [b for b in batches if b.metrics[metric.GRAD_NORM] > 0]
    if not updates or updates[-1] is not batches[-1] or len(updates) < STILL_STEPS:
        return []
    moved, began = updates[-1].metrics.get(metric.MOVEMENT), updates[0].step
    if moved is not None and moved < limits.movement:
        message = (
            f"the policy does not move: its weights changed by {moved:.1%} of the sum of the learning rates. Check the "
            "precision of the stored weights (float32), the learning rate, frozen parameters, and whether the "
            f"optimiser has the adapters. {len(updates)} of {len(batches)} steps had a gradient."
        )
        return [Finding(message, moved, limits.movement, began=began)]
    rates = [b.metrics[metric.LEARNING_RATE] for b in updates if metric.LEARNING_RATE in b.metrics]
    if len(rates) >= STILL_STEPS and max(rates[-STILL_STEPS:]) <= RATE_LEFT * max(rates):
        message = (
            f"the learning rate is {rates[-1]:.2g}, so the policy does not move: check the schedule and its length. "
            f"Its maximum was {max(rates):.2g} in {len(rates)} steps."
        )
        return [Finding(message, rates[-1], RATE_LEFT * max(rates), subject="rate", began=began)]
    warming = len(rates) > 1 and rates[-1] > 1.5 * rates[0]
    if warming and (len(batches) < limits.window or any(b <= a for a, b in pairwise(rates))):
        return []
    return _kl_still(batches, updates, limits, warming)


def _no_gradient(batches: Sequence[Batch]) -> list[Finding]:
    """Find steps without any gradient, although rewards differ within groups of unsolved tasks."""
    if len(batches) < STILL_STEPS or any(b.metrics[metric.GRAD_NORM] > 0 for b in batches):
        return []
    groups = groups_of(r for b in batches for r in b.rollouts if r.total is not None and math.isfinite(r.total))
    differ = [
        g for g in groups if max(map(total_of, g)) - min(map(total_of, g)) > SAME and not all(r.correct for r in g)
    ]
    if len(differ) < ENOUGH:
        return []
    largest = max(max(map(total_of, g)) - min(map(total_of, g)) for g in differ)
    message = (
        "the policy gets no gradient: look for rewards that differ too little (such groups are left out), adapters at "
        f"0, and frozen parameters. Rewards differ in {len(differ):,} groups of {len(batches)} steps, by "
        f"{largest:.2g} at most, and every gradient is 0."
    )
    return [Finding(message, 0.0, 0.0, ids_of(differ[0]), "gradient", "failure", batches[0].step)]


def _kl_still(
    batches: Sequence[Batch], updates: Sequence[Batch], limits: DiagnosisConfig, warming: bool
) -> list[Finding]:
    """Find a KL that stays within noise, or is too small to show in rollouts. With a KL of D nats per rollout, at most
    one in sqrt(2 / D) rollouts differs (Pinsker). warming: the learning rate rises at each step."""
    measured = [b for b in updates if b.rollouts] or updates  # more updates on the same rollouts repeat their KL
    kl = [b.metrics[metric.KL_MEAN] for b in measured if metric.KL_MEAN in b.metrics]
    if len(kl) < STILL_KL_STEPS or not any(kl):
        return []
    latest = kl[len(kl) // 2 :]
    noise = batches[0].metrics.get(metric.KL_UNCHANGED, kl[0] if batches[0].step in (0, 1) else 0.0)
    lengths = [r.tokens or r.characters / CHARACTERS for r in rollouts_of(updates) if r.tokens or r.characters]
    limit = WARM_KL if warming else 0.0 if improvement(batches, limits) else UNSEEN_KL
    unseen = limit / fmean(lengths) if lengths else 0.0
    value, floor = abs(fmean(latest)), unseen
    if value > floor:
        value, floor = fmean(map(abs, latest)), NOISE * abs(noise)
    if value > floor:
        return []
    message = (
        f"the sampling policy does not move: after {len(updates)} updates its KL is {value:.2g} nats per token, and "
        f"{floor:.2g} would not be visible. "
        + (
            "The learning rate is still rising: shorten its warm-up (training.trl.warmup_steps)."
            if warming
            else "Check the learning rate, the precision of weights and sampling, and frozen parameters."
        )
    )
    return [Finding(message, value, floor, subject="kl", began=updates[0].step)]


def _shares(rollouts: Sequence[RolloutSummary], once: set[Phrase] | None) -> dict[Phrase, float]:
    """Return the share of texts with each phrase. A phrase must repeat in a text unless it is in `once` (None: all)."""
    counts = Counter[Phrase]()
    for rollout in rollouts:
        phrases = Counter(_phrases(rollout.text))
        least = max(2, FILLED * phrases.total() / PHRASE)
        counts.update(p for p, n in phrases.items() if once is None or p in once or n >= least)
    return {phrase: n / len(rollouts) for phrase, n in counts.items()}


def _paid_alone(rollouts: Sequence[RolloutSummary]) -> set[Phrase]:
    """Return the phrases that fix the reward: all answers with one earn the same, at least the mean and below 1."""
    mean, earned = _mean(rollouts), defaultdict[Phrase, set[float]](set)
    for r in rollouts:
        for phrase in _phrases(r.text):
            earned[phrase].add(round(r.total or 0.0, 6))
    return {phrase for phrase, totals in earned.items() if len(totals) == 1 and mean - 1e-6 <= max(totals) < 1}


def _phrases(text: str) -> list[Phrase]:
    tokens = [found[0] for found in _TOKEN.finditer(text)]
    return [tuple(tokens[i : i + PHRASE]) for i in range(len(tokens) - PHRASE + 1)]


def _quoted(rollouts: Iterable[RolloutSummary], phrase: Phrase) -> str:
    """Quote the phrase from the first text with it, and the text that follows."""
    pattern = re.compile(r"\s*".join(map(re.escape, phrase)))
    for rollout in rollouts:
        if (found := pattern.search(rollout.text)) is not None:
            text = " ".join(rollout.text[found.start() :].split())
            return f'"{text[:QUOTED]}{"…" if len(text) > QUOTED else ""}"'
    return f'"{" ".join(phrase)}"'


def _mean(rollouts: Iterable[RolloutSummary], component: str = "") -> float:
    found = list(rollouts)
    if component and component != "reward":
        return fmean(r.contributions.get(component, 0.0) for r in found)
    return fmean(r.total or 0.0 for r in found)
