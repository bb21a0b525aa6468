"""Check the metrics that are means over the rollouts of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...configs import metric_names as metric
from ...rewards.metrics import Moments, batch_metrics, flat, merge, moments
from .items import RecordedRollout
from .ledger import SINGLE, Report

FROM_SINGLE = (metric.TRL("reward"), metric.TRL("reward_std"), metric.ADVANTAGE_STD)
"""Metrics computed from float32 turn rewards, which may cancel each other."""


class StepMetrics:
    """Checks metrics, one step after another. one_batch: whether the rewards of a step were scored in one batch, so
    that running statistics can be followed."""

    def __init__(self, report: Report, one_batch: bool) -> None:
        self.report = report
        self.one_batch = one_batch
        self.running: dict[str, Moments] = {}
        self.known: set[str] = set()
        """Names of the recomputed metrics."""
        self._seen = 0

    def step(
        self,
        step: int,
        items: Sequence[RecordedRollout],
        signal: int,
        replayed: int,
        rows: int,
        metrics: Mapping[str, float],
    ):
        """Check the metrics of one step.

        signal: the number of rollouts in groups with signal. replayed: rollouts of earlier steps in the batch. rows:
        the size of the batch.
        """
        found = self._rollouts(items)
        silent = len(items) - signal
        found[metric.FILTERING_RATE] = silent / max(len(items), 1)
        found |= self._rewards(items)
        if self.one_batch:
            found[metric.REPLAY_SHARE] = replayed / max(rows, 1)
            found[metric.EFFECTIVE_BATCH] = (replayed + sum(_learns(i) for i in items)) / max(rows, 1)
        for name, value in found.items():
            if name in metrics:
                self.known.add(name)
                size = 1.0 if name in FROM_SINGLE else 0.0
                self.report.number(f"step {step}", f"metric {name}", metrics[name], value, tolerance=SINGLE, size=size)

    def _rollouts(self, items: Sequence[RecordedRollout]) -> dict[str, float]:
        trajectories = [i.record.trajectory for i in items]
        known = [float(t.correct) for t in trajectories if t.correct is not None]
        lengths = [float(i.agent_tokens) for i in items]
        rewards = [math.fsum(i.turn_rewards) for i in items]
        advantages = moments([i.record.advantage or 0.0 for i in items])
        reward = moments(rewards)
        found = {
            metric.TOKENS_AGENT: math.fsum(lengths),
            metric.TURNS: moments([float(len(i.tokens_by_turn)) for i in items]).mean,
            metric.ENVIRONMENT_FAILED: moments([float(t.error is not None) for t in trajectories]).mean,
            metric.ADVANTAGE_STD: advantages.std,
            metric.TRL("reward"): reward.mean,
            metric.TRL("reward_std"): reward.std,
            metric.TRL("environment_reward"): moments([t.env_reward or 0.0 for t in trajectories]).mean,
            metric.TRL("completions/mean_length"): moments(lengths).mean,
            metric.TRL("completions/min_length"): min(lengths),
            metric.TRL("completions/max_length"): max(lengths),
        }
        if known:
            found[metric.SUCCESS_TRAIN] = moments(known).mean
        if all(i.tokens is not None for i in items):
            sizes = [float(len(i.tokens)) for i in items if i.tokens is not None]
            self._seen += int(sum(sizes))
            found |= {
                metric.TOKENS_STEP: sum(sizes),
                metric.TOKENS_PER_ROLLOUT: moments(sizes).mean,
                metric.TOKENS_TOTAL: float(self._seen),
            }
        return found

    def _rewards(self, items: Sequence[RecordedRollout]) -> dict[str, float]:
        scored = [(i.record.trajectory, i.record.breakdown) for i in items if i.record.breakdown is not None]
        if not scored:
            return {}
        trajectories, breakdowns = zip(*scored, strict=True)
        found = flat(batch_metrics(trajectories, breakdowns, [t.group for t in trajectories]))
        if self.one_batch:
            raw: dict[str, list[float]] = {}
            for values in (step.components for b in breakdowns for step in b.steps):
                for name, value in values.items():
                    raw.setdefault(name, []).append(value.raw or 0.0)
            for name, values in raw.items():
                before = self.running.get(name, Moments())
                found[metric.COMPONENT_RUNNING_MEAN(name)] = before.mean
                found[metric.COMPONENT_RUNNING_STD(name)] = before.std
                self.running[name] = merge(before, moments(values))
        return found


def _learns(item: RecordedRollout) -> bool:
    advantages = item.tokens.advantages if item.tokens is not None else item.record.step_advantages
    return any(advantages or ())
