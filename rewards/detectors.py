"""Detect faults in a training run. Each detector is a pure function over the batches of the last steps.

It takes batches, oldest first, and the thresholds, and returns findings. `DETECTORS` registers each with the data that
it needs (`batches.py`). `diagnosis.py` runs them. No torch, no numpy.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from ..configs import metric_names as metric
from ..configs.sections.rewards import DiagnosisConfig
from . import batches as need
from .batch_statistics import (
    ERRORS,
    SAME,
    deviation,
    fallen_since,
    fell,
    flat_at,
    groups_of,
    halves,
    mean_total,
    spread_of,
    success_of,
    total_of,
)
from .batches import Batch, Need, RolloutSummary

SOLVED = 0.8
"""Success above which low entropy is legitimate, because the policy has found right answers."""
LEAST_ENTROPY = 0.05
"""Entropy in nats per token below which rollouts hardly differ."""
RISE = 2.0
"""Entropy as a multiple of its lowest value."""
SLIP = 0.1
"""Success that a solved policy may lose by chance within a window."""
ROUNDING = 1e-6
"""KL in nats per token between sampler and trainer that is harmless."""
OTHER_LOGPROBS = 0.05
"""The same KL, above which training is broken. Different kernels and bfloat16 cause up to 0.01."""
SMALL_GROUPS = "size"
"""The subject of a `groups_without_variance` finding if small groups are the reason: a cause, not a symptom."""
SMALL, USUAL, MANY, FLATTER = 4, 8, 32, 1.5
"""Groups below `SMALL` rollouts are compared with groups of `USUAL`, over at least `MANY` groups. They are too small if
`FLATTER` times as many have no variance."""
RARE = 2.5
"""Standard errors of a fall in the use of other tools that is not chance."""
TROUBLE_SHARE = 0.1
"""Share of rollouts with an unreadable call, or with an error, above which it is reported."""

SOON = 3
"""Steps of evidence that suffice for an urgent share."""

Severity = Literal["good", "hint", "warning", "failure"]
"""good: no trouble at all; hint: worth knowing; warning: training may go wrong; failure: it does."""
SEVERITIES: tuple[Severity, ...] = ("failure", "warning", "hint", "good")
"""Most severe first."""


@dataclass(frozen=True)
class Finding:
    """One fault. `subject` names the affected part (a component, an action) if there are several.

    `message` starts with the fault and a suggestion and ends with the measurement, because screens may cut its end.
    """

    message: str
    value: float
    threshold: float
    trajectories: tuple[str, ...] = ()
    subject: str = ""
    severity: Severity = "warning"
    began: int | None = None
    """The first step that shows the fault (None: the latest)."""
    detector: str = ""
    """The name of the detector, which `Detector` sets."""

    @property
    def strength(self) -> float:
        """The log-distance of `value` from `threshold` on either side: 0.1 is further below 0.5 than 0.45."""
        if self.threshold <= 0:
            return abs(self.value)
        return abs(math.log(self.value / self.threshold)) if self.value > 0 else math.inf


Look = Callable[[Sequence[Batch], DiagnosisConfig], list[Finding]]


@dataclass(frozen=True)
class Detector:
    """A function over batches, the data that it needs, and optional metrics that it reads if a step has them.

    share: it measures a share of all given rollouts. `Diagnosis` passes it the later half of a full window, or all of a
    record that ends before the window is full. urgent: the share above which it reports after only `SOON` steps.
    reports: the detector that its findings name, unless they name one themselves. steps: the least batches it needs.
    """

    look: Look
    needs: tuple[Need, ...] = ()
    reads: tuple[str, ...] = ()
    share: bool = False
    urgent: float = math.inf
    reports: str = ""
    steps: int = 1

    def __call__(self, batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
        found, most = self.look(batches, limits) if len(batches) >= self.steps else [], limits.evidence
        return [replace(f, detector=f.detector or self.reports, trajectories=f.trajectories[:most]) for f in found]


DETECTORS: dict[str, Detector] = {}


def detector(*needs: Need, **settings: Any) -> Callable[[Look], Look]:
    """Register a function as the detector of its name. settings: fields of `Detector`."""

    def register(look: Look) -> Look:
        DETECTORS[look.__name__] = Detector(look, needs, **{"reports": look.__name__, **settings})
        return look

    return register


@detector(need.CALLS)
def action_collapse(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a tool that gets nearly every call in an environment with several."""
    latest = batches[-1]
    known = [r.tools for b in batches for r in b.rollouts if r.tools is not None]
    available = frozenset().union(*known) if known else {a for b in batches for r in b.rollouts for a in r.actions}
    if len(available) < 2:
        return []
    series = [b.fact("actions", lambda b: Counter(a for r in b.rollouts for a in r.actions)) for b in batches]
    action, times = series[-1].most_common(1)[0]
    share = times / series[-1].total()
    others = max(1 - counts[action] / counts.total() for counts in series)
    if share <= limits.action_share or 1 - share > others / 2:
        return []
    early, now = sum(series[: len(series) // 2], Counter[str]()), series[-1].total()
    if not early or not fell((early.total() - early[action], early.total()), (now - times, now), RARE):
        return []
    evidence = sorted((r for r in latest.rollouts if action in r.actions), key=lambda r: -len(r.actions))
    message = (
        f"{action} makes up {share:.0%} of all calls: the policy hardly uses other tools. In {len(batches)} steps "
        f"their share fell from {others:.0%} to {1 - share:.0%}."
    )
    return [Finding(message, share, limits.action_share, ids_of(evidence), action)]


@detector(need.ENTROPY, steps=3)
def entropy_collapse(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a policy entropy at a fraction of its highest value, before the policy has solved its tasks."""
    series = [b.metrics[metric.ENTROPY] for b in batches]
    if max(series) <= SAME:
        return []
    since = fallen_since(series, limits.entropy_fall)
    if since is None:
        return []
    left, began = series[-1] / max(series), batches[since].step
    ids = ids_of(batches[-1].rollouts)
    measured = f"policy entropy fell to {series[-1]:.3g}, {left:.0%} of its highest in {len(series)} steps"
    if better := improvement(batches, limits):
        message = f"the policy becomes certain of good answers: {better} while {measured}."
        return [Finding(message, left, limits.entropy_fall, ids, severity="hint")]
    message = f"the policy stopped exploring: {measured}."
    return [Finding(message, left, limits.entropy_fall, ids, began=began)]


@detector(need.ENTROPY, reads=(metric.ENTROPY_WEIGHT,), steps=3)
def entropy_rise(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a policy entropy that rises to a multiple of its lowest value while nothing improves. If an entropy bonus
    causes it, it began at the first step."""
    series = [max(b.metrics[metric.ENTROPY], LEAST_ENTROPY) for b in batches]
    since = fallen_since([1 / x for x in series], 1 / RISE)
    if since is None or improvement(batches, limits):
        return []
    times, ids = series[-1] / min(series), ids_of(batches[-1].rollouts)
    message = (
        "the policy becomes random: lower the entropy bonus or the learning rate. Its entropy rose to "
        f"{series[-1]:.3g} nats, {times:.1f} times its lowest in {len(series)} steps."
    )
    began = batches[0 if batches[-1].metrics.get(metric.ENTROPY_WEIGHT, 0.0) > 0 else since].step
    return [Finding(message, times, RISE, ids, began=began)]


@detector(need.MISMATCH, reads=(metric.STALENESS,))
def logprob_mismatch(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find rollouts from servers whose policy is far from the one under training."""
    latest = batches[-1]
    gap = latest.metrics[metric.LOGPROB_MISMATCH]
    if not gap > limits.logprob_mismatch:
        return []
    behind = latest.metrics.get(metric.STALENESS, 0.0)
    fix = (
        "lower rollouts.max_staleness or the learning rate"
        if behind > 0
        else "serve the model in the trainer's precision (`grpo-tui doctor --server URL`)"
    )
    message = (
        f"rollouts do not come from the policy in training: {fix}. Token log-probs differ by {gap:.2g} nats on "
        f"average, and the sampling policy was {behind:.2g} steps behind."
    )
    return [Finding(message, gap, limits.logprob_mismatch, ids_of(latest.rollouts))]


@detector(need.SAMPLER, need.KL, reads=(metric.GRAD_NORM,))
def sampler_mismatch(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find a sampler that differs from the trainer by a relevant share of the KL to the reference. Without a gradient,
    the policy stays at its reference, whatever the sampler does."""
    if other_logprobs(batches):
        message = (
            "the sampler and the trainer differ in the log-probs of the same tokens: check their order, the "
            f"temperature and the weights. Their KL is {(kl := sampler_kl(batches[-SOON:])):.2g} nats per token."
        )
        ids, began = ids_of(batches[-1].rollouts), batches[-SOON].step
        return [Finding(message, kl, OTHER_LOGPROBS, ids, "log-probs", began=began)]
    latest = batches[-limits.window // 2 :]
    if len(latest) < limits.window // 2 or all(b.metrics.get(metric.GRAD_NORM) == 0 for b in latest):
        return []
    kl = sampler_kl(latest)
    learned = fmean(abs(b.metrics[metric.KL_MEAN]) for b in latest)
    if not kl > max(limits.sampler_share * learned, ROUNDING):
        return []
    message = (
        "the sampling policy is not the policy in training: sample with the trainer's weights and number format "
        f"(model.compute, model.sampling), or raise the learning rate if it is small. Their KL is {kl:.2g} nats per "
        f"token, and the policy has moved {learned:.2g} from its reference."
    )
    share = kl / max(learned, SAME)
    return [Finding(message, share, limits.sampler_share, ids_of(batches[-1].rollouts), began=latest[0].step)]


def sampler_kl(batches: Sequence[Batch]) -> float:
    """Return the mean KL between sampler and trainer, in nats per token; 0 where it is unknown."""
    return fmean(b.metrics.get(metric.SAMPLER_KL, 0.0) for b in batches)


def other_logprobs(batches: Sequence[Batch]) -> bool:
    """Return whether sampler and trainer log-probs, at the same version, differ more than kernels explain."""
    recent = batches[-SOON:]
    stale = any(b.metrics.get(metric.STALENESS, 0.0) > 0 for b in recent)
    return len(recent) == SOON and not stale and sampler_kl(recent) > OTHER_LOGPROBS


@detector(need.LENGTHS, steps=3)
def length_collapse(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find trajectories that became much shorter, in agent tokens if known, else in turns."""
    by_tokens = all(r.tokens for b in batches for r in b.rollouts)
    series = [fmean(r.tokens if by_tokens else r.turns or 0 for r in b.rollouts) for b in batches]
    since = fallen_since(series, limits.length_fall) if max(series) else None
    if since is None:
        return []
    left = series[-1] / max(series)
    unit = "tokens" if by_tokens else "turns"
    shortest = sorted(batches[-1].rollouts, key=lambda r: (r.tokens, r.turns or 0))
    message = f"trajectories shrank to {series[-1]:.3g} {unit}, {left:.0%} of their highest in {len(series)} steps"
    better = improvement(batches, limits)
    message = f"{message}, while {better}." if better else f"{message}."
    severity: Severity = "hint" if better else "warning"
    return [Finding(message, left, limits.length_fall, ids_of(shortest), "", severity, batches[since].step)]


@detector(need.REWARDS, share=True)
def groups_without_variance(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find many groups whose rollouts all have the same reward: they carry no gradient."""
    groups = groups_of(r for b in batches for r in b.rollouts)
    flat = [g for g in groups if max(map(total_of, g)) - min(map(total_of, g)) <= SAME]
    share = len(flat) / len(groups) if groups else 0.0
    measured = f"{len(flat):,} of {len(groups):,} groups have the same reward for all rollouts and teach nothing"
    if len(groups) >= MANY and fmean(map(len, groups)) < SMALL and share > FLATTER * (larger := flat_at(USUAL, groups)):
        message = (
            f"groups are too small: raise training.num_generations. {measured}; of groups of {USUAL}, about "
            f"{larger:.0%} would."
        )
        ids, began = ids_of(g[0] for g in flat), min(batches[0].step or 0, 1)
        return [Finding(message, share, FLATTER * larger, ids, SMALL_GROUPS, began=began)]
    if share <= limits.no_variance_share:
        return []
    totals = [total_of(r) for g in groups for r in g]
    highest = max(totals) if max(totals) > min(totals) else math.inf
    stuck = [g for g in flat if not all(r.correct or (r.correct is None and r.total == highest) for r in g)]
    if len(stuck) / len(groups) <= 1 - limits.no_variance_share:
        right = "is right" if any(r.correct for g in flat for r in g) else f"earns the highest reward, {highest:.3g}"
        message = f"solved: in most groups every answer {right}. {measured}; harder tasks would teach more."
        return [Finding(message, share, limits.no_variance_share, ids_of(g[0] for g in flat), "solved", "good")]
    wrong = fmean(r.correct is False for g in stuck for r in g)
    kind = "easier" if wrong > 0.5 else "other"
    message = f"{measured}: {kind} tasks would teach more."
    return [Finding(message, share, limits.no_variance_share, ids_of(g[0] for g in stuck), began=batches[0].step)]


@detector(share=True)
def unreadable_calls(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find many rollouts with an unparsable call."""
    return _frequent("contain an unreadable call, so the tool never ran", batches, lambda r: r.unreadable, limits)


@detector(share=True, urgent=0.25)
def errors(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find many rollouts that ended in an error."""
    return _frequent("ended in an error", batches, lambda r: r.failed)


@detector(share=True, urgent=0.5, reports="errors")
def tool_errors(batches: Sequence[Batch], limits: DiagnosisConfig) -> list[Finding]:
    """Find many rollouts with failed calls."""
    return _frequent("have a failed tool call", batches, lambda r: r.call_failed, limits, "tools")


def _frequent(
    message: str,
    batches: Sequence[Batch],
    has: Callable[[RolloutSummary], bool],
    limits: DiagnosisConfig | None = None,
    subject: str = "",
) -> list[Finding]:
    """Find many rollouts that have something. With `limits`, it is a hint if the policy improves: while it learns its
    tools, it makes such mistakes."""
    rollouts = [r for b in batches for r in b.rollouts]
    hit = [r for r in rollouts if has(r)]
    if len(hit) <= TROUBLE_SHARE * len(rollouts):
        return []
    better = improvement(batches, limits) if limits is not None else ""
    share, while_ = len(hit) / len(rollouts), f", while {better}" if better else ""
    sentence = f"{len(hit):,} of {len(rollouts):,} rollouts {message}{while_}."
    severity: Severity = "hint" if better else "warning"
    return [Finding(sentence, share, TROUBLE_SHARE, ids_of(hit), subject, severity, batches[0].step)]


def improvement(batches: Sequence[Batch], limits: DiagnosisConfig) -> str:
    """Describe the policy's improvement over the batches, or return an empty text without one.

    Uses success if it is known, else the mean reward.
    """
    known = [b for batch in batches if (b := need.having(batch, (need.SUCCESS,)))]
    if len(known) > 1:
        start, end = map(success_of, halves(known))
        if end > start + limits.success_rise:
            return f"success rose from {start:.0%} to {end:.0%}"
        return f"success stays at {end:.0%}" if end >= SOLVED and start - end <= SLIP else ""
    known = [b for batch in batches if (b := need.having(batch, (need.REWARDS,)))]
    if len(known) > 1:
        start, end = map(mean_total, halves(known))
        if (end - start) / spread_of(known) > limits.reward_rise:
            return f"the mean reward rose from {start:.3g} to {end:.3g}"
    return ""


def steady(batches: Sequence[Batch]) -> str:
    """Describe success, or else the reward, that does not fall from the earlier half to the later half by two standard
    errors; empty if it falls or is unknown."""
    for name, value in (("success", lambda r: r.correct), ("the reward", lambda r: r.total)):
        if (found := fall_of(batches, value)) is not None:
            return "" if found[0] > ERRORS * found[1] > 0 else f"{name} does not fall"
    return ""


def fall_of(batches: Sequence[Batch], value: Callable[[RolloutSummary], float | None]) -> tuple[float, float] | None:
    """Return the fall of a mean from the earlier half to the later, and its standard error; None if it is unknown."""
    values = ([value(r) for b in half for r in b.rollouts] for half in halves(batches))
    sides = [[float(x) for x in side if x is not None and math.isfinite(x)] for side in values]
    if not all(sides):
        return None
    return fmean(sides[0]) - fmean(sides[1]), math.sqrt(sum(deviation(side) ** 2 / len(side) for side in sides))


def ids_of(rollouts: Iterable[RolloutSummary]) -> tuple[str, ...]:
    """Return the ids of a finding's evidence. `Detector` keeps the first few."""
    return tuple(r.id for r in rollouts)
