"""Detect contradictions in the record: tokens and tasks that no correct training run has.

Each detector compares two recorded facts, so it needs few steps. No torch, no numpy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from ..configs import metric_names as metric
from ..configs.errors import count as counted
from ..configs.sections.rewards import DiagnosisConfig
from . import batches as need
from .batch_statistics import SAME, deviation, groups_of, rollouts_of, total_of
from .batches import GOALS, Batch, RolloutSummary
from .detectors import LEAST_ENTROPY, Finding, detector, ids_of, improvement, other_logprobs

STEPS = 3
"""Minimum steps of evidence."""
ENOUGH = 16
"""Minimum rollouts or groups of evidence."""
MOST = 512
"""Maximum rollouts of evidence."""
ORDERED = 0.3
"""Minimum correlation of reward and advantage within groups. It should be near 1."""
ALIKE, ALL_ALIKE = 0.8, 0.95
"""Share of groups with a single text, during the run and before the first update."""
FROZEN = 1e-5
"""Entropy in nats per token that only a sampling temperature near 0 causes before the first update."""
LOST = 0.1
"""Share of rollouts outside the loss. A setting may mask only those that a limit cut."""
UNENDED = 0.9
"""Share of rollouts whose loss lacks one token of each turn. Turns that a limit cut have no end-of-turn token."""
Z = 4.0
"""Standard errors between -log p of tokens and the entropy. The false-alarm rate is 6 in 100,000."""
EXCESS, EXCESS_OF_STEP = (0.15, 0.3), (2.0, 0.5)
"""Tolerance of -log p above and below the entropy, as a share of it: if the entropy is known per rollout, and if only
per step. Rollouts of groups without signal are not in the loss, and that selection shifts the mean by up to 0.2. If few
are in the loss, the entropy is that of harder tasks, so only an excess above it counts."""
KINDS, BY_CHANCE = 0.5, 0.01
"""Share of steps with one kind of task, and the expected number of words that a step's prompts share by chance."""
UNREAD, CUT, PROMPTS = 0.1, 0.25, 8
"""Share of a prompt's words that its tokens lack, share of such prompts, and minimum prompts of evidence. The limits
also apply to the texts of turns."""
SINGLE = 8
"""Single-group steps needed to judge whether the policy improves."""
DISTINCT = 0.5
"""Distinct tasks in a step, as a share of its groups."""


@detector(need.TEXTS, need.TASKS, steps=STEPS)
def repeated_rollouts(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find steps that reuse the rollouts of the previous step, although texts differ within a step."""
    counts = [Counter((r.task, r.text) for r in b.rollouts) for b in batches[-STEPS:]]
    share = min((now & before).total() / now.total() for before, now in pairwise(counts))
    if share <= ALL_ALIKE or counts[-1].total() < ENOUGH or len(counts[-1]) < counts[-1].total() / 2:
        return []
    message = (
        f"steps reuse the same rollouts: sample new ones with the current policy in each step. {share:.0%} of the "
        f"texts of the last {STEPS} steps repeat the step before."
    )
    return [Finding(message, share, ALL_ALIKE, ids_of(batches[-1].rollouts), began=batches[-STEPS].step)]


@detector(need.TASKS)
def few_tasks(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find steps with few distinct tasks for their number of groups, unless the environment has no others: then the
    tasks of evaluations are the same."""
    counts = [(len({r.task for r in b.rollouts}), len({r.group for r in b.rollouts})) for b in batches]
    tasks, groups = sum(n for n, _ in counts), sum(n for _, n in counts)
    if len(batches) < STEPS or groups < ENOUGH or groups < 4 * len(batches) or tasks > DISTINCT * groups:
        return []
    every = {r.task for r in rollouts_of(batches)}
    if every == {r.task for b in batches if b.held_out for r in b.held_out.rollouts}:
        return []
    message = (
        f"training repeats a few tasks: {groups:,} groups of {len(batches)} steps have "
        f"{counted(len(every), 'different task')}, and a step has the same task several times. Look for duplicates in "
        "the data."
    )
    prompts = {(r.task, r.prompt) for r in rollouts_of(batches)}
    known = any(b.held_out for b in batches) or len(prompts) > len(every)
    severity = "warning" if known else "hint"  # the environment may have no other tasks
    ids = ids_of(batches[-1].rollouts)
    return [Finding(message, tasks / groups, DISTINCT, ids, severity=severity, began=batches[0].step)]


@detector(need.TASKS, need.PROMPTS, reports="few_tasks")
def repeated_prompts(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find tasks with the prompt and the right answer of others. Only single turns count, because the tasks of an
    environment may differ in what their prompts do not show."""
    tasks = {r.task: (r.prompt, r.expected) for r in rollouts_of(batches) if r.turns in (1, None)}
    different = len(set(tasks.values()))
    if len(tasks) < ENOUGH or different > DISTINCT * len(tasks):
        return []
    message = (
        f"the data has duplicates: {len(tasks):,} tasks of {counted(len(batches), 'step')} have "
        f"{counted(different, 'different prompt')}. Remove repeated rows."
    )
    ids = ids_of(batches[-1].rollouts)
    found = Finding(message, different / len(tasks), DISTINCT, ids, "prompts", began=batches[0].step, severity="hint")
    return [found]


@detector(need.TASKS, need.KL)
def single_prompt(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find single-prompt steps that move the policy far without improving it."""
    moved = max(b.metrics[metric.KL_MEAN] for b in batches)
    single = all(len({r.group for r in b.rollouts}) == 1 for b in batches)
    if len(batches) < SINGLE or not single or moved <= limits.kl_rise or improvement(batches, limits):
        return []
    message = (
        f"each of {len(batches)} steps has one prompt, so steps undo each other's progress. KL to the reference "
        f"reached {moved:.2g} nats per token, and nothing improved."
    )
    return [Finding(message, moved, limits.kl_rise, ids_of(batches[-1].rollouts), began=batches[0].step)]


@detector(need.TASKS, need.PROMPTS, reports="few_tasks", steps=2 * STEPS)
def ordered_tasks(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find steps whose prompts share a word that few other prompts have: each step has only one kind of task."""
    steps = [b.fact("words", _words) for b in batches]
    counts, every = Counter[str](), sum(tasks for tasks, _ in steps)
    for _, words in steps:
        counts.update(words)
    uniform = []
    for batch, (tasks, words) in zip(batches, steps, strict=True):
        rarest = min((w for w, times in words.items() if times == tasks), key=lambda word: counts[word], default="")
        # the expected number of words that all these tasks share by chance, at the words' overall frequencies
        if rarest and len(counts) * (counts[rarest] / every) ** tasks < BY_CHANCE:
            uniform.append((batch, rarest))
    share = len(uniform) / len(batches)
    if share <= KINDS or len({word for _, word in uniform}) < 2:
        return []
    (batch, word), began = uniform[-1], batches[0].step
    message = (
        f"each step has one kind of task: shuffle the data. In {len(uniform)} of {len(batches)} steps all prompts "
        f"share a word that few others have: {word!r} in step {batch.step}."
    )
    return [Finding(message, share, KINDS, ids_of(batch.rollouts), "order", began=began)]


def _words(batch: Batch) -> tuple[int, Counter[str]]:
    """Return the number of tasks of a step, and for each word the number of prompts that contain it."""
    prompts = {r.task: r.prompt for r in batch.rollouts}
    return len(prompts), Counter(word for prompt in prompts.values() for word in set(prompt.split()))


@detector(need.READ)
def prompt_cut(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find prompts that the policy reads only in part, and texts that its tokens do not contain."""
    steps = batches[-max(STEPS, PROMPTS // len(batches[-1].rollouts)) :]
    recent = rollouts_of(steps)
    for name, lacks, problem, what in (
        (
            "prompt_cut",
            lambda r: r.unread,
            "the policy does not read whole prompts: check their length limit, the chat template and the tokenizer",
            "prompts",
        ),
        (
            "text_mismatch",
            lambda r: r.unwritten,
            "texts do not match the sampled tokens, so the grader judges other text: decode the sampled ids with the "
            "policy's tokenizer",
            "texts",
        ),
    ):
        cut = [r for r in recent if (lacks(r) or 0.0) > UNREAD]
        share = len(cut) / len(recent)
        if len(recent) < PROMPTS or share <= CUT:
            continue
        lost = fmean(lacks(r) or 0.0 for r in cut)
        message = f"{problem}. In {len(cut):,} of {len(recent):,} {what}, tokens lack {lost:.0%} of the words."
        return [Finding(message, share, CUT, ids_of(cut), "", "failure", steps[0].step, name)]
    return []


@detector(need.TASKS)
def mixed_groups(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find groups that mix rollouts of several tasks or prompts."""
    groups = groups_of(batches[-1].rollouts)
    mixed = [g for g in groups if len({r.task for r in g}) > 1 or len({r.prompt for r in g} - {""}) > 1]
    if len(mixed) <= DISTINCT * len(groups):
        return []
    message = (
        "groups mix tasks, so rollouts of different prompts are compared: check the data sampler and the order of "
        f"rows. {len(mixed):,} of {len(groups):,} groups have several prompts."
    )
    return [Finding(message, len(mixed) / len(groups), DISTINCT, ids_of(mixed[0]), severity="failure")]


@detector(need.WRITTEN)
def trained_tokens(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find tokens in the loss that the agent did not write, and written tokens that are not in the loss."""
    rollouts = batches[-1].rollouts
    more = [r for r in rollouts if r.tokens > r.written > 0]
    less = [r for r in rollouts if r.written - r.tokens > (r.turns or 1)]
    masked = [r for r in rollouts if r.masked and not r.cut]  # a setting may mask cut rollouts
    lost = [r for r in rollouts if r.in_loss is False]
    steps = [b.step or 0 for b in batches[-2:]]  # if updates share rollouts, each has only some, and steps have gaps
    lost = lost if steps[-1] - steps[0] == 1 and any(r.in_loss for r in rollouts_of(batches[-STEPS:])) else []
    unended = [r for r in rollouts if r.written - r.tokens == (r.turns or 1)]  # one missing token per turn
    for name, hit, problem, limit in (
        ("trained_tokens", more, "includes tokens that the agent did not write: mask them", 0.5),
        ("untrained_tokens", less, "leaves out tokens that the agent wrote: check the mask", 0.5),
        ("untrained_tokens", masked, "leaves out whole rollouts that no limit cut: check the mask", LOST),
        ("untrained_tokens", lost, "leaves out rollouts that training selected: check how its rows are made", LOST),
        ("untrained_tokens", unended, "leaves out the end of turns, so the policy does not learn to stop", UNENDED),
    ):
        share = len(hit) / len(rollouts)
        if share > limit:
            difference = fmean(r.written if r.masked or r.in_loss is False else abs(r.tokens - r.written) for r in hit)
            message = (
                f"the loss {problem}. {len(hit):,} of {len(rollouts):,} rollouts are affected, by {difference:.0f} "
                "tokens on average."
            )
            severity = "warning" if hit is unended else "failure"
            return [Finding(message, share, limit, ids_of(hit), severity=severity, detector=name)]
    return []


@detector(need.SURPRISE, need.ENTROPY, reads=(metric.SAMPLER_KL, metric.REPLAY_SHARE))
def surprising_tokens(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find tokens that are not samples of the trained policy, whose mean -log p would equal its entropy.

    Given the text before it, the expected -log p of a sampled token is the policy's entropy there. The differences
    summed over a rollout then have mean 0, and their sum over rollouts, divided by the root of the sum of squares, is
    approximately normal.
    """
    recent = batches[-STEPS:]
    if len(recent) < STEPS or other_logprobs(batches):  # then the sampler's log-probs are not the policy's
        return []
    known = sum(r.entropy is not None for r in rollouts_of(recent)) >= ENOUGH
    if not known and any(
        b.metrics.get(metric.REPLAY_SHARE) for b in recent
    ):  # the entropy is that of replayed rollouts
        return []
    every = rollouts_of(batches)  # rollouts outside the loss are not like the others
    selected = any(r.masked for r in every) or (not known and any(r.entropy is not None for r in every))
    limit_above, limit_below = EXCESS if known else EXCESS_OF_STEP
    entropies = [(r, r.entropy if known else b.metrics[metric.ENTROPY]) for b in recent for r in b.rollouts]
    excess = [(r, h) for r, h in entropies if h is not None and r.surprise is not None]
    if len(excess) < ENOUGH:
        return []
    if known and len(excess) < len(entropies) / 2:  # stronger selection shifts the mean further
        limit_above, limit_below = 2 * limit_above, 2 * limit_below
    gaps = [((r.surprise or 0.0) - h) * (r.written or 1) for r, h in excess]
    tokens = sum(r.written or 1 for r, _ in excess)
    entropy = math.fsum(h * (r.written or 1) for r, h in excess) / tokens
    surprise = entropy + math.fsum(gaps) / tokens
    # a nearly certain policy has few but large surprises: about 5 nats, with probability h / 5 at an entropy of h
    expected = math.fsum(5 * h * max(0.0, 1 - h / math.log(2)) * (r.written or 1) for r, h in excess)
    z = math.fsum(gaps) / max(math.sqrt(max(math.fsum(a * a for a in gaps), expected)), SAME)
    if z > Z and surprise > (limit := (1 + limit_above) * entropy):
        cause = (
            "the tokens in the loss are not samples of the policy: train on the sampled ids after the sampled prompt, "
            "not on re-tokenised text, and score with the sampler's temperature and weights"
        )
    elif not selected and z < -Z and entropy > LEAST_ENTROPY and surprise < (limit := (1 - limit_below) * entropy):
        cause = (
            "the sampled tokens are likelier than samples of the scored policy: use temperature 1, top_p 1, top_k 0 "
            "and no dropout"
        )
    else:
        return []
    message = (
        f"{cause}. Their mean -log p is {surprise:.2g} nats, and samples of the policy would have its entropy, "
        f"{entropy:.2g} ({abs(z):.0f} standard errors apart)."
    )
    return [Finding(message, surprise, limit, ids_of(batches[-1].rollouts), began=recent[0].step)]


@detector(need.TEXTS, reads=(metric.ENTROPY,))
def no_diversity(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find groups in which all rollouts are identical, although tasks are unsolved or before any update."""
    groups = [g for g in groups_of(rollouts_of(batches[-STEPS:])) if len(g) > 2]
    same = [g for g in groups if len({r.text for r in g}) == 1]
    share = len(same) / len(groups) if groups else 0.0
    highest = max((total_of(r) for g in groups for r in g), default=0.0)
    wrong = [g for g in same if not all(r.correct or (r.correct is None and r.total == highest) for r in g)]
    certain = any(FROZEN < b.metrics.get(metric.ENTROPY, math.inf) < LEAST_ENTROPY for b in batches[-STEPS:])
    early = len(batches) == STEPS and batches[0].step in (0, 1) and share > ALL_ALIKE and not certain
    solved = len(wrong) <= (1 - ALIKE) * len(groups)
    if len(groups) < ENOUGH or share <= ALIKE or (solved and not early):
        return []
    message = (
        f"all rollouts of a group have the same text: sample at temperature 1. This affects {len(same):,} of "
        f"{len(groups):,} groups, which leaves nothing to compare."
    )
    return [Finding(message, share, ALIKE, ids_of(g[0] for g in same), began=batches[-STEPS:][0].step)]


@detector(reads=(metric.REWARD_NONFINITE,))
def not_finite(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find NaN or infinity in a metric or a reward of the latest step."""
    latest = batches[-1]
    bad = [r for r in latest.rollouts if r.total is not None and not math.isfinite(r.total)]
    wrong = [r for r in latest.rollouts if r.advantage is not None and not math.isfinite(r.advantage)]
    names = sorted(name for name, value in latest.metrics.items() if not math.isfinite(value))
    dropped = latest.metrics.get(metric.REWARD_NONFINITE, 0.0)
    if not bad and not wrong and not names and not dropped > 0:
        return []
    where = [
        f"the {what} of {counted(len(hit), 'trajectory', 'trajectories')}"
        for what, hit in (("reward", bad), ("advantage", wrong))
        if hit
    ]
    where += [f"{', '.join(names[:5])}{' and others' if len(names) > 5 else ''}"] if names else []
    zeros = counted(int(dropped), "raw reward value, which counts as 0", "raw reward values, which count as 0")
    where += [zeros] if dropped > 0 else []
    count = len(bad) + len(wrong) + len(names) + (dropped if dropped > 0 else 0)
    message = f"NaN or infinity in {'; '.join(where)}."
    return [Finding(message, count, 0.0, ids_of(bad + wrong), severity="failure")]


def goal(rollout: RolloutSummary) -> float:
    """Return the reward for only the task, or the whole reward if its parts are unknown."""
    parts = [v for n, v in rollout.contributions.items() if n in GOALS or n in rollout.goals]
    return math.fsum(parts) if parts else rollout.total or 0.0


def newest(batches: Sequence[Batch]) -> Sequence[Batch]:
    """Return the newest batches: at most `MOST` rollouts but at least one batch. More evidence only costs time."""
    rollouts, start = 0, len(batches)
    while start > 0 and (start == len(batches) or rollouts + len(batches[start - 1].rollouts) <= MOST):
        start -= 1
        rollouts += len(batches[start].rollouts)
    return batches[start:]


def correlation_within(
    groups: Sequence[Sequence[RolloutSummary]],
    x: Callable[[RolloutSummary], float],
    y: Callable[[RolloutSummary], float],
    given: Callable[[RolloutSummary], float] | None = None,
    *,
    scaled: bool = False,
) -> float | None:
    """Return the correlation of two numbers within groups, or None with too few rollouts or without variance.

    given: a third number, whose linear effect on both is removed (partial correlation). scaled: divide numbers by their
    deviation within the group, so that all groups count equally.
    """
    columns = [within(groups, number, scaled=scaled) for number in (x, y, *([given] if given is not None else []))]
    for column in columns[2:]:
        square = math.fsum(c * c for c in column)
        for i in range(2) if square > SAME else ():
            slope = math.fsum(a * c for a, c in zip(columns[i], column, strict=True)) / square
            columns[i] = [a - slope * c for a, c in zip(columns[i], column, strict=True)]
    squares = [math.fsum(a * a for a in column) for column in columns[:2]]
    if len(columns[0]) < 4 * ENOUGH or min(squares) <= SAME:
        return None
    return math.fsum(a * b for a, b in zip(*columns[:2], strict=True)) / math.sqrt(squares[0] * squares[1])


def within(
    groups: Iterable[Sequence[RolloutSummary]], number: Callable[[RolloutSummary], float], *, scaled: bool = False
) -> list[float]:
    """Return each rollout's number minus the mean of its group. scaled: divide it by the deviation there."""
    found: list[float] = []
    for group in groups:
        values = [number(r) for r in group]
        scale = max(deviation(values), SAME) if scaled else 1.0
        found += [(v - fmean(values)) / scale for v in values]
    return found
