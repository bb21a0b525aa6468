"""From raw values to the reward: normalised, weighted, added up, and laid out with every number kept."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..configs import metric_names as metric
from ..envs.trajectory import Trajectory
from .breakdown import ComponentValue, NormalizedBy, Penalty, RewardBreakdown, StepReward
from .metrics import batch_metrics
from .moments import Moments
from .normalization import Normalized, RewardNormalizer, tensor_moments
from .result import RewardResult


@dataclass(frozen=True)
class StepBatch:
    """All N steps of B trajectories, one after another.

    counts: steps of each trajectory. rollout: int64 [N], the trajectory of each step. last: bool [N], True at the last
    step of each. group: int64 [B], the groups numbered in order of first appearance.
    """

    trajectories: Sequence[Trajectory]
    counts: Sequence[int]
    rollout: Tensor
    last: Tensor
    group: Tensor

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], groups: Sequence[Hashable] | None) -> StepBatch:
        """Lay out the steps of `trajectories`. `groups` replaces `trajectory.group`."""
        counts = [len(t.steps) for t in trajectories]
        sizes = torch.tensor(counts, dtype=torch.int64)
        last = torch.zeros(sum(counts), dtype=torch.bool)
        last[sizes[sizes > 0].cumsum(0) - 1] = True
        numbers: dict[Hashable, int] = {}
        names = groups if groups is not None else [t.group for t in trajectories]
        group = torch.tensor([numbers.setdefault(name, len(numbers)) for name in names], dtype=torch.int64)
        return cls(trajectories, counts, torch.repeat_interleave(torch.arange(len(counts)), sizes), last, group)


def assemble(
    batch: StepBatch,
    values: Mapping[str, tuple[Tensor, Tensor]],
    weights: Mapping[str, float],
    penalties: Sequence[Sequence[tuple[Penalty, ...]]],
    normalizer: RewardNormalizer,
) -> tuple[RewardResult, dict[str, Moments]]:
    """Add up the reward of a batch. Returns it with the moments of each component's raw values for the running
    statistics.

    values: for each component its raw rewards, float64 [N], and where they are defined, bool [N]. A value that is not
    finite counts as not defined, and in `rewards/nonfinite`. penalties: of each step of each trajectory.
    """
    names = tuple(values)
    steps, rollouts = batch.rollout.numel(), len(batch.counts)
    raw = torch.zeros(len(names), steps, dtype=torch.float64)
    normalized = torch.zeros_like(raw)
    valid = torch.zeros(len(names), steps, dtype=torch.bool)
    by: dict[str, Normalized] = {}
    moments: dict[str, Moments] = {}
    nonfinite = 0
    for i, name in enumerate(names):
        value, defined = values[name]
        valid[i] = defined & value.isfinite()
        nonfinite += int(defined.sum() - valid[i].sum())
        raw[i] = torch.where(valid[i], value, 0.0)
        by[name] = normalizer.normalized(raw[i], name, valid[i], batch.rollout, batch.group)
        normalized[i] = by[name].values
        moments[name] = tensor_moments(raw[i][valid[i]])
    scale = torch.tensor([weights[name] for name in names], dtype=torch.float64)
    contributions = normalized * scale[:, None]
    sums = contributions.sum(dim=0)
    used = _normalized_by(by, normalizer, rollouts)
    breakdowns = _breakdowns(batch, names, scale, raw, normalized, contributions, valid, sums, penalties, used)
    metrics = batch_metrics(
        batch.trajectories, breakdowns, batch.group.tolist(), dict(zip(names, scale.tolist(), strict=True))
    )
    metrics[metric.REWARD_NONFINITE] = float(nonfinite)
    for name in names:
        running = normalizer.statistics(name)
        metrics[metric.COMPONENT_RUNNING_MEAN(name)] = running.mean
        metrics[metric.COMPONENT_RUNNING_STD(name)] = running.std

    longest = max(batch.counts, default=0)
    mask = torch.arange(longest)[None] < torch.tensor(batch.counts, dtype=torch.int64)[:, None]

    def padded(flat: Tensor, dtype: torch.dtype) -> Tensor:
        out = torch.zeros(rollouts, longest, *flat.shape[1:], dtype=dtype)
        out[mask] = flat.to(dtype)
        return out

    result = RewardResult(
        total=padded(sums, torch.float32),
        mask=mask,
        component_names=names,
        weights=tuple(scale.tolist()),
        raw=padded(raw.T, torch.float64),
        normalized=padded(normalized.T, torch.float64),
        contributions=padded(contributions.T, torch.float64),
        valid=padded(valid.T, torch.bool),
        breakdowns=breakdowns,
        metrics=metrics,
    )
    return result, moments


def _breakdowns(
    batch: StepBatch,
    names: Sequence[str],
    weights: Tensor,
    raw: Tensor,
    normalized: Tensor,
    contributions: Tensor,
    valid: Tensor,
    sums: Tensor,
    penalties: Sequence[Sequence[tuple[Penalty, ...]]],
    normalized_by: Sequence[Mapping[str, NormalizedBy]],
) -> list[RewardBreakdown]:
    components: list[dict[str, ComponentValue]] = [{} for _ in range(batch.rollout.numel())]
    for i, (name, weight) in enumerate(zip(names, weights.tolist(), strict=True)):
        columns = (raw[i].tolist(), normalized[i].tolist(), contributions[i].tolist(), valid[i].tolist())
        for n, (r, z, c, defined) in enumerate(zip(*columns, strict=True)):
            if defined:
                components[n][name] = ComponentValue(r, z, weight, c)
    totals = sums.tolist()
    out: list[RewardBreakdown] = []
    n = 0
    for trajectory, rows, by in zip(batch.trajectories, penalties, normalized_by, strict=True):
        first = n
        steps: list[StepReward] = []
        for step, here in zip(trajectory.steps, rows, strict=True):
            steps.append(StepReward(step.index, components[n], here, totals[n]))
            n += 1
        out.append(RewardBreakdown(trajectory.id, tuple(steps), sum(totals[first:n]), by))
    return out


def _normalized_by(
    by: Mapping[str, Normalized], normalizer: RewardNormalizer, rollouts: int
) -> list[dict[str, NormalizedBy]]:
    """Return for each rollout the statistics that its components were normalised by."""
    columns = {
        name: (normalizer.mode(name), found.mean.tolist(), found.std.tolist())
        for name, found in by.items()
        if found.mean is not None and found.std is not None
    }
    return [
        {name: NormalizedBy(mode, mean[i], std[i]) for name, (mode, mean, std) in columns.items()}
        for i in range(rollouts)
    ]
