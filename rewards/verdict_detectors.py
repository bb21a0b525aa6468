"""Detect verdicts and labels that contradict the answers, the prompts, or each other. No torch, no numpy."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean, stdev

from ..configs.sections.rewards import DiagnosisConfig
from . import batches as need
from .batch_statistics import SAME, deviation, groups_of, rollouts_of, total_of
from .batches import Batch, RolloutSummary
from .detectors import SOLVED, Finding, Severity, detector, ids_of
from .record_detectors import ENOUGH, ORDERED, STEPS, Z, correlation_within, goal, newest

NOISE = 0.1
"""Share of verdicts that contradict each other, or accept an answer other than the expected one."""
SLIGHT = 0.25
"""Negligible difference of two rewards, in standard deviations of all rewards."""
CONTRADICTED = 0.25
"""Share of right answers that are judged wrong."""
QUIETER = 0.2
"""Rise in the share of rollouts without an answer."""
IN_ORDER = 0.9
"""Share of pairs in a group whose right answer earns more than the wrong one. Above it, a small correlation is fine:
few right answers with graded rewards cause it, too."""
CHANCE = 1e-4
"""Probability that a reward becomes constant by chance."""
ENDING = 200
"""Characters at the end of a text that may hold its answer."""
_ZEROS = re.compile(r"(?<=\d),(?=\d{3}\b)|(?<=\d)\.0+\b")
NOTHING = 256
"""Rollouts without any reward. With 95 % confidence, fewer than 1.2 % of all rollouts then earn one."""


@detector(need.TEXTS, need.TASKS, need.REWARDS)
def noisy_reward(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find equal answers to one task with different rewards. In several turns, observations must be equal, too."""
    earned: dict[tuple[object, ...], list[RolloutSummary]] = defaultdict(list)
    for r in rollouts_of(newest(batches)):
        if (r.turns in (1, None) or r.observed is not None) and not (r.failed or r.call_failed):
            earned[r.task, r.text, r.tokens, r.answer, r.observed].append(r)
    repeated = [same for same in earned.values() if len(same) > 1]
    rewards = [goal(r) for same in earned.values() for r in same]
    tolerance = max(SAME, SLIGHT * deviation(rewards)) if rewards else SAME
    noisy = [same for same in repeated if max(map(goal, same)) - min(map(goal, same)) > tolerance]
    share = len(noisy) / len(repeated) if repeated else 0.0
    if len(repeated) < ENOUGH or share <= NOISE:
        return []
    low, high = min(noisy[0], key=goal), max(noisy[0], key=goal)
    missing = sorted(set(high.contributions) ^ set(low.contributions))
    cause = f", because {missing[0]} has no score for one of them" if missing else ""
    message = (
        f"the reward is noisy: the same answer to the same task earns {goal(low):.4g} and {goal(high):.4g}{cause}. "
        f"{len(noisy):,} of {len(repeated):,} repeated answers earn different rewards."
    )
    return [Finding(message, share, NOISE, ids_of((low, high)), began=newest(batches)[0].step)]


@detector(need.PROMPTS, need.TASKS, need.ANSWERS)
def noisy_labels(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find tasks with equal prompts but different right answers. Only single turns count, because tools add
    information."""
    by_prompt: dict[str, dict[str, RolloutSummary]] = defaultdict(dict)
    for r in rollouts_of(batches):
        if r.turns in (1, None):
            by_prompt[r.prompt][r.task] = r
    repeated = [list(tasks.values()) for tasks in by_prompt.values() if len(tasks) > 1]
    noisy = [same for same in repeated if len({_plain(r.expected or "") for r in same}) > 1]
    share = len(noisy) / len(repeated) if repeated else 0.0
    if len(repeated) < ENOUGH / 2 or share <= NOISE:
        return []
    answers = sorted({r.expected or "" for r in noisy[0]})
    message = (
        "right answers contradict each other: check the columns of the data, and whether prompts are complete. The "
        f"same prompt expects {answers[0]!r} and {answers[1]!r}. {len(noisy):,} of {len(repeated):,} repeated prompts "
        "have several right answers."
    )
    return [Finding(message, share, NOISE, ids_of(noisy[0]), began=batches[0].step)]


@detector(need.REWARDS, need.SUCCESS)
def reward_order(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find rewards that do not follow the verdicts within groups."""
    latest = newest(batches)
    groups = groups_of(rollouts_of(latest))
    correlation = correlation_within(groups, _verdict, goal, lambda r: len(r.actions))
    if correlation is None or correlation >= ORDERED or (ordered := _ordered(groups)) > IN_ORDER:
        return []
    what = "right answers earn less than wrong ones" if correlation < -ORDERED else "rewards come from other rollouts"
    what += ": check the order of rollouts between grader and reward, and the sign"
    cause, ids = "reward_order", ids_of(latest[-1].rollouts)
    wrong = max((r for g in groups for r in g if not r.correct), key=goal)
    levels = {round(goal(r), 6) for g in groups for r in g}
    if ordered >= 1 - IN_ORDER and len(levels) > 2:  # two levels may be the verdicts on other rollouts
        what = f"the reward pays for something other than right answers: read a wrong one that earns {goal(wrong):.3g}"
        cause, ids = "reward_hack", (wrong.id, *ids)
    for name in sorted({n for r in rollouts_of(latest) for n in r.contributions}):
        follows = correlation_within(groups, _verdict, lambda r, n=name: r.contributions.get(n, 0.0))
        if follows is not None and follows >= ORDERED:
            what = f"other components outweigh {name}, which follows the verdicts: lower their weights"
            cause = "reward_order"
    message = (
        f"{what}. The correlation of verdict and reward within groups is {correlation:.2f}, and it should be near 1."
    )
    return [Finding(message, correlation, ORDERED, ids, began=latest[0].step, detector=cause)]


@detector(need.ANSWERS, need.SUCCESS)
def rejected_answers(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find answers that equal the expected one but count as wrong."""
    equal = list(filter(is_expected, rollouts_of(newest(batches))))
    wrong = [r for r in equal if r.correct is False]
    share = len(wrong) / len(equal) if equal else 0.0
    if len(equal) < ENOUGH or share <= CONTRADICTED:
        return []
    message = (
        f"right answers count as wrong: {wrong[0].answer!r} is expected and earns {wrong[0].total or 0:.4g}. "
        f"{len(wrong):,} of {len(equal):,} answers that equal the expected one count as wrong."
    )
    return [Finding(message, share, CONTRADICTED, ids_of(wrong), began=newest(batches)[0].step)]


@detector(need.TEXTS, need.ANSWERS, need.REWARDS, reports="rejected_answers")
def rejected_form(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find texts that end with the expected answer, literally or with a number in another form, but all count as wrong,
    or earn the least if success is unknown, more often than they end with another's."""
    rollouts = rollouts_of(newest(batches))
    least, most = min(map(goal, rollouts)), max(map(goal, rollouts))
    others = [(r, o.expected) for r, o in zip(rollouts, rollouts[::-1], strict=True) if r.expected != o.expected]
    if (least == most and (most > 0 or (batches[0].step or 0) > 1)) or not others:  # `constant_reward` reports these
        return []
    chance = fmean(_ending(r.text, expected) is not None for r, expected in others)
    for form in (str.casefold, _plain):
        ends = [r for r in rollouts if not is_expected(r) and _ending(r.text, r.expected) is form]
        share = len(ends) / len(rollouts)
        if len(ends) < ENOUGH or share - chance <= CONTRADICTED:
            continue
        paid = (r for r in rollouts_of(batches) if (goal(r) > least if r.correct is None else r.correct))
        if any(_ending(r.text, r.expected) is form for r in paid if not is_expected(r)):
            continue
        message = (
            f"right answers count as wrong, perhaps because of their form: {ends[0].text[-60:]!r} ends with the "
            f"expected {ends[0].expected!r}. {len(ends):,} of {len(rollouts):,} texts do, and none of them counts as "
            f"right or earns more than {least:.4g}."
        )
        return [Finding(message, share, CONTRADICTED, ids_of(ends), "form", began=newest(batches)[0].step)]
    return []


@detector(need.ANSWERS, need.SUCCESS)
def accepted_wrong_answers(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find accepted answers that are right for another task but not for their own. Other forms of a right answer, such
    as 1/2 for 0.5, do not count."""
    latest = newest(batches)
    answers = {_plain(r.expected or "") for r in rollouts_of(batches)} - {""}
    accepted = [(b.step, r) for b in latest for r in b.rollouts if r.correct and r.answer is not None]
    wrong = [(step, r) for step, r in accepted if _plain(r.answer or "") in answers - {_plain(r.expected or "")}]
    share = len(wrong) / len(accepted) if accepted else 0.0
    if len(wrong) < ENOUGH / 2 or share <= NOISE:
        return []
    began, first = wrong[0]
    message = (
        f"wrong answers count as right: {first.answer!r} is accepted where {first.expected!r} is expected. "
        f"{len(wrong):,} of {len(accepted):,} accepted answers are those of other tasks."
    )
    return [Finding(message, share, NOISE, ids_of(r for _, r in wrong), began=began)]


@detector(need.ANSWERS, need.REWARDS, reports="accepted_wrong_answers")
def paid_wrong_answers(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find answers of other tasks that earn as much as right ones of their group, if success is unknown. It is a hint
    unless evaluations know success, because the reward may be for something else."""
    latest, gains, paid = newest(batches), list[float](), list[RolloutSummary]()
    answers = {_plain(r.expected or "") for r in rollouts_of(batches)} - {""}
    for group in groups_of(r for r in rollouts_of(latest) if r.correct is None):
        right = [goal(r) for r in group if is_expected(r)]
        wrong = [r for r in group if not is_expected(r) and _plain(r.answer or "") in answers]
        if right and wrong:
            gains.append(fmean(right) - fmean(map(goal, wrong)))
            paid.append(max(wrong, key=goal))
    scale = deviation(goal(r) for r in rollouts_of(latest))  # `constant_reward` reports 0
    if len(gains) < ENOUGH or scale <= SAME:
        return []
    order = [0.5 * ((gain > -SAME) + (gain > SAME)) for gain in gains]
    if any(_highest(x) > limit for x, limit in ((gains, SLIGHT * scale), (order, IN_ORDER))):
        return []
    known = (held_out := batches[-1].held_out) is not None and any(r.correct is not None for r in held_out.rollouts)
    message = (
        f"the reward does not tell right answers from wrong ones: {paid[0].answer!r} earns {goal(paid[0]):.4g} where "
        f"{paid[0].expected!r} is expected. In {len(gains):,} groups with both, right answers earn more in "
        f"{fmean(gain > SAME for gain in gains):.0%}, and the mean difference is {fmean(gains):.2g}."
    )
    severity: Severity = "warning" if known else "hint"
    return [Finding(message, fmean(order), IN_ORDER, ids_of(paid), "reward", severity, latest[0].step)]


def gains_of(groups: Sequence[Sequence[RolloutSummary]], has: Callable[[RolloutSummary], bool]) -> list[float]:
    """Return, for each group with rollouts that have something and others, how much more the former earn."""
    sides = [[[total_of(r) for r in group if has(r) is side] for side in (True, False)] for group in groups]
    return [fmean(paid) - fmean(others) for paid, others in sides if paid and others]


def surely_positive(gains: Sequence[float]) -> bool:
    """Return whether enough groups show that the mean is above 0."""
    return len(gains) >= ENOUGH and fmean(gains) > Z * stdev(gains) / math.sqrt(len(gains))


def _highest(values: Sequence[float]) -> float:
    """Return the upper limit of the mean."""
    return fmean(values) + Z * stdev(values) / math.sqrt(len(values))


@detector(need.ANSWERS, need.SUCCESS)
def accepted_without_answer(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find rollouts that count as right without an answer, although others have one."""
    rollouts = rollouts_of(batches[-STEPS:])
    right = [r for r in rollouts if r.correct]
    empty = [r for r in right if not (r.answer or "").strip()]
    if len(right) < ENOUGH or not any((r.answer or "").strip() for b in batches for r in b.rollouts):
        return []
    share = len(empty) / len(right)
    refused = [r for r in rollouts if r.correct is False and not (r.answer or "").strip()]
    if share <= NOISE or len(refused) > len(empty) / 4:
        return []
    message = (
        f"the grader accepts a form without an answer: {empty[0].text[:60]!r} counts as right. This affects "
        f"{len(empty):,} of {len(right):,} right rollouts."
    )
    return [Finding(message, share, NOISE, ids_of(empty), began=batches[-STEPS:][0].step)]


@detector(need.REWARDS, need.TEXTS)
def constant_reward(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a reward that is the same for all rollouts of three steps although texts differ: from the start, if above 0
    or while held-out tasks are solved, or later, if too suddenly for chance, given earlier groups with that reward."""
    if found := _nothing_earned(batches):
        return found
    before, latest = batches[:-STEPS], rollouts_of(batches[-STEPS:])
    totals = [goal(r) for r in latest]
    different = len({r.text for r in latest}) >= len(latest) / 4
    if len(batches) < STEPS or len(latest) < ENOUGH or not different or max(totals) - min(totals) > SAME:
        return []
    if before:
        groups = groups_of(rollouts_of(before))
        same = sum(all(abs(goal(r) - totals[0]) <= SAME for r in g) for g in groups)
        chance = ((same + 1) / (len(groups) + 2)) ** len(groups_of(latest))
        cause, found = "the reward no longer depends on the answer: does the grader still work?", chance < CHANCE
        found = found and len(before) >= STEPS and not all(r.correct for r in latest)
        if totals[0] >= max(goal(r) for b in before for r in b.rollouts) - SAME:  # a policy that solves its tasks
            found = found and fmean(abs(goal(r) - totals[0]) <= SAME for r in before[-1].rollouts) <= SOLVED
    else:
        held_out = batches[-1].held_out
        solves = held_out is not None and (held_out.success or 0.0) > NOISE
        solved = fmean(r.correct is True and is_expected(r) for r in latest) > SOLVED
        found = (totals[0] > 0 or solves) and batches[0].step in (0, 1) and not solved
        cause = "the reward does not depend on the answer."
    if not found:
        return []
    began = batches[-STEPS].step
    message = (
        f"{cause} All {len(latest):,} rollouts of {STEPS} steps from step {began} on earn {totals[0]:.4g}, although "
        "their texts differ."
    )
    return [Finding(message, 1.0, 1.0, ids_of(latest), began=began)]


def _nothing_earned(batches: Sequence[Batch]) -> list[Finding]:
    """Find whole rollouts that never earned anything from the first step on. Known answers show that they are wrong."""
    rollouts = rollouts_of(batches) if batches[0].step in (0, 1) else []
    if any(goal(r) or r.expected is not None for r in rollouts):
        return []
    whole = [r for r in rollouts if not (r.cut or r.failed or r.call_failed or r.unreadable)]
    if len(whole) < max(NOTHING, len(rollouts) / 2):
        return []
    message = (
        "no rollout has earned a reward: is the task too hard, or does the grader not recognise right answers? All "
        f"{len(rollouts):,} rollouts of {len(batches)} steps earn 0."
    )
    return [Finding(message, 1.0, 1.0, ids_of(whole), began=batches[0].step)]


@detector(need.ANSWERS)
def unanswered(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find rollouts without a readable answer from the first step on. If a limit cuts them, `truncation` reports that
    instead, unless the evaluation's rollouts have answers."""
    known = [r for r in rollouts_of(batches) if r.answer is not None]
    graded, held_out = [r for r in known if r.correct is not None], batches[-1].held_out
    if len(batches) != STEPS or len(graded) < ENOUGH or batches[0].step not in (0, 1):
        return []
    rollouts = graded + [r for r in known if r.correct is None and _answers(r)]
    without = [r for r in rollouts if not _answers(r)]
    share = len(without) / len(rollouts)
    if min(share, _silent(batches[0])) <= SOLVED or any(r.correct for r in without):
        return []
    others = fmean(map(_answers, held_out.rollouts)) if held_out is not None and held_out.rollouts else 0.0
    if others > 0.5:
        cause = (
            "training rollouts contain no answer, but evaluation rollouts do: compare temperature, limits, stop "
            "strings and chat template"
        )
    elif fmean(r.cut for r in rollouts) <= 0.5:
        cause = "the policy does not know the expected format: compare the chat template with the model's own"
    else:
        return []
    message = (
        f"{cause}. {len(without):,} of {len(rollouts):,} rollouts of the first {STEPS} steps contain no readable "
        "answer."
    )
    return [Finding(message, share, SOLVED, ids_of(without), began=batches[0].step)]


@detector(need.REWARDS, need.ANSWERS)
def silence_paid(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a policy that stops answering because rollouts without an answer earn more than others in their group."""
    share, initial = _silent(batches[-1]), _silent(batches[0])
    if share <= SOLVED or share - initial <= QUIETER:
        return []
    groups = [g for g in groups_of(rollouts_of(batches)) if not any(r.correct for r in g if not _answers(r))]
    gains, silent = gains_of(groups, lambda r: not _answers(r)), [r for g in groups for r in g if not _answers(r)]
    if not surely_positive(gains):
        return []
    message = (
        f"not answering pays more than trying: check the costs of wrong answers and calls. {share:.0%} of the rollouts "
        f"contain no answer ({initial:.0%} at first). In {len(gains):,} groups they earn {fmean(gains):.2g} more than "
        "those with an answer."
    )
    return [Finding(message, share, SOLVED, ids_of(silent), began=batches[0].step)]


def _ordered(groups: Sequence[Sequence[RolloutSummary]]) -> float:
    """Return how often a right answer earns more than a wrong one, over all such pairs within a group."""
    pairs = [(goal(a), goal(b)) for g in groups for a in g if a.correct for b in g if not b.correct]
    return fmean(right > wrong for right, wrong in pairs) if pairs else 0.0


def _silent(batch: Batch) -> float:
    return batch.fact("silent", lambda b: fmean(not _answers(r) for r in b.rollouts))


def _verdict(rollout: RolloutSummary) -> float:
    return float(bool(rollout.correct))


def _answers(rollout: RolloutSummary) -> bool:
    return not rollout.unreadable and bool((rollout.answer or "").strip())


def is_expected(rollout: RolloutSummary) -> bool:
    """Return whether the answer equals the expected one."""
    return rollout.answer is not None and _plain(rollout.answer) == _plain(rollout.expected or "")


def _ending(text: str, expected: str | None) -> Callable[[str], str] | None:
    """Return the form in which a text ends with the whole words of an answer, apart from punctuation: `str.casefold`
    for the answer itself, `_plain` for the same number in another form."""
    for form in (str.casefold, _plain):
        words, answer = (re.findall(r"\w+", form(part or "")) for part in (text[-ENDING:], expected))
        if answer and words[-len(answer) :] == answer:
            return form
    return None


def _plain(text: str) -> str:
    """Return a text without differences of case and of the form of numbers: 1,000.0 is 1000."""
    return _ZEROS.sub("", text.strip().casefold())
