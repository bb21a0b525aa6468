"""Trainings whose record is in order, and changes that break them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean

from grpo_tui.configs import metric_names as metric
from grpo_tui.rewards.batches import Batch, RolloutSummary
from grpo_tui.rewards.detectors import Finding
from grpo_tui.rewards.diagnosis import Diagnosis

STEPS, TASKS, GROUP = 8, 8, 4
FROM_REWARD = math.nan
"""An advantage that follows from the rewards of the group."""


def right(step: int, task: int, i: int) -> RolloutSummary:
    """A rollout of a training that is in order: every second answer is right at first, and three of four later."""
    expected = str(task)
    correct = i % 2 == 0 or (step > 4 and i == 1)
    answer = expected if correct else str((task + i) % TASKS)
    reward = float(correct)
    mean = 0.75 if step > 4 else 0.5
    return RolloutSummary(
        f"{step}-{task}-{i}",
        f"{step}-{task}",
        reward,
        {"task": reward},
        correct,
        tokens=10,
        turns=1,
        text=f"{'well ' * (i % 3)}answer {answer}",
        task=f"t{step % 3}{task}",
        expected=expected,
        answer=answer,
        prompt=f"task {(step + task) % 3} {task}",
        written=10,
        advantage=reward - mean,
        surprise=0.9,
    )


Change = Callable[[RolloutSummary, int, int, int], RolloutSummary]


def training(change: Change = lambda r, *_: r, **metrics: float) -> list[Batch]:
    """The steps of a training in which `change(rollout, step, task, i)` breaks something."""
    values = {metric.ENTROPY: 0.9, metric.CLIP_FRACTION: 0.01, metric.BETA: 0.01, metric.KL_MEAN: 0.02, **metrics}
    groups = [[[change(right(s, t, i), s, t, i) for i in range(GROUP)] for t in range(TASKS)] for s in range(STEPS + 1)]
    return [Batch(s, [r for g in groups[s] for r in compared(g)], values) for s in range(1, STEPS + 1)]


def compared(group: Sequence[RolloutSummary]) -> list[RolloutSummary]:
    """The rollouts of a group, with the advantages of those that `scored` gave another reward."""
    mean = fmean(r.total or 0.0 for r in group)
    return [replace(r, advantage=(r.total or 0.0) - mean) if r.advantage is FROM_REWARD else r for r in group]


def warnings(batches: Sequence[Batch]) -> list[Finding]:
    """The warnings of a whole training, the likeliest cause first."""
    diagnosis = Diagnosis()
    for batch in batches:
        diagnosis.observe(batch)
    diagnosis.end()
    return [f.finding for f in diagnosis.found() if f.finding.severity in ("warning", "failure")]


def scored(r: RolloutSummary, reward: float, correct: bool | None = None) -> RolloutSummary:
    """The rollout with another verdict, and the advantage that follows from it."""
    return replace(r, total=reward, contributions={"task": reward}, correct=correct, advantage=FROM_REWARD)
