"""From raw values to the reward: normalised, weighted, added up, and laid out with every number kept."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from ..configs import metric_names as metric
from ..envs.trajectory import Trajectory
from .breakdown import ComponentValue, NormalizedBy, Penalty, RewardBreakdown, StepReward
from .metrics import Moments, batch_metrics
from .normalization import RewardNormalizer, tensor_moments


@dataclass(frozen=True)
class RewardResult:
    """The rewards of a batch of B trajectories of at most S steps, of C components.

    total: float32 [B, S], 0 past a trajectory's end. contributions: float64 [B, S, C], 0 where a component is not
    defined: curiosity at the last step, coherence at the first, the task anywhere but at the last. `total` is their sum
    over C. `component_names` go along C. `metrics` are for the record, with dictionaries such as the action
    distribution.
    """

    total: Tensor
    component_names: tuple[str, ...]
    contributions: Tensor
    breakdowns: list[RewardBreakdown]
    metrics: Mapping[str, float | Mapping[str, float]]


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
    scale = {name: float(weights[name]) for name in values}
    components: list[dict[str, ComponentValue]] = [{} for _ in range(batch.rollout.numel())]
    contributions = torch.zeros(len(scale), len(components), dtype=torch.float64)
    used: dict[str, tuple[str, list[float], list[float]]] = {}
    moments: dict[str, Moments] = {}
    nonfinite = 0
    for i, (name, (value, defined)) in enumerate(values.items()):
        valid = defined & value.isfinite()
        nonfinite += int(defined.sum() - valid.sum())
        raw = torch.where(valid, value, 0.0)
        normalized = normalizer.normalized(raw, name, valid, batch.rollout, batch.group)
        contributions[i] = normalized.values * scale[name]
        moments[name] = tensor_moments(raw[valid])
        columns = raw.tolist(), normalized.values.tolist(), contributions[i].tolist(), valid.tolist()
        for at, (r, z, c, is_valid) in zip(components, zip(*columns, strict=True), strict=True):
            if is_valid:
                at[name] = ComponentValue(r, z, scale[name], c)
        if normalized.mean is not None and normalized.std is not None:
            used[name] = normalizer.mode(name), normalized.mean.tolist(), normalized.std.tolist()
    sums = contributions.sum(dim=0)
    breakdowns: list[RewardBreakdown] = []
    rows = zip(components, sums.tolist(), strict=True)
    for i, (trajectory, found) in enumerate(zip(batch.trajectories, penalties, strict=True)):
        each = zip(trajectory.steps, found, islice(rows, len(trajectory.steps)), strict=True)
        steps = tuple(StepReward(step.index, at, here, total) for step, here, (at, total) in each)
        by = {name: NormalizedBy(mode, mean[i], std[i]) for name, (mode, mean, std) in used.items()}
        breakdowns.append(RewardBreakdown(trajectory.id, steps, sum(step.total or 0.0 for step in steps), by))
    metrics = batch_metrics(batch.trajectories, breakdowns, batch.group.tolist(), scale)
    metrics[metric.REWARD_NONFINITE] = float(nonfinite)
    for name in scale:
        running = normalizer.statistics(name)
        metrics[metric.COMPONENT_RUNNING_MEAN(name)] = running.mean
        metrics[metric.COMPONENT_RUNNING_STD(name)] = running.std
    lengths = torch.tensor(batch.counts, dtype=torch.int64)
    mask = torch.arange(max(batch.counts, default=0))[None] < lengths[:, None]

    def padded(flat: Tensor, dtype: torch.dtype) -> Tensor:
        out = torch.zeros(*mask.shape, *flat.shape[1:], dtype=dtype)
        out[mask] = flat.to(dtype)
        return out

    total, parts = padded(sums, torch.float32), padded(contributions.T, torch.float64)
    return RewardResult(total, tuple(scale), parts, breakdowns, metrics), moments
