"""Check rewards: penalties, raw values that follow from the trajectory, normalisation, weights, sums, statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...configs.sections.rewards import NormalizationConfig, RewardsConfig
from ...rewards.metrics import REPETITION, Moments, merge, moments, repeated
from ...rewards.penalties import BUILT_IN, Episode
from ..runs.types import NormalizedBy, RewardBreakdown
from .items import RecordedRollout, groups_of
from .ledger import SINGLE, Report


class Rewards:
    """Checks rewards, one step after another. running: whether the running statistics come from exactly the recorded
    rollouts, so that they can be followed. in_force: see `check.recompute_steps`."""

    def __init__(
        self,
        config: RewardsConfig,
        report: Report,
        running: bool,
        in_force: Sequence[tuple[int, Mapping[str, object]]] = (),
    ) -> None:
        self.config = config
        self.report = report
        self.follows = running
        self.statistics: dict[str, Moments] = {}
        self.in_force = in_force
        self.weights: Mapping[str, float] = config.weights
        # A record of an earlier version has no such events, and its configuration names the rules of that version.
        rules = config.penalties.model_fields_set or set(type(config.penalties).model_fields)
        self._rules({rule.id: getattr(config.penalties, rule.id) for rule in BUILT_IN if rule.id in rules})
        for name in config.extra_components:
            report.given[f"raw {name}"] = "its code is not run here"
        for name in ("curiosity", "coherence"):
            if getattr(config, f"w_{name}"):
                report.given[f"raw {name}"] = "it comes from hidden states, which are not recorded"

    def _rules(self, amounts: Mapping[str, float]) -> None:
        built_in = {rule.id: rule for rule in BUILT_IN}
        self.rules = [built_in[name](amount) for name, amount in amounts.items() if name in built_in and amount]
        self.own_rules = bool(self.config.penalty_rules) or any(name not in built_in for name in amounts)

    def _begin(self, step: int) -> None:
        for after, data in self.in_force:
            if after < step:
                self.weights = _amounts(data.get("weights"))
                self._rules(_amounts(data.get("rules")))

    def step(self, items: Sequence[RecordedRollout]) -> None:
        self._begin(items[0].row.step or 0)
        batch: dict[str, list[float]] = {}
        for item in items:
            breakdown = item.record.breakdown
            if breakdown is None:
                continue
            self._penalties(item, breakdown)
            self._raw(item, breakdown)
            self._sums(item, breakdown)
            for name, values in _by_component(item).items():
                batch.setdefault(name, []).extend(values)
        now = {name: moments(values) for name, values in batch.items()}
        for group in groups_of(items):
            self._normalized(group, now)
        for name, found in now.items():
            self.statistics[name] = merge(self.statistics.get(name, Moments()), found)

    def _penalties(self, item: RecordedRollout, breakdown: RewardBreakdown) -> None:
        episode = Episode(item.record.trajectory)
        known = {rule.id for rule in self.rules}
        if self.own_rules:
            self.report.given["penalties of other rules"] = "their code is not run here"
        for step, reward in zip(episode.steps, breakdown.steps, strict=True):
            found = [p for rule in self.rules if (p := rule.check(episode, step)) is not None]
            recorded = [p for p in reward.penalties if p.rule in known or not self.own_rules]
            place = f"{item.place}, turn {step.index + 1}"
            self.report.same(place, "penalties", [p.rule for p in recorded], [p.rule for p in found])
            for expected, stored in zip(found, recorded, strict=False):
                self.report.number(place, f"penalty {stored.rule}", stored.amount, expected.amount)

    def _raw(self, item: RecordedRollout, breakdown: RewardBreakdown) -> None:
        trajectory = item.record.trajectory
        again = repeated([s.action_key for s in trajectory.steps])
        last = len(breakdown.steps) - 1
        for i, (step, reward) in enumerate(zip(trajectory.steps, breakdown.steps, strict=True)):
            place = f"{item.place}, turn {i + 1}"
            values = {name: value.raw for name, value in reward.components.items()}
            for score in step.scores:
                if score.name not in self.config.weights:
                    right = score.value if score.value is not None and math.isfinite(score.value) else None
                    self.report.number(place, f"raw {score.name}", values.get(score.name), right)
            if "task" in values:
                outcome = trajectory.correct if trajectory.correct is not None else trajectory.env_reward
                if trajectory.correct is None and self.config.w_environment:
                    outcome = float(outcome or 0.0) - sum(s.reward or 0.0 for s in trajectory.steps)
                self.report.number(place, "raw task", values["task"], float(outcome or 0.0) if i == last else None)
            if "environment" in values:
                self.report.number(place, "raw environment", values["environment"], float(step.reward or 0.0))
            if "penalty" in values:
                paid = sum(p.amount for p in reward.penalties)
                self.report.number(place, "raw penalty", values["penalty"], float(paid))
            if "coherence" in values and again[i]:
                self.report.number(place, "raw coherence", values["coherence"], REPETITION)

    def _sums(self, item: RecordedRollout, breakdown: RewardBreakdown) -> None:
        after = (item.row.step or 1) - 1
        weights = {name: weight * self.config.annealing(name, after) for name, weight in self.weights.items()}
        weights |= {score.name: score.weight for step in item.record.trajectory.steps for score in step.scores}
        for i, step in enumerate(breakdown.steps):
            place = f"{item.place}, turn {i + 1}"
            for name, value in step.components.items():
                self.report.number(place, f"weight of {name}", value.weight, weights.get(name))
                right = None
                if value.weight is not None and value.normalized is not None:
                    right = value.weight * value.normalized
                self.report.number(place, f"contribution of {name}", value.contribution, right)
            paid = [v.contribution or 0.0 for v in step.components.values()]
            size = max(map(abs, paid), default=0.0)
            self.report.number(place, "reward of the turn", step.total, math.fsum(paid), size=size)
        total = math.fsum(s.total or 0.0 for s in breakdown.steps)
        self.report.number(item.place, "reward", breakdown.total, total, size=1.0)
        self.report.number(item.place, "reward in the list", item.row.reward, total, size=1.0, tolerance=SINGLE)

    def _normalized(self, group: Sequence[RecordedRollout], now: Mapping[str, Moments]) -> None:
        settings = self.config.normalization
        sums: dict[str, list[float]] = {}
        for item in group:
            for name, values in _by_component(item).items():
                sums.setdefault(name, []).append(math.fsum(values))
        for item in group:
            breakdown = item.record.breakdown
            if breakdown is None:
                continue
            counts = {name: len(values) for name, values in _by_component(item).items()}
            by = {
                name: self._statistics(item, name, now, sums)
                for name in counts
                if self.config.normalization_of(name) != "none"
            }
            for i, step in enumerate(breakdown.steps):
                place = f"{item.place}, turn {i + 1}"
                for name, value in step.components.items():
                    if value.raw is None:
                        continue
                    used = by.get(name)
                    right: float | None = value.raw
                    if used is not None:
                        right = normalize(value.raw, used, counts[name], settings)
                    elif name in by:
                        continue
                    self.report.number(place, f"normalised {name}", value.normalized, right, tolerance=1e-8)

    def _statistics(
        self, item: RecordedRollout, name: str, now: Mapping[str, Moments], sums: Mapping[str, list[float]]
    ) -> NormalizedBy | None:
        """Check and return the statistics that normalised a component of this rollout."""
        assert item.record.breakdown is not None
        used = item.record.breakdown.normalized_by.get(name)
        if used is None:
            self.report.given[f"normalised {name}"] = "the record lacks the statistics"
            return None
        mode = self.config.normalization_of(name)
        self.report.same(item.place, f"how {name} is normalised", used.mode, mode)
        mean, std = used.mean, used.std
        if mode == "group":
            found = moments(sums[name])
            mean, std = found.mean, math.sqrt(found.m2 / max(found.count - 1, 1))
        elif self.follows:
            found = self.statistics.get(name, Moments())
            if found.count < self.config.normalization.min_count:
                found = merge(found, now[name])
            mean, std = (found.mean if mode == "zscore" else 0.0), found.std
        else:
            return used
        size = max(abs(mean), std)
        self.report.number(item.place, f"mean that {name} is normalised by", used.mean, mean, tolerance=1e-7, size=size)
        self.report.number(item.place, f"std that {name} is normalised by", used.std, std, tolerance=1e-7, size=size)
        return used


def normalize(raw: float, by: NormalizedBy, count: int, settings: NormalizationConfig) -> float:
    """Normalise a value. count: the number of values of the rollout, whose sum mode `group` compares."""
    scale = max(by.std, settings.std_floor) + settings.epsilon
    if by.mode == "group":
        return (raw - by.mean / max(count, 1)) / scale
    return min(max((raw - by.mean) / scale, -settings.clip), settings.clip)


def _amounts(data: object) -> dict[str, float]:
    items = data.items() if isinstance(data, Mapping) else ()
    return {str(name): float(value) for name, value in items if isinstance(value, (int, float))}


def _by_component(item: RecordedRollout) -> dict[str, list[float]]:
    """Return each component's raw values over the steps where it is defined."""
    values: dict[str, list[float]] = {}
    for name, value in item.components:
        if value.raw is not None:
            values.setdefault(name, []).append(value.raw)
    return values
