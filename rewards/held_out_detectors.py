"""Compare training with held-out tasks: success only in training, answers in prompts, and different prompts.

Held-out tasks come from the same environment with the same grader, so a difference is a fault of the training tasks or
of the policy's learning. No torch, no numpy.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean, variance

from ..configs import metric_names as metric
from ..configs.errors import count as counted
from ..configs.sections.rewards import DiagnosisConfig
from . import batches as need
from .batch_statistics import (
    GAP,
    HELD_OUT_ERRORS,
    fell,
    groups_of,
    held_out_fell,
    mean_total,
    spread_of,
    total_of,
    variance_of,
)
from .batches import Batch, HeldOut, RolloutSummary
from .detectors import Finding, detector, ids_of

NEAR = 3
"""Training steps to compare with an evaluation."""
TASKS = 16
"""Minimum tasks on each side."""
LEAK = 0.3
"""Minimum difference in the share of prompts that contain their answer."""
WORDS = 4
"""Minimum words of a prompt that come from the policy's texts."""
SEEN = 0.1
"""Share of held-out prompts that training had in a window."""
ALL, NONE = 0.95, 0.05
"""Shares of prompts with a word that count as all and as none."""

Prompts = dict[str, tuple[RolloutSummary, bool, frozenset[str]]]
"""By task: one of its rollouts, whether its prompt contains the right answer, and the words of the prompt."""


@detector(need.SUCCESS, need.HELD_OUT)
def held_out_gap(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find success that differs between training and held-out tasks while held-out success does not improve."""
    first, latest = _evaluation(batches[0]), _evaluation(batches[-1])
    recent = _batches_near(batches, latest)
    groups = [fmean(bool(r.correct) for r in g) for g in groups_of(r for b in recent for r in b.rollouts)]
    if first is latest or len(groups) < TASKS or first.success is None or latest.success is None:
        return []
    gap = fmean(groups) - latest.success
    error = math.sqrt(variance(groups) / len(groups) + variance_of(latest))
    better = latest.success - first.success > 2 * math.sqrt(variance_of(first) + variance_of(latest))
    if abs(gap) <= max(GAP, HELD_OUT_ERRORS * error):
        return []
    problem = (
        "the policy does not generalise from its training tasks: look for a wrong grader, answers in the prompts, and "
        "few or repeated tasks"
        if gap > 0
        else "training tasks are presented or graded wrongly, or are much harder: "
        "compare their prompts and right answers with held-out ones"
    )
    message = (
        f"{problem}. Success is {fmean(groups):.0%} in training and {latest.success:.0%} on {len(latest.rollouts)} "
        f"held-out tasks, where it was {first.success:.0%} at step {first.step}."
    )
    severity, ids = "hint" if better else "warning", ids_of(recent[-1].rollouts)
    return [Finding(message, abs(gap), GAP, ids, severity=severity, began=recent[0].step)]


@detector(need.REWARDS, need.HELD_OUT, reports="reward_hack")
def reward_against_success(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a reward that rises while held-out success falls: it was wrong from the start. If training verdicts are
    known, `held_out_gap` compares them instead."""
    known = any(r.correct is not None for b in batches for r in b.rollouts)
    if known or len(batches) < 2 * NEAR or (fell_from := held_out_fell(batches)) is None:
        return []
    before, after = mean_total(batches[:NEAR]), mean_total(batches[-NEAR:])
    if after - before <= limits.reward_rise * spread_of(batches):
        return []
    best, latest = fell_from
    evidence = sorted(batches[-1].rollouts, key=total_of, reverse=True)
    message = (
        f"the reward pays for something other than the task: compare {evidence[0].text[-60:]!r}, which earns "
        f"{total_of(evidence[0]):.4g}, with a right answer. The mean reward rose from {before:.2g} to {after:.2g}, and "
        f"success on held-out tasks fell from {best:.0%} to {latest:.0%}."
    )
    return [Finding(message, best - latest, GAP, ids_of(evidence), began=batches[0].step)]


@detector(need.KL, need.HELD_OUT, reports="kl_rise")
def drift(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a KL that rises while held-out success falls, even if training success rises."""
    lowest = min(batches, key=lambda b: b.metrics[metric.KL_MEAN])
    rise = batches[-1].metrics[metric.KL_MEAN] - lowest.metrics[metric.KL_MEAN]
    if rise <= limits.kl_rise or (fell_from := held_out_fell(batches)) is None:
        return []
    best, latest = fell_from
    message = (
        "the policy leaves its reference, and gets worse: lower the learning rate, or make fewer updates per batch. KL "
        f"to the reference rose by {rise:.2g} nats per token in {len(batches)} steps, and success on held-out tasks "
        f"fell from {best:.0%} to {latest:.0%}."
    )
    return [Finding(message, rise, limits.kl_rise, ids_of(batches[-1].rollouts), began=(lowest.step or 0) + 1)]


@detector(need.PROMPTS, need.ANSWERS, need.HELD_OUT)
def leaked_answer(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find right answers in training prompts but not in held-out prompts. `own_texts` handles prompts that contain the
    policy's own text."""
    shown, others = _of_training(batches), _by_task(_evaluation(batches[-1]).rollouts)
    leaks, usual = ([r for r, leak, _ in side.values() if leak] for side in (shown, others))
    prompts = {r.prompt for r in _with_own_texts(batches)}
    leaks = [r for r in leaks if r.prompt not in prompts]
    if not _more_often(len(leaks), len(shown), len(usual), len(others)):
        return []
    rows = [r for r, _, _ in shown.values()]  # short answers also occur in the prompts of other tasks
    by_chance = sum(_holds_answer(r.prompt, rows[i - 1].expected) for i, r in enumerate(rows))
    if not _more_often(len(leaks), len(shown), by_chance, len(shown)):
        return []
    share, other = len(leaks) / len(shown), len(usual) / len(others)
    message = (
        f"prompts contain the right answer: {leaks[0].prompt[-60:]!r} has {leaks[0].expected!r}. This affects "
        f"{share:.0%} of {len(shown):,} training prompts and {other:.0%} of {len(others):,} held-out prompts."
    )
    return [Finding(message, share, other + LEAK, ids_of(leaks), began=batches[0].step)]


@detector(need.PROMPTS, need.HELD_OUT, reports="prompt_gap")
def own_texts(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find training prompts that contain text which the policy wrote in an earlier step."""
    prompts, hit = {r.prompt for b in batches for r in b.rollouts}, _with_own_texts(batches)
    texts, others = _texts(batches), {r.prompt for r in _evaluation(batches[-1]).rollouts}
    usual = sum(_holds(prompt, texts) for prompt in others) if hit else 0
    if not _more_often(len(hit), len(prompts), usual, len(others)):
        return []
    message = (
        "prompts contain text that the policy wrote earlier: is a message list or an environment reused without a "
        f"reset? This affects {len(hit):,} of {len(prompts):,} training prompts, such as {hit[0].prompt[-60:]!r}, and "
        f"{usual:,} of {len(others):,} held-out prompts."
    )
    share, limit = len(hit) / len(prompts), usual / len(others) + LEAK
    return [Finding(message, share, limit, ids_of(hit), "texts", began=batches[0].step)]


def _with_own_texts(batches: Sequence[Batch]) -> list[RolloutSummary]:
    """Return one rollout for each prompt that contains text from an earlier step."""
    hit: dict[str, RolloutSummary] = {}
    for i, batch in enumerate(batches):

        def holding(batch: Batch, i: int = i) -> dict[str, RolloutSummary]:
            texts, prompts = _texts(batches[:i]), {r.prompt: r for r in batch.rollouts}
            return {prompt: r for prompt, r in prompts.items() if _holds(prompt, texts)}

        hit.update(batch.fact("with own texts", holding))
    return list(hit.values())


def _texts(batches: Iterable[Batch]) -> list[str]:
    """Return the texts of rollouts, longest first, without those that repeat part of their prompt."""
    texts = {text for b in batches for r in b.rollouts if (text := r.text.strip()) not in r.prompt}
    return sorted(texts, key=len, reverse=True)


def _holds(prompt: str, texts: Iterable[str]) -> bool:
    """Return whether the texts cover at least `WORDS` words of a prompt. A single short text occurs by chance."""
    words = 0
    for text in texts:
        if text in prompt:
            prompt, words = prompt.replace(text, " "), words + len(text.split())
            if words >= WORDS:
                return True
    return False


def _more_often(hits: int, total: int, usual: int, others: int) -> bool:
    """Return whether training prompts have a property significantly more often than held-out ones."""
    if min(total, others) < TASKS or hits / total - usual / others <= LEAK:
        return False
    return fell((hits, total), (usual, others), HELD_OUT_ERRORS)


@detector(need.PROMPTS, need.HELD_OUT)
def seen_tasks(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find held-out prompts that were also trained on. Only single turns count: prompts may not show all of a task."""
    shown = {r.prompt for b in batches for r in b.rollouts if r.turns in (1, None)}
    held_out = {r.prompt for r in _evaluation(batches[-1]).rollouts}
    both = sorted(shown & held_out)
    share = len(both) / max(len(held_out), 1)
    if len(held_out) < TASKS or share <= SEEN:
        return []
    message = (
        "training and evaluation share tasks, so success on held-out tasks may be memory: separate them. Training had "
        f"{len(both):,} of {len(held_out):,} held-out prompts in {counted(len(batches), 'step')}, such as "
        f"{both[0][-60:]!r}."
    )
    return [Finding(message, share, SEEN, severity="hint", began=batches[0].step)]


@detector(need.PROMPTS, need.HELD_OUT)
def prompt_gap(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find words in nearly all prompts of one side and nearly none of the other."""
    shown, others = _of_training(batches), _by_task(_evaluation(batches[-1]).rollouts)
    if min(len(shown), len(others)) < TASKS:
        return []
    trained, held_out = _word_shares(shown), _word_shares(others)
    lost = [w for w, share in held_out.items() if share >= ALL and trained.get(w, 0.0) <= NONE]
    extra = [w for w, share in trained.items() if share >= ALL and held_out.get(w, 0.0) <= NONE]
    if not lost and not extra:
        return []
    parts = [f"lack {_listed(lost)}"] * bool(lost) + [f"add {_listed(extra)}"] * bool(extra)
    example, other_example = (next(iter(tasks.values()))[0].prompt[-60:] for tasks in (shown, others))
    message = (
        "training and evaluation have different prompts: is one cut off, or does it use another template? "
        f"{len(shown):,} training prompts {' and '.join(parts)}: {example!r}, against held-out {other_example!r}."
    )
    return [Finding(message, 1.0, ALL, ids_of(batches[-1].rollouts), began=batches[0].step)]


def _evaluation(batch: Batch) -> HeldOut:
    assert batch.held_out is not None
    return batch.held_out


def _batches_near(batches: Sequence[Batch], evaluation: HeldOut) -> Sequence[Batch]:
    """Return the last steps, enough for `TASKS` groups, or none if they are far from the evaluation."""
    if any(abs((b.step or 0) - evaluation.step) > NEAR for b in batches[-NEAR:]):
        return ()
    groups = len({r.group for r in batches[-1].rollouts})
    return batches[-max(NEAR, math.ceil(TASKS / max(groups, 1))) :]


def _of_training(batches: Sequence[Batch]) -> Prompts:
    return {task: found for b in batches for task, found in b.fact("prompts", lambda b: _by_task(b.rollouts)).items()}


def _by_task(rollouts: Iterable[RolloutSummary]) -> Prompts:
    tasks = {r.task or r.prompt: r for r in rollouts}
    return {task: (r, _holds_answer(r.prompt, r.expected), frozenset(r.prompt.split())) for task, r in tasks.items()}


def _holds_answer(prompt: str, expected: str | None) -> bool:
    answer = re.escape((expected or "").strip())
    return bool(answer) and re.search(rf"(?<!\w){answer}(?!\w)", prompt) is not None


def _word_shares(prompts: Prompts) -> dict[str, float]:
    counts = Counter(word for _, _, words in prompts.values() for word in words)
    return {word: times / len(prompts) for word, times in counts.items()}


def _listed(words: Sequence[str]) -> str:
    return ", ".join(repr(w) for w in words[:3]) + (" and others" if len(words) > 3 else "")
