"""Rollouts that were scored together: groups, weighted sums, statistics, advantages, masks and lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...runs.updates import Block
from ..items import Item, groups_of
from ..ledger import SINGLE, Report
from .rewards import Scored, nan_mean, nan_std, score
from .settings import Settings

UNSCORED = (1, 10)
"""The version of TRL since which a rollout without any reward is left out of its group, as far as was compared."""


class GenerationCheck:
    """Checks generation after generation."""

    def __init__(self, report: Report, settings: Settings) -> None:
        self.report = report
        self.settings = settings

    def check(self, block: Block, items: Mapping[str, Item]) -> None:
        """Check the rollouts of one generation, and the metrics that TRL computed from them."""
        known = [items[id_] for id_ in block.data["ids"] if id_ in items]
        scored = self.rollouts(known)
        place = f"step {block.step}"
        if scored is not None:
            for name, (least, most) in self._metrics(block, known, scored).items():
                within(self.report, place, f"metric {name}", block.data["metrics"].get(name), least, most)
        self._masks(block, place)

    def rollouts(self, items: Sequence[Item]) -> Scored | None:
        """Check groups, sums and advantages of rollouts that were scored together."""
        names = list(dict.fromkeys(name for item in items for name in values_of(item)))
        if not items or not names:
            self.report.given["advantages"] = "the values of reward functions are not recorded"
            return None
        groups = groups_of(items)
        for group in groups:
            self._group(group)
        ordered = [item for group in groups for item in group]
        values = [[values_of(item).get(name, math.nan) for name in names] for item in ordered]
        weights = [next((w for i in ordered if (w := weights_of(i).get(name)) is not None), None) for name in names]
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

    def _group(self, group: Sequence[Item]) -> None:
        place = f"step {group[0].row.step}, group {group[0].record.trajectory.group}"
        self.report.same(place, "rollouts in the group", len(group), self.settings.num_generations)
        if not self.settings.environments:  # each may write its own prompt
            prompts = {item.record.trajectory.prompt for item in group}
            self.report.same(place, "prompts in the group", len(prompts), 1)

    def _metrics(self, block: Block, items: Sequence[Item], scored: Scored) -> dict[str, tuple[float, float]]:
        """Return TRL's metrics of a generation, each with its least and largest possible value."""
        found: dict[str, float] = {}
        if self.settings.version >= UNSCORED:  # before, the logged reward had no weights
            found = {"reward": nan_mean(scored.rewards), "reward_std": nan_std(scored.rewards)}
        for name in {name: None for item in items for name in values_of(item)}:
            column = [values_of(item).get(name, math.nan) for item in items]
            found |= {f"rewards/{name}/mean": nan_mean(column), f"rewards/{name}/std": nan_std(column)}
        data = block.data
        lengths = [float(n) for n in data["lengths"]]
        if not data["tools"] and not data["pad_is_eos"]:
            ended = [n for n, e in zip(lengths, data["ended"], strict=True) if e] or [0.0]
            for kind, numbers in (("", lengths), ("terminated_", ended)):
                found[f"completions/mean_{kind}length"] = math.fsum(numbers) / len(numbers)
                found[f"completions/min_{kind}length"] = min(numbers)
                found[f"completions/max_{kind}length"] = max(numbers)
            found["completions/clipped_ratio"] = 1 - sum(data["ended"]) / len(lengths)
        pairs = {name: (value, value) for name, value in found.items()}
        least, most = scored.zero
        return pairs | {"frac_reward_zero_std": (least / len(items), most / len(items))}

    def _masks(self, block: Block, place: str) -> None:
        data = block.data
        rows = zip(data["ids"], data["lengths"], data["ended"], data["in_mask"], data["in_loss"], strict=True)
        for id_, length, ended, in_mask, in_loss in rows:
            where = f"{place}, rollout {id_}"
            masked = self.settings.mask_truncated_completions and not ended
            right = 0 if masked else length
            if data["pad_is_eos"] and in_mask == right + 1:  # its last token is an end token, which is the padding, too
                right += 1
            self.report.same(where, "tokens in the mask", int(in_mask), right)
            if not data["tools"]:
                self.report.same(where, "tokens in the loss", int(in_loss), right)
        if data["items"] is not None:
            self.report.number(place, "tokens that the loss divides by", data["items"], float(sum(data["in_loss"])))


def values_of(item: Item) -> dict[str, float]:
    """Return the values of reward functions by name, NaN where one does not apply."""
    breakdown = item.record.breakdown
    steps = () if breakdown is None else breakdown.steps
    return {n: math.nan if v.raw is None else v.raw for step in steps for n, v in step.components.items()}


def weights_of(item: Item) -> dict[str, float | None]:
    """Return the weights of reward functions by name."""
    breakdown = item.record.breakdown
    return {n: v.weight for step in (breakdown.steps if breakdown else ()) for n, v in step.components.items()}


def within(
    report: Report, place: str, kind: str, recorded: float | None, least: float, most: float, coarse: float = 1.0
) -> None:
    """Compare a metric that may lie in a small range. A metric that TRL does not have is skipped."""
    if recorded is None or (math.isnan(recorded) and math.isnan(least)):
        return
    right = min(max(recorded, least), most) if least <= most else least
    report.number(place, kind, recorded, right, tolerance=2e-5 * coarse, size=0.01)
