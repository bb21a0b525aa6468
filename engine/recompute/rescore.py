"""Compute rewards and advantages of a training run under another reward configuration.

The result is exact for the recorded rollouts. In a real run, later rollouts would differ because the policy would have
learned something else. Running statistics come from the record. Components without a weight were not recorded, so they
cannot get one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ...configs.errors import GrpoTuiError
from ...configs.schema import RunConfig
from ...configs.sections.training import METHODS
from ...envs.trajectory import ComponentScore, Trajectory
from ...rewards.advantages import packaged_method
from ...rewards.breakdown import AdvantageFormula, ComponentValue, NormalizedBy, RewardBreakdown, StepReward
from ...rewards.metrics import moments
from ...rewards.penalties import BUILT_IN, Episode
from .advantages import returns_of, signals
from .items import RecordedRollout, groups_of
from .rewards import normalize

ROUNDING = 1e-6
"""Advantages below this count as zero."""
Judged = Mapping[str, Mapping[str, Any]]
"""By rollout number: the `scores` of other reward functions, and whether the rollout is `correct`."""


class RescoreError(GrpoTuiError, ValueError):
    """The record lacks a number that the new configuration needs. The message is one sentence."""


@dataclass(frozen=True)
class Flip:
    """A rollout whose advantage changes sign. cause: the component that moved it most relative to its group."""

    step: int
    group: str
    rollout: str
    before: float
    after: float
    cause: str


@dataclass
class Rescored:
    """The result of rescoring. rollouts: the number of rescored rollouts. reward: the mean before and after. gained,
    lost: groups that carry a signal only after, or only before."""

    rollouts: int = 0
    groups: int = 0
    reward: tuple[float, float] = (0.0, 0.0)
    flips: list[Flip] = field(default_factory=list)
    gained: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    @property
    def causes(self) -> Counter[str]:
        return Counter(flip.cause for flip in self.flips)


def rescore(
    steps: Iterator[tuple[int, list[RecordedRollout]]], old: RunConfig, new: RunConfig, judged: Judged | None = None
) -> Rescored:
    """Compute the advantages of every step with both configurations. Raises RescoreError."""
    result = Rescored()
    sums = [0.0, 0.0]
    for step, items in steps:
        changed = _changed(items, old, new, step, judged)
        before, after = _advantages(items, old), _advantages(changed, new)
        for old_group, new_group in zip(groups_of(items), groups_of(changed), strict=True):
            result.groups += 1
            name = old_group[0].record.trajectory.group
            was, now = (any(abs(found[i.row.n]) > ROUNDING for i in old_group) for found in (before, after))
            if was != now:
                (result.gained if now else result.lost).append(name)
            shift = _shifts(old_group, new_group)
            for item in old_group:
                a, b = before[item.row.n], after[item.row.n]
                if min(a, b) < -ROUNDING and max(a, b) > ROUNDING:
                    shifts = shift[item.row.n]
                    cause = max(shifts, key=lambda n: shifts[n] * (1 if b > a else -1), default="")
                    result.flips.append(Flip(step, name, item.row.id, a, b, cause))
        for index, batch in enumerate((items, changed)):
            sums[index] += math.fsum(i.record.breakdown.total or 0.0 for i in batch if i.record.breakdown is not None)
        result.rollouts += len(items)
    result.reward = (sums[0] / max(result.rollouts, 1), sums[1] / max(result.rollouts, 1))
    return result


def _advantages(items: Sequence[RecordedRollout], config: RunConfig) -> dict[int, float]:
    """Return by rollout number the mean advantage over the rollout's tokens, 0 in groups without signal."""
    training = config.training
    if training.advantages not in METHODS:
        raise RescoreError(f"training.advantages is {training.advantages}, whose code is not run here")
    method = packaged_method(training.advantages, training.compare_shaping)
    groups = groups_of(items)
    returns = [[returns_of(item) for item in group] for group in groups]
    carry = signals(method, returns, training)
    found: dict[int, float] = {}
    formulas = method.compare(returns, training.scale_advantages)
    for group, signal, computed in zip(groups, carry, formulas, strict=True):
        for item, formula in zip(group, computed, strict=True):
            found[item.row.n] = _mean(item, formula) if signal else 0.0
    return found


def _mean(item: RecordedRollout, formula: AdvantageFormula | None) -> float:
    counts = item.tokens_by_turn
    if formula is None or not sum(counts):
        return 0.0
    return math.fsum((formula.advantage(t) or 0.0) * n for t, n in enumerate(counts)) / sum(counts)


def _shifts(before: Sequence[RecordedRollout], after: Sequence[RecordedRollout]) -> dict[int, dict[str, float]]:
    """Return by rollout number how far each component moved the reward, minus the group mean."""
    moved: dict[int, dict[str, float]] = {}
    for old, new in zip(before, after, strict=True):
        sums: dict[str, float] = {}
        for item, sign in ((old, -1.0), (new, 1.0)):
            for name, value in item.components:
                sums[name] = sums.get(name, 0.0) + sign * (value.contribution or 0.0)
        moved[old.row.n] = sums
    names = {name for sums in moved.values() for name in sums}
    means = {name: math.fsum(sums.get(name, 0.0) for sums in moved.values()) / len(moved) for name in names}
    return {n: {name: sums.get(name, 0.0) - mean for name, mean in means.items()} for n, sums in moved.items()}


def _changed(
    items: list[RecordedRollout], old: RunConfig, new: RunConfig, step: int, judged: Judged | None
) -> list[RecordedRollout]:
    if judged is not None:
        items = [_with(item, trajectory=_scored(item, judged)) for item in items]
    raw = [_raw(item, old, new, judged=judged is not None) for item in items]
    sums: dict[tuple[str, str], list[float]] = {}
    for item, values in zip(items, raw, strict=True):
        for name in dict.fromkeys(name for found in values for name in found):
            total = math.fsum(v for found in values if (v := found.get(name)) is not None)
            sums.setdefault((item.record.trajectory.group, name), []).append(total)
    return [_rewarded(item, values, sums, old, new, step) for item, values in zip(items, raw, strict=True)]


def _scored(item: RecordedRollout, judged: Judged) -> Trajectory:
    trajectory = item.record.trajectory
    steps = [replace(step, scores=()) for step in trajectory.steps]
    found = judged.get(str(item.row.n))
    if found is None or not steps:
        return replace(trajectory, steps=tuple(steps))
    steps[-1] = replace(steps[-1], scores=tuple(ComponentScore(*values) for values in found["scores"]))
    return replace(trajectory, steps=tuple(steps), correct=found["correct"])


def _raw(item: RecordedRollout, old: RunConfig, new: RunConfig, *, judged: bool) -> list[dict[str, float | None]]:
    trajectory, breakdown = item.record.trajectory, _breakdown(item)
    found = [{name: value.raw for name, value in step.components.items()} for step in breakdown.steps]
    rules = new.rewards.penalties
    if rules != old.rewards.penalties or new.rewards.w_penalty != old.rewards.w_penalty:
        episode = Episode(trajectory)
        active = [rule(amount) for rule in BUILT_IN if (amount := getattr(rules, rule.id))]
        for values, step, reward in zip(found, episode.steps, breakdown.steps, strict=True):
            paid = [p.amount for rule in active if (p := rule.check(episode, step)) is not None]
            known = {rule.id for rule in BUILT_IN}
            paid += [p.amount for p in reward.penalties if p.rule not in known]
            values["penalty"] = float(math.fsum(paid))
    if judged:
        functions = {name for step in breakdown.steps for name in step.components} - set(old.rewards.weights)
        for values, step in zip(found, trajectory.steps, strict=True):
            for name in functions:
                values.pop(name, None)
            values.update({s.name: s.value for s in step.scores})
            if "task" in values and trajectory.correct is not None and values["task"] is not None:
                values["task"] = float(trajectory.correct)
    for name, weight in new.rewards.weights.items():
        if weight and not old.rewards.weights.get(name) and not any(name in values for values in found):
            known = ", ".join(dict.fromkeys(n for values in found for n in values)) or "none"
            raise RescoreError(f"{name} has weight {weight:g}, but the run did not record it; it recorded {known}")
    return found


def _rewarded(
    item: RecordedRollout,
    raw: Sequence[Mapping[str, float | None]],
    sums: Mapping[tuple[str, str], Sequence[float]],
    old: RunConfig,
    new: RunConfig,
    step: int,
) -> RecordedRollout:
    breakdown, group = _breakdown(item), item.record.trajectory.group
    counts = Counter(name for values in raw for name, value in values.items() if value is not None)
    steps: list[StepReward] = []
    for values, reward, turn in zip(raw, breakdown.steps, item.record.trajectory.steps, strict=True):
        scores = {score.name: score.weight for score in turn.scores}
        components: dict[str, ComponentValue] = {}
        for name, value in values.items():
            recorded = reward.components.get(name)
            weight = scores.get(name)
            if weight is None:
                kept = new.rewards.weights.get(name) == old.rewards.weights.get(name)
                if recorded is not None and kept and new.rewards.anneal_steps == old.rewards.anneal_steps:
                    weight = recorded.weight
                elif name in new.rewards.weights:
                    weight = new.rewards.weight(name, step - 1)
            same = new.rewards.normalization_of(name) == old.rewards.normalization_of(name)
            if same and recorded is not None and recorded.raw == value:
                normalized = recorded.normalized
            else:
                normalized = _normalized(value, name, breakdown, sums[group, name], counts[name], new)
            paid = None if normalized is None or weight is None else weight * normalized
            components[name] = ComponentValue(value, normalized, weight, paid)
        total = math.fsum(v.contribution or 0.0 for v in components.values())
        steps.append(replace(reward, components=components, total=total))
    whole = math.fsum(s.total or 0.0 for s in steps)
    return _with(item, breakdown=replace(breakdown, steps=tuple(steps), total=whole))


def _normalized(
    value: float | None, name: str, breakdown: RewardBreakdown, sums: Sequence[float], count: int, config: RunConfig
) -> float | None:
    """Normalise a value by its group or by the recorded statistics."""
    mode, settings = config.rewards.normalization_of(name), config.rewards.normalization
    if value is None or mode == "none":
        return value
    used = breakdown.normalized_by.get(name)
    if mode == "group":
        found = moments(sums)
        used = NormalizedBy(mode, found.mean, math.sqrt(found.m2 / max(found.count - 1, 1)))
    elif used is None or used.mode == "group":
        raise RescoreError(f"{name} is normalised by {mode}, but the run did not record its running statistics")
    else:
        used = NormalizedBy(mode, used.mean if mode == "zscore" else 0.0, used.std)
    return normalize(value, used, count, settings)


def _breakdown(item: RecordedRollout) -> RewardBreakdown:
    if item.record.breakdown is None:
        raise RescoreError(f"{item.place}: its reward components were not recorded")
    return item.record.breakdown


def _with(item: RecordedRollout, **changes: object) -> RecordedRollout:
    return RecordedRollout(item.row, replace(item.record, **changes), item.uses, item.tokens)  # type: ignore[arg-type]
