"""Check rollouts that were scored together: groups, weighted sums, statistics, advantages, masks and lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from ...runs.updates import Block
from ..dumps import std_of
from ..items import RecordedRollout, groups_of
from ..ledger import SINGLE, Report
from .settings import Settings

UNSCORED = (1, 10)
"""The first TRL version known to leave a rollout without any reward out of its group."""


class GenerationCheck:
    """Checks generations one after another."""

    def __init__(self, report: Report, settings: Settings) -> None:
        self.report = report
        self.settings = settings

    def check(self, block: Block, items: Mapping[str, RecordedRollout]) -> None:
        """Check the rollouts of one generation and the metrics that TRL computed from them."""
        known = [items[id_] for id_ in block.data["ids"] if id_ in items]
        scored = self.rollouts(known)
        place = f"step {block.step}"
        if scored is not None:
            for name, (low, high) in self._metrics(block, known, scored).items():
                within(self.report, place, f"metric {name}", block.data["metrics"].get(name), low, high)
        self._masks(block, place)

    def rollouts(self, items: Sequence[RecordedRollout]) -> Scored | None:
        names = list(dict.fromkeys(name for item in items for name in values_of(item)))
        if not items or not names:
            self.report.given["advantages"] = "the values of reward functions are not recorded"
            return None
        groups = groups_of(items)
        for group in groups:
            self._group(group)
        ordered = [item for group in groups for item in group]
        values = [[values_of(item).get(name, math.nan) for name in names] for item in ordered]
        parts = [(name, value.weight) for item in ordered for name, value in item.components]
        weights = [next((w for n, w in parts if n == name and w is not None), None) for name in names]
        if any(w is None for w in weights):
            self.report.given["advantages"] = "the weights of reward functions are not recorded"
            return None
        if self.settings.version < UNSCORED and any(all(map(math.isnan, row)) for row in values):
            self.report.given["some advantages"] = (
                f"TRL {self.settings.trl} treats a rollout without rewards as another"
            )
            return None
        scored = score(values, [w or 0.0 for w in weights], self.settings)
        for item, reward, right, slack in zip(ordered, scored.rewards, scored.advantages, scored.slack, strict=True):
            recorded = None if item.record.breakdown is None else item.record.breakdown.total
            self.report.number(
                item.place,
                "weighted sum of rewards",
                recorded,
                None if math.isnan(reward) else reward,
                tolerance=SINGLE,
            )
            listed = item.row.advantage
            self.report.number(item.place, "advantage in the list", listed, item.record.advantage, tolerance=SINGLE)
            self.report.number(item.place, "advantage", item.record.advantage, right, tolerance=slack, size=1.0)
        return scored

    def _group(self, group: Sequence[RecordedRollout]) -> None:
        place = f"step {group[0].row.step}, group {group[0].record.trajectory.group}"
        self.report.same(place, "rollouts in the group", len(group), self.settings.num_generations)
        if not self.settings.environments:  # each may write its own prompt
            prompts = {item.record.trajectory.prompt for item in group}
            self.report.same(place, "prompts in the group", len(prompts), 1)

    def _metrics(
        self, block: Block, items: Sequence[RecordedRollout], scored: Scored
    ) -> dict[str, tuple[float, float]]:
        """Return TRL's metrics of a generation, each with its smallest and largest possible value."""
        found: dict[str, float] = {}
        if self.settings.version >= UNSCORED:  # earlier versions log the reward without weights
            found = {"reward": nan_mean(scored.rewards), "reward_std": nan_std(scored.rewards)}
        for name in {name: None for item in items for name in values_of(item)}:
            column = [values_of(item).get(name, math.nan) for item in items]
            found |= {f"rewards/{name}/mean": nan_mean(column), f"rewards/{name}/std": nan_std(column)}
        data = block.data
        lengths = [float(n) for n in data["lengths"]]
        if not data["tools"] and not data["pad_is_eos"]:
            ended = [n for n, e in zip(lengths, data["ended"], strict=True) if e] or [0.0]
            for kind, numbers in (("", lengths), ("terminated_", ended)):
                found[f"completions/mean_{kind}length"] = fmean(numbers)
                found[f"completions/min_{kind}length"] = min(numbers)
                found[f"completions/max_{kind}length"] = max(numbers)
            found["completions/clipped_ratio"] = 1 - sum(data["ended"]) / len(lengths)
        pairs = {name: (value, value) for name, value in found.items()}
        low, high = scored.zero
        return pairs | {"frac_reward_zero_std": (low / len(items), high / len(items))}

    def _masks(self, block: Block, place: str) -> None:
        data = block.data
        rows = zip(data["ids"], data["lengths"], data["ended"], data["in_mask"], data["in_loss"], strict=True)
        for id_, length, ended, in_mask, in_loss in rows:
            where = f"{place}, rollout {id_}"
            masked = self.settings.mask_truncated_completions and not ended
            right = 0 if masked else length
            if data["pad_is_eos"] and in_mask == right + 1:  # the last token is EOS, which is also the padding
                right += 1
            self.report.same(where, "tokens in the mask", int(in_mask), right)
            if not data["tools"]:
                self.report.same(where, "tokens in the loss", int(in_loss), right)
        if data["items"] is not None:
            self.report.number(place, "tokens that the loss divides by", data["items"], float(sum(data["in_loss"])))


def values_of(item: RecordedRollout) -> dict[str, float]:
    """Return the values of reward functions by name, with NaN for functions that do not apply."""
    return {name: math.nan if value.raw is None else value.raw for name, value in item.components}


def within(
    report: Report, place: str, kind: str, recorded: float | None, low: float, high: float, coarse: float = 1.0
) -> None:
    """Compare a metric that may lie anywhere in a small range. Skip metrics that TRL does not have."""
    if recorded is None or (math.isnan(recorded) and math.isnan(low)):
        return
    right = min(max(recorded, low), high) if low <= high else low
    report.number(place, kind, recorded, right, tolerance=2e-5 * coarse, size=0.01)


FLOOR = 1e-4
"""Added to a standard deviation before it divides."""
ROUNDING = 4e-7
"""The approximate rounding error of a difference of float32 rewards, relative to their size."""


@dataclass(frozen=True)
class Scored:
    """Rollouts that were scored together. rewards: their weighted sums. slack: the possible float32 error of each
    advantage. zero: the minimum and maximum number of rollouts whose group has no spread."""

    rewards: list[float]
    advantages: list[float]
    slack: list[float]
    zero: tuple[int, int]


def nan_mean(values: Sequence[float]) -> float:
    """Return the mean of the known values; NaN if there are none."""
    known = [v for v in values if not math.isnan(v)]
    return fmean(known) if known else math.nan


def nan_std(values: Sequence[float]) -> float:
    """Return the standard deviation with divisor n − 1; NaN for fewer than two values."""
    known = [v for v in values if not math.isnan(v)]
    return std_of(known, 1) if len(known) > 1 else math.nan


def weighted(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted sum of the values that apply; NaN if there are none."""
    known = [v * w for v, w in zip(values, weights, strict=True) if not math.isnan(v)]
    return math.fsum(known) if known else math.nan


def score(values: Sequence[Sequence[float]], weights: Sequence[float], settings: Settings) -> Scored:
    """Return rewards and advantages of rollouts. values: [N, K], for K functions, ordered by group."""
    rewards, n = [weighted(row, weights) for row in values], settings.num_generations
    normalized = settings.multi_objective_aggregation == "normalize_then_sum"
    if normalized:
        columns = [_groups(column, n) for column in zip(*values, strict=True)]
        normal = list(zip(*([v for group in groups for v in _normal(group)] for groups in columns), strict=True))
        compared = [weighted(row, weights) for row in normal]
        spreads = [std for groups in columns for group in groups if (std := nan_std(group)) > FLOOR]
        inner = max(map(_largest, values), default=0.0) / min(spreads, default=FLOOR)
        size = [(1.0 + _largest(row)) * (1.0 + inner) for row in normal]
        groups = [compared]
    else:
        compared, groups = rewards, _groups(rewards, n)
        size = [_largest(group) for group in groups for _ in group]
    means = [nan_mean(group) for group in groups for _ in group]
    stds = [nan_std(group) for group in groups for _ in group]
    if settings.scale_rewards == "batch":
        stds = [nan_std(compared)] * len(compared)
    divisors = [std + FLOOR if normalized or settings.scale_rewards != "none" else 1.0 for std in stds]
    raw = [(c - m) / d for c, m, d in zip(compared, means, divisors, strict=True)]
    advantages = [0.0 if math.isnan(a) else a for a in raw]
    slack = [
        ROUNDING * s / (d if not math.isnan(d) else 1.0) + 1e-5 * (1 + abs(a))
        for s, d, a in zip(size, divisors, advantages, strict=True)
    ]
    close = sum(std <= 1e-8 + ROUNDING * (1 + z) for std, z in zip(stds, size, strict=True))
    exact = n & (n - 1) == 0  # then the mean of equal values is exact
    return Scored(rewards, advantages, slack, (sum(std == 0 for std in stds) if exact else 0, close))


def _groups(values: Sequence[float], n: int) -> list[Sequence[float]]:
    return [values[start : start + n] for start in range(0, len(values), n)]


def _normal(group: Sequence[float]) -> list[float]:
    mean, std = nan_mean(group), nan_std(group)
    return [(v - mean) / (std + FLOOR) for v in group]


def _largest(values: Sequence[float]) -> float:
    return max((abs(v) for v in values if not math.isnan(v)), default=0.0)
