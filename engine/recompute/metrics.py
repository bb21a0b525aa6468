"""Metrics that are means over the rollouts of a step."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from ...configs import metric_names as metric
from ...rewards.moments import Moments, merge
from .items import Item, groups_of
from .ledger import SINGLE, Report
from .rewards import moments

FROM_SINGLE = (metric.TRL("reward"), metric.TRL("reward_std"), metric.ADVANTAGE_STD)
"""Made of float32 rewards of turns, which may cancel each other."""
SAME = 1e-12
"""A variance below this is rounding: shares of it are not told."""


class StepMetrics:
    """Compares the metrics of step after step. one_batch: the rewards of a step were scored in one batch, so that its
    metrics are of these rollouts."""

    def __init__(self, report: Report, one_batch: bool) -> None:
        self.report = report
        self.one_batch = one_batch
        self.running: dict[str, Moments] = {}
        self.known: set[str] = set()
        """Names of metrics that were computed again."""
        self._seen = 0

    def step(
        self, step: int, items: Sequence[Item], signal: int, replayed: int, rows: int, metrics: Mapping[str, float]
    ):
        """Metrics of one step. signal: rollouts in groups that carry signal; replayed: rollouts of earlier steps in the
        batch; rows: its size."""
        found = self._rollouts(items)
        groups = groups_of(items)
        silent = len(items) - signal
        found[metric.FILTERING_RATE] = silent / max(len(items), 1)
        if self.one_batch:
            found[metric.REPLAY_SHARE] = replayed / max(rows, 1)
            found[metric.EFFECTIVE_BATCH] = (replayed + sum(_learns(i) for i in items)) / max(rows, 1)
            found |= self._rewards(items, groups)
        for name, value in found.items():
            if name in metrics:
                self.known.add(name)
                size = 1.0 if name in FROM_SINGLE else 0.0
                self.report.number(f"step {step}", f"metric {name}", metrics[name], value, tolerance=SINGLE, size=size)

    def _rollouts(self, items: Sequence[Item]) -> dict[str, float]:
        trajectories = [i.record.trajectory for i in items]
        known = [float(t.correct) for t in trajectories if t.correct is not None]
        lengths = [float(i.agent_tokens) for i in items]
        rewards = [math.fsum(i.turn_rewards) for i in items]
        advantages = moments([i.record.advantage or 0.0 for i in items])
        reward = moments(rewards)
        found = {
            metric.TOKENS_AGENT: math.fsum(lengths),
            metric.TURNS: _mean([float(len(i.tokens_by_turn)) for i in items]),
            metric.ENVIRONMENT_FAILED: _mean([float(t.error is not None) for t in trajectories]),
            metric.ADVANTAGE_STD: advantages.std,
            metric.TRL("reward"): reward.mean,
            metric.TRL("reward_std"): reward.std,
            metric.TRL("environment_reward"): _mean([t.env_reward or 0.0 for t in trajectories]),
            metric.TRL("completions/mean_length"): _mean(lengths),
            metric.TRL("completions/min_length"): min(lengths),
            metric.TRL("completions/max_length"): max(lengths),
        }
        if known:
            found[metric.SUCCESS_TRAIN] = _mean(known)
        if all(i.tokens is not None for i in items):
            sizes = [float(len(i.tokens)) for i in items if i.tokens is not None]
            self._seen += int(sum(sizes))
            found |= {
                metric.TOKENS_STEP: sum(sizes),
                metric.TOKENS_PER_ROLLOUT: _mean(sizes),
                metric.TOKENS_TOTAL: float(self._seen),
            }
        return found

    def _rewards(self, items: Sequence[Item], groups: Sequence[Sequence[Item]]) -> dict[str, float]:
        scored = [i for i in items if i.record.breakdown is not None]
        if not scored:
            return {}
        names = {name: 0.0 for i in scored for step in i.record.breakdown.steps for name in step.components}  # type: ignore[union-attr]
        found: dict[str, float] = {}
        for name in names:
            columns = [[s.components[name] for s in i.record.breakdown.steps if name in s.components] for i in scored]  # type: ignore[union-attr]
            raw = moments([v.raw or 0.0 for column in columns for v in column])
            normalized = moments([v.normalized or 0.0 for column in columns for v in column])
            weight = next(v.weight or 0.0 for column in columns for v in column)
            before = self.running.get(name, Moments())
            found |= {
                metric.COMPONENT_RAW(name): raw.mean,
                metric.COMPONENT_RAW_STD(name): raw.std,
                metric.COMPONENT_NORMALIZED(name): normalized.mean,
                metric.COMPONENT_NORMALIZED_STD(name): normalized.std,
                metric.COMPONENT_WEIGHT(name): weight,
                metric.COMPONENT_CONTRIBUTION(name): weight * normalized.mean,
                metric.COMPONENT_RAW_SUM(name): _mean([_sum(c, "raw") for c in columns]),
                metric.COMPONENT_NORMALIZED_SUM(name): _mean([_sum(c, "normalized") for c in columns]),
                metric.COMPONENT_SUM(name): _mean([_sum(c, "contribution") for c in columns]),
                metric.COMPONENT_RUNNING_MEAN(name): before.mean,
                metric.COMPONENT_RUNNING_STD(name): before.std,
            }
            self.running[name] = merge(before, raw)
        totals = moments([i.record.breakdown.total or 0.0 for i in scored])  # type: ignore[union-attr]
        found[metric.REWARD_MEAN] = totals.mean
        found[metric.REWARD_STD] = math.sqrt(totals.m2 / max(totals.count - 1, 1))
        paid = sum(len(s.penalties) for i in scored for s in i.record.breakdown.steps)  # type: ignore[union-attr]
        found[metric.PENALTIES] = paid / len(scored)
        return found | _shares(names, groups) | _actions(scored)


def _shares(names: Mapping[str, float], groups: Sequence[Sequence[Item]]) -> dict[str, float]:
    """Share of each component in the variance of the reward around its group's mean."""
    shares, variance = dict.fromkeys(names, 0.0), 0.0
    for group in groups:
        parts = [_contributions(item) for item in group]
        means = {name: _mean([p.get(name, 0.0) for p in parts]) for name in names}
        for part in parts:
            centred = {name: part.get(name, 0.0) - means[name] for name in names}
            advantage = math.fsum(centred.values())
            variance += advantage**2
            for name, value in centred.items():
                shares[name] += value * advantage
    if variance <= SAME:
        return {}
    return {metric.COMPONENT_ADVANTAGE_SHARE(name): value / variance for name, value in shares.items()}


def _actions(items: Sequence[Item]) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for item in items:
        tools = {t.name for t in item.record.trajectory.tools}
        counts.update(dict.fromkeys(tools, 0))
        for step in item.record.trajectory.steps:
            name = "(unparsable)" if step.action is None else step.action
            counts[name if step.action is None or not tools or name in tools else "(unknown tool)"] += 1
    return {metric.ACTION_SHARE(name): n / counts.total() for name, n in counts.items()}


def _contributions(item: Item) -> dict[str, float]:
    found: dict[str, float] = {}
    for step in item.record.breakdown.steps if item.record.breakdown is not None else ():
        for name, value in step.components.items():
            found[name] = found.get(name, 0.0) + (value.contribution or 0.0)
    return found


def _learns(item: Item) -> bool:
    advantages = item.tokens.advantages if item.tokens is not None else item.record.step_advantages
    return any(advantages or ())


def _sum(values: Sequence[object], name: str) -> float:
    return math.fsum(getattr(v, name) or 0.0 for v in values)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
