"""What can go wrong with shaped rewards, each as a small pure function over the last batches. No torch, no numpy.

A detector takes the batches of the last steps, oldest first, and the thresholds, and returns findings: a sentence, the
value, the threshold that it broke, and the trajectories that show it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Literal

from ..configs import metric_names as metric
from ..configs.sections.rewards import DiagnosisConfig
from ..envs.trajectory import Trajectory
from .breakdown import RewardBreakdown

ENTROPY = metric.ENTROPY
MISMATCH = metric.LOGPROB_MISMATCH
STALENESS = metric.STALENESS
SAME = 1e-9
"""Rewards that differ by less are the same reward."""


Grade = Literal["good", "hint", "warning", "failure"]
"""good: no trouble at all; hint: worth knowing; warning: training may go wrong; failure: it does."""


@dataclass(frozen=True)
class Finding:
    """One thing that was found. `subject` says about which part (a component, an action), where there are several.

    `message` says first what is the matter and what helps, then how it was measured: screens may cut its end.
    """

    detector: str
    message: str
    value: float
    threshold: float
    trajectories: tuple[str, ...] = ()
    subject: str = ""
    grade: Grade = "warning"


GOALS = frozenset({"task", "environment"})


@dataclass(frozen=True)
class RolloutSummary:
    """What detectors need of one trajectory: its reward by component (sums over its steps), and what it did."""

    id: str
    group: str
    total: float
    contributions: Mapping[str, float]
    correct: bool | None = None
    actions: tuple[str, ...] = ()
    tokens: int = 0
    turns: int | None = None
    """Turns of the policy, where they are more than its actions; None: as many."""
    goals: frozenset[str] = frozenset()
    """Components that are the task itself: the environment's reward, and the user's reward functions."""
    apart: frozenset[str] = frozenset()
    """Components that decide between equals alone, and are no part of what the advantage compares."""


@dataclass(frozen=True)
class Batch:
    """One training step: its rollouts, and its metrics by flat name."""

    step: int
    rollouts: Sequence[RolloutSummary]
    metrics: Mapping[str, float] = field(default_factory=dict)


Detector = Callable[[Sequence[Batch], DiagnosisConfig], list[Finding]]


def rollout_of(
    trajectory: Trajectory, breakdown: RewardBreakdown, tokens: int = 0, apart: Collection[str] = ()
) -> RolloutSummary:
    """A trajectory and its reward as detectors see them. apart: components that decide between equals alone."""
    sums: dict[str, float] = defaultdict(float)
    for step in breakdown.steps:
        for name, value in step.components.items():
            if value.contribution is not None:
                sums[name] += value.contribution
    total = math.nan if breakdown.total is None else breakdown.total
    goals = GOALS | {score.name for step in trajectory.steps for score in step.scores}
    return RolloutSummary(
        trajectory.id,
        trajectory.group,
        total,
        sums,
        trajectory.correct,
        trajectory.actions,
        tokens,
        goals=goals,
        apart=frozenset(apart),
    )


def advantage_shares(rollouts: Iterable[RolloutSummary]) -> dict[str, float]:
    """The share of each component in the variance of the advantage; they add up to 1, or there are none.

    With c_i a component's sum over rollout i minus its group's mean and A_i = sum over components of c_i (GRPO's
    advantage before scaling): share = sum_i c_i A_i / sum_i A_i^2. Negative where a component works against the rest.
    """
    covariance: dict[str, float] = defaultdict(float)
    variance = 0.0
    for group in _groups(rollouts):
        mean = fmean(r.total for r in group)
        means = {name: fmean(r.contributions.get(name, 0.0) for r in group) for name in group[0].contributions}
        for rollout in group:
            advantage = rollout.total - mean
            variance += advantage * advantage
            for name, value in means.items():
                covariance[name] += (rollout.contributions.get(name, 0.0) - value) * advantage
    return {name: value / variance for name, value in covariance.items()} if variance > SAME else {}


def _of_the_return(rollout: RolloutSummary) -> RolloutSummary:
    """The same without what decides between equals alone."""
    if not rollout.apart:
        return rollout
    left = {name: value for name, value in rollout.contributions.items() if name not in rollout.apart}
    return replace(rollout, contributions=left, total=math.fsum(left.values()))


def rewarded_for_something_else(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """A component other than the task makes most of the advantage: it is what the policy follows."""
    rollouts = [r for b in batches for r in b.rollouts]
    shares = advantage_shares(map(_of_the_return, rollouts)) if len(batches) >= min(3, limits.window) else {}
    goals = GOALS.union(*(r.goals for r in rollouts))
    found = []
    for name, share in shares.items():
        if name in goals or share <= limits.advantage_share:
            continue
        strongest = sorted(batches[-1].rollouts, key=lambda r, n=name: -abs(r.contributions.get(n, 0.0)))
        size = f"{share:.0%}" if share <= 1 else "all (others work against it)"
        found.append(
            Finding(
                "advantage_share",
                f"{name} is what the policy is taught beside the task: lower w_{name}. It makes {size} of the "
                f"advantage's variance over {len(batches)} steps (limit {limits.advantage_share:.0%}).",
                share,
                limits.advantage_share,
                _ids(strongest, limits),
                name,
            )
        )
    return found


def reward_without_success(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """The mean reward rises over the window, and task success does not: another component is being collected."""
    known = [b for b in batches if any(r.correct is not None for r in b.rollouts)]
    if len(known) < limits.window:
        return []
    spread = fmean(_std([r.total for r in b.rollouts]) for b in known)
    before, after = known[: len(known) // 2], known[len(known) // 2 :]
    rise = _mean_total(after) - _mean_total(before)
    start, end = _success(before), _success(after)
    in_stds = rise / max(spread, SAME)
    if in_stds <= limits.reward_rise or end - start > limits.success_rise or end > 0.99:
        return []
    names = {n for b in known for r in b.rollouts for n in r.contributions}
    rises = {n: _mean_component(after, n) - _mean_component(before, n) for n in names}
    most = max(sorted(rises), key=lambda n: rises[n])
    wrong = sorted((r for r in known[-1].rollouts if not r.correct), key=lambda r: -r.total)
    return [
        Finding(
            "reward_without_success",
            f"reward rises, success does not: over {len(known)} steps the mean reward went up by {rise:.3g} and "
            f"success from {start:.0%} to {end:.0%}; {most} makes {rises[most] / rise:.0%} of the rise.",
            in_stds,
            limits.reward_rise,
            _ids(wrong, limits),
            most,
        )
    ]


def action_collapse(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Nearly every action is the same one, where there were more before or could be."""
    latest = batches[-1]
    counts = Counter(a for r in latest.rollouts for a in r.actions)
    ever = {a for b in batches for r in b.rollouts for a in r.actions}
    if not counts or len(ever) < 2:
        return []
    action, times = counts.most_common(1)[0]
    share = times / counts.total()
    if share <= limits.action_share:
        return []
    shown = action if action != "?" else "a turn without a readable call"
    evidence = sorted((r for r in latest.rollouts if action in r.actions), key=lambda r: -len(r.actions))
    message = f"{shown} makes {share:.0%} of all actions: the other tools are used no more."
    return [Finding("action_collapse", message, share, limits.action_share, _ids(evidence, limits), action)]


def entropy_collapse(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """The policy's entropy has fallen to a fraction of what it was: it explores no more."""
    series = [b.metrics[ENTROPY] for b in batches if math.isfinite(b.metrics.get(ENTROPY, math.nan))]
    if len(series) < 3 or max(series) <= SAME:
        return []
    left = series[-1] / max(series)
    if left >= limits.entropy_fall:
        return []
    ids = _ids(batches[-1].rollouts, limits)
    measured = f"policy entropy fell to {series[-1]:.3g}, {left:.0%} of its highest in {len(series)} steps"
    known = [b for b in batches if any(r.correct is not None for r in b.rollouts)]
    before, after = known[: len(known) // 2], known[len(known) // 2 :]
    if before and (start := _success(before)) + limits.success_rise < (end := _success(after)):
        message = f"the policy becomes sure of what works: success rose from {start:.0%} to {end:.0%} while {measured}."
        return [Finding("entropy_collapse", message, left, limits.entropy_fall, ids, grade="hint")]
    return [Finding("entropy_collapse", f"the policy explores no more: {measured}.", left, limits.entropy_fall, ids)]


def logprob_mismatch(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Rollouts of servers come from a policy that is far from the one under training."""
    latest = batches[-1]
    apart = latest.metrics.get(MISMATCH, math.nan)
    if not apart > limits.logprob_mismatch:
        return []
    behind = latest.metrics.get(STALENESS, 0.0)
    cure = (
        "lower rollouts.max_staleness or the learning rate"
        if behind > 0
        else "serve the model in the trainer's precision (`grpo-tui doctor --server URL`)"
    )
    message = (
        f"rollouts come from another policy than the one that is trained: {cure}. Log-probs of their tokens differ by "
        f"{apart:.2g} nats in the mean; the policy that made them was {behind:.2g} steps behind."
    )
    ids = _ids(latest.rollouts, limits)
    return [Finding("logprob_mismatch", message, apart, limits.logprob_mismatch, ids)]


def length_collapse(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Trajectories have become much shorter, in tokens where these are known, else in turns."""
    if len(batches) < 3 or not all(b.rollouts for b in batches):
        return []
    by_tokens = all(r.tokens for b in batches for r in b.rollouts)
    series = [fmean(r.tokens if by_tokens else _turns(r) for r in b.rollouts) for b in batches]
    left = series[-1] / max(series) if max(series) else 1.0
    if left >= limits.length_fall:
        return []
    unit = "tokens" if by_tokens else "turns"
    shortest = sorted(batches[-1].rollouts, key=lambda r: (r.tokens, _turns(r)))
    message = f"trajectories shrank to {series[-1]:.3g} {unit}, {left:.0%} of what they were in {len(series)} steps."
    return [Finding("length_collapse", message, left, limits.length_fall, _ids(shortest, limits))]


def groups_without_variance(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """More and more groups whose rollouts all get one reward: they carry no gradient."""
    shares = [share for b in batches if (share := _flat_share(b)) is not None]
    if len(shares) < 4:
        return []
    before, after = fmean(shares[: len(shares) // 2]), fmean(shares[len(shares) // 2 :])
    if after <= limits.no_variance_share or after <= before:
        return []
    flat = [r for g in _groups(batches[-1].rollouts) if _is_flat(g) for r in g]
    ids = _ids(flat, limits)
    measured = f"{after:.0%} of the groups have no variance (before: {before:.0%}) and teach nothing"
    if flat and all(r.correct for r in flat):
        message = f"solved: whole groups answer rightly. {measured}; harder tasks would teach more."
        return [Finding("groups_without_variance", message, after, limits.no_variance_share, ids, "solved", "good")]
    wrong = sum(not r.correct for r in flat) / len(flat) if flat else 0.0
    tasks = "easier" if wrong > 0.5 else "harder"
    message = f"{measured}: {tasks} tasks would teach more."
    return [Finding("groups_without_variance", message, after, limits.no_variance_share, ids)]


def not_finite(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """NaN or infinity in a metric or a reward of the latest step."""
    latest = batches[-1]
    bad = [r for r in latest.rollouts if not math.isfinite(r.total)]
    names = sorted(name for name, value in latest.metrics.items() if not math.isfinite(value))
    dropped = latest.metrics.get(metric.REWARD_NONFINITE, 0.0)
    if not bad and not names and not dropped > 0:
        return []
    where = [f"the reward of {len(bad)} trajectories"] if bad else []
    where += [f"{', '.join(names[:5])}{' and others' if len(names) > 5 else ''}"] if names else []
    where += [f"{dropped:g} raw reward values, which count as 0"] if dropped > 0 else []
    count = len(bad) + len(names) + (dropped if dropped > 0 else 0)
    return [
        Finding("not_finite", f"NaN or infinity in {'; '.join(where)}.", count, 0.0, _ids(bad, limits), grade="failure")
    ]


DETECTORS: dict[str, Detector] = {
    "advantage_share": rewarded_for_something_else,
    "reward_without_success": reward_without_success,
    "action_collapse": action_collapse,
    "entropy_collapse": entropy_collapse,
    "logprob_mismatch": logprob_mismatch,
    "length_collapse": length_collapse,
    "groups_without_variance": groups_without_variance,
    "not_finite": not_finite,
}


def _turns(rollout: RolloutSummary) -> int:
    return len(rollout.actions) if rollout.turns is None else rollout.turns


def _groups(rollouts: Iterable[RolloutSummary]) -> list[list[RolloutSummary]]:
    groups: dict[str, list[RolloutSummary]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.group].append(rollout)
    return [g for g in groups.values() if all(math.isfinite(r.total) for r in g)]


def _is_flat(group: Sequence[RolloutSummary]) -> bool:
    return max(r.total for r in group) - min(r.total for r in group) <= SAME


def _flat_share(batch: Batch) -> float | None:
    groups = [g for g in _groups(batch.rollouts) if len(g) > 1]
    return fmean(_is_flat(g) for g in groups) if groups else None


def _ids(rollouts: Iterable[RolloutSummary], limits: DiagnosisConfig) -> tuple[str, ...]:
    return tuple(r.id for r in rollouts)[: limits.evidence]


def _std(values: Sequence[float]) -> float:
    mean = fmean(values)
    return math.sqrt(fmean((v - mean) ** 2 for v in values))


def _mean_total(batches: Sequence[Batch]) -> float:
    return fmean(fmean(r.total for r in b.rollouts) for b in batches)


def _mean_component(batches: Sequence[Batch], name: str) -> float:
    return fmean(fmean(r.contributions.get(name, 0.0) for r in b.rollouts) for b in batches)


def _success(batches: Sequence[Batch]) -> float:
    return fmean(fmean(r.correct for r in b.rollouts if r.correct is not None) for b in batches)
