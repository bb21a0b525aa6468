"""Normalise reward components: running z-score, running scale, or within each group.

Otherwise a component with a larger numerical range would dominate the sum at any weight. The statistics change only in
`update`, not while a batch is scored, so equal rollouts get equal rewards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import torch
from torch import Tensor

from ..configs.sections.rewards import COMPONENTS, Normalization, NormalizationConfig
from .metrics import Moments, merge


def tensor_moments(values: Tensor) -> Moments:
    """Compute the moments of a tensor's elements, in float64."""
    if not values.numel():
        return Moments()
    values = values.double()
    mean = values.mean()
    return Moments(values.numel(), float(mean), float((values - mean).square().sum()))


@dataclass(frozen=True)
class Normalized:
    """Normalised values of a component, float64 [N], 0 where it is undefined. mean, std: the statistics used for each
    rollout, float64 [R] (None: the values are raw)."""

    values: Tensor
    mean: Tensor | None = None
    std: Tensor | None = None


class RewardNormalizer:
    """Keeps running statistics of each component and normalises by them.

    `zscore`: (r - mean) / (max(std, floor) + epsilon), clipped. `scale_only`: r / (max(std, floor) + epsilon),
    clipped. `group`: see `group_normalized`. `none`: r.
    """

    def __init__(self, config: NormalizationConfig, modes: Mapping[str, Normalization]) -> None:
        self.config = config
        self._modes = dict(modes)
        self.running: dict[str, Moments] = {name: Moments() for name in modes}

    def mode(self, component: str) -> Normalization:
        """Return the normalisation of a component. A name without a configuration is a reward function."""
        return self._modes.get(component, self.config.functions)

    def statistics(self, component: str) -> Moments:
        return self.running.get(component, Moments())

    def normalize(self, values: Tensor, component: str, *, valid: Tensor | None = None) -> Tensor:
        """Normalise `values` float [N] as configured, to float64 [N]. Each value is a rollout of the same group."""
        if valid is None:
            valid = torch.ones_like(values, dtype=torch.bool)
        alone, together = torch.arange(values.numel()), torch.zeros(values.numel(), dtype=torch.int64)
        return self.normalized(values, component, valid, alone, together).values

    def normalized(self, values: Tensor, component: str, valid: Tensor, rollout: Tensor, group: Tensor) -> Normalized:
        """Normalise `values` float [N] as configured. Returns them with the mean and std used.

        valid: bool [N], where the component is defined. rollout: int64 [N], the rollout of each step. group: int64 [R],
        the group of each rollout.
        """
        values = values.double()
        mode = self.mode(component)
        if mode == "none":
            return Normalized(torch.where(valid, values, 0.0))
        if mode == "group":
            found = group_normalized(values, valid, rollout, group, self.config.epsilon, self.config.std_floor)
            return replace(found, values=torch.where(valid, found.values, 0.0))
        statistics = self.statistics(component)
        if statistics.count < self.config.min_count:
            statistics = merge(statistics, tensor_moments(values[valid]))
        scale = max(statistics.std, self.config.std_floor) + self.config.epsilon
        centre = statistics.mean if mode == "zscore" else 0.0
        scaled = ((values - centre) / scale).clamp(-self.config.clip, self.config.clip)
        ones = torch.ones(group.numel(), dtype=torch.float64)
        return Normalized(torch.where(valid, scaled, 0.0), centre * ones, statistics.std * ones)

    def update(self, batch: Mapping[str, Moments]) -> None:
        """Add a scored batch (of all processes) to the running statistics."""
        for name, moments in batch.items():
            self.running[name] = merge(self.running.get(name, Moments()), moments)

    def to_json(self) -> dict[str, list[float]]:
        """Return `[count, mean, m2]` of each component. Floats survive JSON bit for bit."""
        return {name: [*astuple(moments)] for name, moments in self.running.items()}

    def load_json(self, data: Mapping[str, Sequence[float]]) -> None:
        """Restore the output of `to_json`. Components that are not in `data` start empty."""
        known = {name: Moments(int(count), mean, m2) for name, (count, mean, m2) in data.items()}
        restored = {name: known.get(name, Moments()) for name in self.running}
        self.running = {**{name: m for name, m in known.items() if name not in COMPONENTS}, **restored}


def group_normalized(
    values: Tensor, valid: Tensor, rollout: Tensor, group: Tensor, epsilon: float, std_floor: float
) -> Normalized:
    """Normalise one component within each group, as in GDPO (arXiv 2601.05242), spread over the steps.

    GDPO normalises a component's sum R_i over each rollout within the group: (R_i - mean) / (std + epsilon), std with
    n - 1. Here step t of rollout i gets (r_it - mean / n_i) / (max(std, floor) + epsilon), with n_i its valid steps.
    The sum over a rollout's steps is then exactly GDPO's value, and each step keeps its own size.

    values: float64 [N]. valid: bool [N]. rollout: int64 [N]. group: int64 [R].
    """
    rollouts = group.numel()
    if not rollouts:
        return Normalized(values)
    groups = int(group.max()) + 1
    steps = torch.zeros(rollouts, dtype=torch.float64).index_add_(0, rollout, valid.double())
    sums = torch.zeros(rollouts, dtype=torch.float64).index_add_(0, rollout, torch.where(valid, values, 0.0))
    counted = (steps > 0).double()
    size = torch.zeros(groups, dtype=torch.float64).index_add_(0, group, counted)
    mean = torch.zeros(groups, dtype=torch.float64).index_add_(0, group, sums * counted) / size.clamp(min=1)
    deviation = (sums - mean[group]) * counted
    m2 = torch.zeros(groups, dtype=torch.float64).index_add_(0, group, deviation.square())
    std = (m2 / (size - 1).clamp(min=1)).sqrt()
    scale = std.clamp(min=std_floor) + epsilon
    shift = mean[group] / steps.clamp(min=1)
    return Normalized((values - shift[rollout]) / scale[group][rollout], mean[group], std[group])
