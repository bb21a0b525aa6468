"""Check rollouts of other trainers: weighted sums, group statistics, advantages by rollout and by token, logged means.

A dump rarely declares its advantage formula. Then the formula that reproduces most groups counts as declared, and the
report names each rollout that differs from it. Component weights that are not recorded are inferred in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from ...configs import metric_names as metric
from ..runs.read.reader import RunReader
from .items import RecordedRollout, groups_of, steps_of
from .ledger import Report

CLOSE = 2e-4
"""Relative tolerance for advantages that were float32 or rounded when they were written."""
MEANS = ("reward/all/mean", "critic/score/max", "critic/score/min", metric.REWARD_MEAN)
"""Metrics of prime-rl and verl that are statistics of the rewards of a step. The last one is the importer's own mean,
except in dumps of verl, which logs it together with the others."""


@dataclass(frozen=True)
class Formula:
    """A formula for advantages, (r − mean) / (std + epsilon), over the rewards of the `group` or of the whole `step`.

    text: its description for people. std: `others` makes the mean that of the others in the group; empty: no division.
    less: the divisor of the variance is n − less.
    """

    text: str
    std: Literal["", "group", "step", "others"] = ""
    epsilon: float = 0.0
    less: int = 1
    mean: Literal["group", "step"] = "group"

    def compare(self, group: Sequence[float], step: Sequence[float]) -> list[float]:
        """Return the advantages of a group."""
        mean, divisor = fmean(step if self.mean == "step" else group), 1.0
        if self.std == "others":
            divisor = (len(group) - 1) / len(group)
        elif self.std:
            divisor = std_of(step if self.std == "step" else group, self.less) + self.epsilon
        return [(r - mean) / divisor if divisor else 0.0 for r in group]


def std_of(values: Sequence[float], less: int) -> float:
    """Return the standard deviation with divisor n − less; 0 for too few values."""
    mean = fmean(values)
    return math.sqrt(math.fsum((v - mean) ** 2 for v in values) / max(len(values) - less, 1))


FORMULAS: Mapping[str, tuple[Formula, ...]] = {
    "grpo": tuple(
        Formula(
            f"(r − mean) / (std + {epsilon:g}) of the group, std with {'n − 1' if less else 'n'}",
            "group",
            epsilon,
            less,
        )
        for epsilon in (1e-4, 1e-6, 1e-8)
        for less in (1, 0)
    ),
    "dr_grpo": (Formula("r − mean of the group"),),
    "rloo": (Formula("r − mean of the others in the group", "others"),),
    "grpo_batch": tuple(
        Formula(f"(r − mean of the group) / (std of the step + {epsilon:g})", "step", epsilon)
        for epsilon in (1e-4, 1e-8)
    ),
    "reinforce_plus_plus": (Formula("(r − mean) / std of the step", "step", 1e-8, mean="step"),),
}
"""Formulas by declared name. Each name lists the variants that programs implement."""


@dataclass(frozen=True)
class Known:
    """A group with known rewards and advantages. places: names the rollouts for people. unknown: whether rollouts
    without rewards or advantages were left out."""

    places: list[str]
    rewards: list[float]
    advantages: list[float]
    step: list[float]
    unknown: bool

    def wrong(self, formula: Formula) -> Iterator[tuple[str, float, float]]:
        """Yield the places of rollouts whose advantage differs, with the recorded and the computed advantage."""
        computed = formula.compare(self.rewards, self.step)
        spread = max(self.rewards) - min(self.rewards)
        for place, old, new in zip(self.places, self.advantages, computed, strict=True):
            rounding = 1e-2 if spread < 1e-6 else 0.0  # float32 may show a deviation where there is none
            if abs(old - new) > max(CLOSE * max(1.0, abs(old), abs(new)), rounding):
                yield place, old, new


def recompute_dump(reader: RunReader, declared: str = "") -> Report:
    """Recompute the numbers of another trainer's rollouts. declared: a key of `FORMULAS`, or empty."""
    report = Report()
    groups: list[Known] = []
    unweighted: list[Unweighted] = []
    names = set(reader.metrics.names())
    own = {metric.REWARD_MEAN} if "critic/score/max" not in names else set()
    logged = {name: dict(reader.metrics.points(name)) for name in MEANS if name in names - own}
    rewards_known = False
    for step, items in steps_of(reader):
        rewards = [r for item in items if (r := reward_of(item)) is not None]
        rewards_known |= bool(rewards)
        for name, points in logged.items():
            if step in points and len(rewards) == len(items):
                right = {"max": max, "min": min}.get(name.rpartition("/")[2], fmean)(rewards)
                report.number(f"step {step}", f"metric {name}", points[step], right, tolerance=CLOSE)
        for item in items:
            _sum(item, report, unweighted)
            _tokens(item, report)
        groups += [known for group in groups_of(items) if (known := _known(group, rewards)) is not None]
    fitted(unweighted, report)
    if groups:
        _advantages(groups, declared, report)
    else:
        report.given["advantages"] = (
            "no group has rewards and advantages of two rollouts" if rewards_known else "rewards are not recorded"
        )
    report.given["loss, KL, ratios and clip shares"] = "the rollouts lack the inputs of the loss"
    return report


def _known(group: Sequence[RecordedRollout], step: list[float]) -> Known | None:
    pairs = [(i.place, reward_of(i), _finite(i.record.advantage)) for i in group]
    known = [(place, r, a) for place, r, a in pairs if r is not None and a is not None]
    if len(known) < 2:
        return None
    places, rewards, advantages = zip(*known, strict=True)
    return Known([*places], [*rewards], [*advantages], step, len(known) < len(group))


def _advantages(groups: Sequence[Known], declared: str, report: Report) -> None:
    forms = [f for name, forms in FORMULAS.items() if declared in ("", name) for f in forms]
    spread = [g for g in groups if max(g.rewards) - min(g.rewards) > 1e-6]
    fits = [(sum(not any(g.wrong(f)) for g in spread), f) for f in forms]
    explained, formula = max(fits, key=lambda fit: fit[0])
    if not declared and (not spread or explained < max(2, len(spread) / 2)):
        why = "no formula known here gives those of most groups" if spread else "rewards do not differ within groups"
        report.given["advantages"] = f"{why}; --formula declares one"
        return
    reason = "declared" if declared else f"it gives those of {explained:,} of {len(spread):,} groups"
    report.given["formula of advantages"] = f"{formula.text}, {reason}"
    for group in groups:
        wrong = list(group.wrong(formula))
        if wrong and group.unknown and not declared:
            report.given["advantages of groups with unknown rewards"] = "their formula is not declared"
            continue
        report.compared["advantage"] += len(group.places) - len(wrong)
        for place, old, new in wrong:
            report.number(place, "advantage", old, new, tolerance=0.0)


Unweighted = tuple[str, float, dict[str, float]]
"""The place, reward and component values of a rollout whose weights are not recorded."""


def _sum(item: RecordedRollout, report: Report, unweighted: list[Unweighted]) -> None:
    """Check the reward against its components and weights, or keep it until the weights are known."""
    values, reward = item.components, _finite(item.row.reward)
    if reward is None or not values or any(_finite(v.raw) is None for _, v in values):
        return
    if all(v.weight is not None for _, v in values):
        total = math.fsum((v.raw or 0.0) * (v.weight or 0.0) for _, v in values)
        report.number(item.place, "weighted sum of rewards", reward, total, tolerance=CLOSE, size=1.0)
    elif item.record.trajectory.error is None:
        unweighted.append((item.place, reward, {name: v.raw or 0.0 for name, v in values}))


def _tokens(item: RecordedRollout, report: Report) -> None:
    """Check that agent tokens have the advantage of their rollout, and other tokens have none."""
    tokens, advantage = item.tokens, _finite(item.record.advantage)
    if tokens is None or tokens.advantages is None or advantage is None or any(item.record.step_advantages):
        return
    pairs = list(zip(tokens.agent_mask, tokens.advantages, strict=True))
    recorded = [0.0 if math.isnan(a) else a for m, a in pairs if m or not math.isnan(a)]
    right = [advantage if m else 0.0 for m, a in pairs if m or not math.isnan(a)]
    report.numbers(item.place, "advantage of the token", recorded, right, tolerance=1e-5, size=1.0)


def reward_of(item: RecordedRollout) -> float | None:
    """Return the reward, or the sum of the components if only those are recorded (TRL)."""
    values = [v for _, v in item.components]
    if item.row.reward is not None or not values or any(v.weight is not None for v in values):
        return _finite(item.row.reward)
    known = [v.raw for v in values if _finite(v.raw) is not None]
    return math.fsum(v or 0.0 for v in known) if known else None


def _finite(value: float | None) -> float | None:
    """Return a number, or None if its square overflows."""
    return value if value is not None and abs(value) < 1e150 else None


FITS = 1e-6


def fitted(rollouts: Sequence[Unweighted], report: Report) -> None:
    """Infer the component weights, and report the rollouts whose reward differs from the weighted sum."""
    names = sorted({name for *_, values in rollouts for name in values})
    complete = [each for each in rollouts if len(each[2]) == len(names)]
    if not names or len(complete) < max(12, 2 * len(names)):
        if rollouts:
            report.given["weighted sum of rewards"] = "the weights are not recorded, and too few rollouts show them"
        return
    rows = [[values[name] for name in names] for *_, values in complete]
    rewards = [reward for _, reward, _ in complete]
    kept = list(range(len(rows)))
    weights = _solved(rows, rewards)
    for _ in range(max(3, len(rows) // 50)):
        gaps = {i: abs(_dot(rows[i], weights) - rewards[i]) for i in kept}
        worst = max(gaps, key=lambda i: gaps[i])
        if gaps[worst] <= FITS * max(1.0, abs(rewards[worst])):
            break
        # Drop the rollout whose removal leaves the smallest squared error.
        trials = {i: [k for k in kept if k != i] for i in sorted(kept, key=lambda i: -gaps[i])[:8]}
        solved = {i: _solved([rows[k] for k in t], [rewards[k] for k in t]) for i, t in trials.items()}
        left = {i: math.fsum((_dot(rows[k], solved[i]) - rewards[k]) ** 2 for k in trials[i]) for i in trials}
        dropped = min(left, key=lambda i: left[i])
        kept, weights = trials[dropped], solved[dropped]
    if any(abs(_dot(rows[i], weights) - rewards[i]) > FITS * max(1.0, abs(rewards[i])) for i in kept):
        report.given["weighted sum of rewards"] = "the weights are not recorded, and no weights give the rewards"
        return
    found = ", ".join(f"{name} {w:.4g}" for name, w in zip(names, weights, strict=True))
    report.given["weights of rewards"] = f"not recorded; those that give {len(kept):,} rewards are {found}"
    for (place, reward, _), row in zip(complete, rows, strict=True):
        right = _dot(row, weights)
        report.number(place, "weighted sum of rewards", reward, right, tolerance=2 * FITS, size=1.0)


def _dot(row: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(value * weight for value, weight in zip(row, weights, strict=True))


def _solved(rows: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return the least-squares solution. A component that the others determine gets weight 0."""
    n = len(rows[0])
    matrix = [[math.fsum(row[i] * row[j] for row in rows) for j in range(n)] for i in range(n)]
    for i in range(n):
        matrix[i].append(math.fsum(row[i] * y for row, y in zip(rows, right, strict=True)))
    pivots: list[tuple[int, int]] = []
    for column in range(n):
        used = {r for r, _ in pivots}
        free = [r for r in range(n) if r not in used]
        best = max(free, key=lambda r: abs(matrix[r][column]))
        if abs(matrix[best][column]) <= 1e-9 * (1 + max(abs(v) for v in matrix[best])):
            continue
        pivots.append((best, column))
        for r in range(n):
            if r != best:
                factor = matrix[r][column] / matrix[best][column]
                matrix[r] = [a - factor * b for a, b in zip(matrix[r], matrix[best], strict=True)]
    weights = [0.0] * n
    for row, column in pivots:
        weights[column] = matrix[row][n] / matrix[row][column]
    return weights
