"""Detect faults in texts and updates: rewarded length, repetition, copies, one answer, cut turns, clipping, KL weight.

No torch, no numpy.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean

from ..configs import metric_names as metric
from ..configs.sections.rewards import DiagnosisConfig
from . import batches as need
from .batch_statistics import (
    ERRORS,
    deviation,
    groups_of,
    halves,
    held_out_fell,
    length_of,
    mean_total,
    rollouts_of,
    spread_of,
)
from .batches import Batch, RolloutSummary
from .detectors import SLIP, Finding, Severity, detector, fall_of, ids_of, improvement
from .record_detectors import ENOUGH, STEPS, correlation_within, goal, within
from .reward_detectors import mean_component
from .verdict_detectors import gains_of, is_expected, surely_positive

FOLLOWS = 0.7
"""Minimum correlation of reward and length, or reward and repetition, within groups."""
ALONE = 0.85
"""Share of the reward's variance that the length explains if nothing else is rewarded."""
GROWTH = 1.3
"""Length as a multiple of the initial length."""
REPEATED, REPEATED_RISE = 0.4, 0.25
"""Mean share of repeated words in a text, and its rise."""
COPIED, COPIED_RISE = 0.5, 0.25
"""Mean share of a prompt's words in its text, and its rise."""
SPREAD, SPREAD_RISE = 0.5, 0.3
"""Share of texts with a word that is paid for, and its rise."""
WORDS, PART = 4, 50
"""Minimum words of a text to measure repetition, and words of a part of it."""
Length = Callable[[RolloutSummary], float]
ONE = 0.8
"""Share of the most frequent answer."""
CUT = 0.5
"""Share of rollouts that a limit ends."""
RIGHT, OFTEN = 4, 0.4
"""Minimum right rollouts among cut ones, and minimum success of cut rollouts as a share of the others' success."""
CLIPPED = 0.3
"""Share of clipped tokens."""
LEAST_KL = 0.05
"""Minimum KL in nats per token that a KL weight should allow."""


@detector(need.REWARDS, need.LENGTHS, steps=STEPS + 1)
def length_reward(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a reward that follows length within groups, or among their right answers, while texts become longer, or the
    reverse. It is a hint if the length explains part of the reward and held-out success does not fall."""
    unit, length = length_of(rollouts_of(batches))
    first, last = (fmean(map(length, b.rollouts)) for b in (batches[0], batches[-1]))
    side = 1 if last >= GROWTH * first else -1 if GROWTH * last <= first else 0
    known = _with_success(batches)
    better = improvement(known, limits)
    correlation = side and side * _correlation(batches, length)
    beside, share = _length_slope(batches, lambda r: side * length(r))
    follows, of = correlation > FOLLOWS and not better, "groups"
    if not follows:
        correlation, of = beside, "the right answers of groups"
    grave = bool(known) and beside > FOLLOWS and share > limits.advantage_share and not better
    grave = grave or (follows and (_explained(batches, length) > ALONE or held_out_fell(batches) is not None))
    if correlation <= max(FOLLOWS, side * _correlation(batches, _repeated)):
        return []
    ids = ids_of(sorted(batches[-1].rollouts, key=lambda r: -side * length(r)))
    advice = "reward only right answers" if grave else "this is a fault unless such answers are better"
    message = (
        f"the reward pays for {'length' if side > 0 else 'short texts'}: {advice}. Within {of} its correlation with "
        f"the length is {side * correlation:.2f}, and the mean length went from {first:.3g} to {last:.3g} {unit}."
    )
    severity: Severity = "warning" if grave else "hint"
    return [Finding(message, correlation, FOLLOWS, ids, severity=severity, began=batches[0].step)]


@detector(need.REWARDS, need.TEXTS, reports="reward_hack", steps=STEPS + 1)
def paid_word(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a word that explains most of a rising reward, because it spreads and texts with it earn more than others of
    their group, if success is unknown. The task may require it, so this is a hint unless answers do not get better."""
    rollouts, (before, after) = rollouts_of(batches), halves(batches)
    rise = mean_total(after) - mean_total(before)
    if any(r.correct is not None for r in rollouts) or rise <= limits.reward_rise * spread_of(batches):
        return []
    answers = {word for r in rollouts for word in _words(r.expected or "")}
    words = _words_of(batches)
    first, last = _word_shares(batches[:1]), _word_shares(batches[-1:])
    paid = dict[str, tuple[float, float]]()
    for word in {w for w, share in last.items() if share >= SPREAD and share - first[w] >= SPREAD_RISE} - answers:
        gains = gains_of(groups_of(rollouts), lambda r, word=word: word in words[r.id])
        if surely_positive(gains):
            early, late = (fmean(word in words[r.id] for r in rollouts_of(half)) for half in (before, after))
            paid[word] = fmean(gains) * (late - early), fmean(gains)
    word = max(sorted(paid), key=lambda w: paid[w], default="")
    if not word or paid[word][0] <= rise / 2:
        return []
    right = [fmean(map(is_expected, rollouts_of(half))) for half in (before, after)]
    known = min(right) > 0
    worse = known and right[1] - right[0] <= limits.success_rise
    advice = "let only right answers earn it" if worse else "this is a fault unless the task requires it"
    answered = f", and the share of expected answers went from {right[0]:.0%} to {right[1]:.0%}" * known
    message = (
        f"the reward pays for the word {word!r}: {advice}. {last[word]:.0%} of the texts contain it ({first[word]:.0%} "
        f"at first), and within groups they earn {paid[word][1]:.2g} more. In {len(batches)} steps the mean reward "
        f"rose by {rise:.2g}{answered}."
    )
    ids, severity = ids_of(r for r in batches[-1].rollouts if word in words[r.id]), "warning" if worse else "hint"
    parts = sorted({name for r in rollouts for name in r.contributions})
    subject = max(parts, key=lambda n: mean_component(after, n) - mean_component(before, n), default="reward")
    return [Finding(message, last[word], SPREAD, ids, subject, severity, began=batches[0].step)]


def _words_of(batches: Sequence[Batch]) -> dict[str, frozenset[str]]:
    """Return the words of each text by the rollout's id."""
    found = dict[str, frozenset[str]]()
    for batch in batches:
        found |= batch.fact("text words", lambda b: {r.id: _words(r.text) for r in b.rollouts})
    return found


def _word_shares(batches: Sequence[Batch]) -> Counter[str]:
    """Return the share of texts with each word."""
    texts = _words_of(batches).values()
    counts = Counter(word for text in texts for word in text)
    return Counter({word: times / len(texts) for word, times in counts.items()})


def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


@detector(need.TEXTS)
def repetition(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find texts that repeat words more and more. If the reward follows repetition, the fault began with the reward."""
    series = [b.fact("repeated", lambda b: fmean(map(_repeated, b.rollouts))) for b in batches]
    lowest = min(range(len(series)), key=lambda i: (series[i], -i))
    if len(series) < STEPS or series[-1] < REPEATED or series[-1] - series[lowest] < REPEATED_RISE:
        return []
    if improvement(_with_success(batches), limits):
        return []
    rewarded = [b for b in batches if need.having(b, (need.REWARDS,))]
    paid = _correlation(rewarded, _repeated)
    paid = paid if paid > max(FOLLOWS, _correlation(rewarded, length_of(rollouts_of(rewarded))[1])) else 0.0
    evidence = f"and the reward pays for it (correlation {paid:.2f} within groups)" if paid else "more and more"
    worst = sorted(batches[-1].rollouts, key=lambda r: -_repeated(r))
    message = (
        f"the policy repeats itself, {evidence}: {worst[0].text[:60]!r}. {series[-1]:.0%} of the words in a text are "
        f"repeats, up from {series[lowest]:.0%} within {len(batches)} steps."
    )
    fall, error = fall_of(batches, lambda r: r.correct) or (math.inf, 0.0)
    severity: Severity = "hint" if not paid and fall + ERRORS * error < SLIP else "warning"
    began = batches[0 if paid else lowest + 1].step
    return [Finding(message, series[-1], REPEATED, ids_of(worst), severity=severity, began=began)]


@detector(need.REWARDS, need.TEXTS, need.PROMPTS, steps=STEPS)
def copied_prompt(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find texts that repeat more and more of their prompt because the reward follows it."""
    first, last = (b.fact("copied", lambda b: fmean(map(_copied, b.rollouts))) for b in (batches[0], batches[-1]))
    if last < COPIED or last - first < COPIED_RISE or improvement(_with_success(batches), limits):
        return []
    correlation = _correlation(batches, _copied)
    if correlation <= max(FOLLOWS, _correlation(batches, length_of(rollouts_of(batches))[1])):
        return []
    worst = sorted(batches[-1].rollouts, key=lambda r: -_copied(r))
    message = (
        f"the reward pays for a copy of the prompt: {worst[0].text[:60]!r}. Within groups its correlation with the "
        f"share of the prompt's words in the text is {correlation:.2f}, and this share rose from {first:.0%} to "
        f"{last:.0%}."
    )
    return [Finding(message, last, COPIED, ids_of(worst), began=batches[0].step)]


@detector(need.TEXTS, need.TASKS, steps=STEPS)
def one_answer(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find one answer that the reward accepts for tasks with different right answers, or that the policy always gives.
    If answers are unknown, find one text for different tasks."""
    every, latest = rollouts_of(batches), rollouts_of(batches[-1:])
    tasks = {r.task for r in latest}
    accepted = [r for r in every if r.correct and r.answer and r.expected is not None]
    for rollouts, began in ((accepted, batches[0].step), (latest, batches[-1].step)):
        answers = Counter(map(_answer, rollouts))
        expected = Counter(r.expected for r in rollouts if r.expected is not None)
        if answers.total() < ENOUGH or len(tasks) < 4 or (rollouts is accepted and len(expected) < 4):
            continue
        answer, times = answers.most_common(1)[0]
        share = times / answers.total()
        usual = max(expected.values()) / expected.total() if expected else 0.0
        initial = fmean(_answer(r) == answer for r in batches[0].rollouts) if rollouts is latest else 0.0
        if share > ONE and max(usual, initial) <= share - 0.3:
            of = "accepted answers" if rollouts is accepted else "answers"
            message = (
                f"one answer to all tasks: {answer[:60]!r} makes up {share:.0%} of the {of} to {len(tasks)} different "
                "tasks. Does the reward accept it everywhere?"
            )
            hit = [r for r in rollouts if _answer(r) == answer]
            unknown = not expected and all(r.correct for r in hit)  # a game may end in the same way for all its tasks
            return [Finding(message, share, ONE, ids_of(hit), severity="hint" if unknown else "warning", began=began)]
    return []


@detector(need.LENGTHS)
def truncation(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find many rollouts that hit a length limit."""
    rollouts = rollouts_of(batches[-STEPS:])
    cut = [r for r in rollouts if r.cut]
    share = len(cut) / len(rollouts)
    if len(batches) < STEPS or share <= CUT or len(rollouts) < ENOUGH:
        return []
    message = (
        "a length limit cuts the rollouts: raise training.max_turn_tokens or max_trajectory_tokens, or find out why "
        f"texts do not end. {len(cut):,} of {len(rollouts):,} rollouts were cut."
    )
    severity: Severity = "warning"
    with_success = _with_success(batches)
    every = [r for r in rollouts_of(with_success) if r.correct is not None]
    if _harmless(every, bool(improvement(with_success, limits))):
        severity, rates = "hint", [fmean(bool(r.correct) for r in every if r.cut is side) for side in (True, False)]
        message = f"{message[:-1]}, and {rates[0]:.0%} of these are right ({rates[1]:.0%} of the others)."
    began = since(batches, lambda b: fmean(r.cut for r in b.rollouts) > CUT)
    return [Finding(message, share, CUT, ids_of(cut), severity=severity, began=began)]


def _harmless(rollouts: Sequence[RolloutSummary], better: bool) -> bool:
    """Return whether cut rollouts can be right: at least `OFTEN` times the success of the others, or within three
    standard errors of it. Half of `OFTEN` is enough if success gets `better`, because a policy that learns to be brief
    fails mostly in its remaining long texts."""
    cut, others = ([bool(r.correct) for r in rollouts if r.cut is side] for side in (True, False))
    if min(len(cut), len(others)) < ENOUGH / 2 or sum(cut) < RIGHT:
        return False
    p = fmean(cut + others)
    error = math.sqrt(p * (1 - p) * (1 / len(cut) + 1 / len(others)))
    share = OFTEN / 2 if better else OFTEN
    return fmean(cut) >= share * fmean(others) or fmean(others) - fmean(cut) <= 3 * error


@detector(need.CLIPPED)
def clipped(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find updates in which clipping removes much of the gradient."""
    recent = [b.metrics.get(metric.CLIP_FRACTION, 0.0) for b in batches[-2 * STEPS :]]
    if len(recent) < 2 * STEPS or fmean(recent) <= CLIPPED:
        return []
    message = (
        f"the clip range stops the updates: widen `epsilon`, or make fewer updates per batch. {fmean(recent):.0%} of "
        f"the tokens were clipped in {len(recent)} updates."
    )
    began = since(batches, lambda b: b.metrics.get(metric.CLIP_FRACTION, 0.0) > CLIPPED)
    return [Finding(message, fmean(recent), CLIPPED, began=began)]


@detector(need.BETA, need.KL)
def kl_weight(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a KL weight that keeps the policy at its reference.

    With advantages of variance 1, the optimum of A - beta KL is at a KL of 1 / (2 beta^2).
    """
    beta = batches[-1].metrics.get(metric.BETA, 0.0)
    allowed = 1 / (2 * beta * beta) if beta > 0 else math.inf
    if len(batches) < 2 * STEPS or allowed >= LEAST_KL or improvement(_with_success(batches), limits):
        return []
    kl = fmean(abs(b.metrics[metric.KL_MEAN]) for b in batches[-STEPS:])
    if kl > LEAST_KL:
        return []
    message = (
        f"the KL weight keeps the policy at its reference: lower training.beta. {beta:.3g} allows a KL of about "
        f"{allowed:.1g} nats per token, and it is {kl:.2g}."
    )
    return [Finding(message, beta, math.sqrt(0.5 / LEAST_KL), ids_of(batches[-1].rollouts), began=batches[0].step)]


def _with_success(batches: Sequence[Batch]) -> list[Batch]:
    """Return the batches with known success. A rising reward proves nothing if the reward is the fault."""
    return [b for b in batches if any(r.correct is not None for r in b.rollouts)]


def _repeated(rollout: RolloutSummary) -> float:
    """Return the share of repeated words within parts of `PART` words. In a whole text, it grows with the length."""
    words = rollout.text.split()
    parts = [words[i : i + PART] for i in range(0, max(len(words) - PART // 2, 1), PART)]
    return 1 - sum(len(set(part)) for part in parts) / max(sum(map(len, parts)), 1) if len(words) >= WORDS else 0.0


def _copied(rollout: RolloutSummary) -> float:
    """Return the share of the prompt's words that the text contains."""
    words = set(rollout.prompt.split())
    return len(words.intersection(rollout.text.split())) / max(len(words), 1)


def _explained(batches: Sequence[Batch], length: Length) -> float:
    """Return the share of the reward's variance that the length explains, from differences of neighbours in length."""
    rewards = [goal(r) for r in sorted(rollouts_of(batches), key=length)]
    variance = deviation(rewards) ** 2
    return 1 - fmean((b - a) ** 2 for a, b in pairwise(rewards)) / (2 * variance) if variance > 0 else 0.0


def _length_slope(batches: Sequence[Batch], length: Length) -> tuple[float, float]:
    """Return the correlation of reward and length within the right answers of groups, and the length's share of the
    advantage's variance: with b the slope there, and R and L reward and length minus their means in the group,
    b sum R L / sum R^2."""
    groups = groups_of(rollouts_of(batches))
    right = groups_of(r for r in rollouts_of(batches) if (is_expected(r) if r.correct is None else r.correct))
    lengths, rewards = within(right, length), within(right, goal)
    square = math.fsum(x * x for x in lengths)
    correlation = correlation_within(right, length, goal)
    if correlation is None:
        return 0.0, 0.0
    slope = math.fsum(x * y for x, y in zip(lengths, rewards, strict=True)) / square
    lengths, rewards = within(groups, length), within(groups, goal)
    shared = math.fsum(x * y for x, y in zip(lengths, rewards, strict=True))
    return correlation, slope * shared / math.fsum(y * y for y in rewards)


def _correlation(batches: Sequence[Batch], feature: Callable[[RolloutSummary], float]) -> float:
    """Return the correlation of the reward with a feature within groups, or 0 if there is none."""
    return correlation_within(groups_of(rollouts_of(batches)), feature, goal) or 0.0


def since(batches: Sequence[Batch], shows: Callable[[Batch], bool]) -> int | None:
    """Return the first step of the latest unbroken run of steps that show a fault."""
    first = next((i + 1 for i in reversed(range(len(batches))) if not shows(batches[i])), 0)
    return batches[min(first, len(batches) - 1)].step


def _answer(rollout: RolloutSummary) -> str:
    return (rollout.answer or rollout.text).strip()
