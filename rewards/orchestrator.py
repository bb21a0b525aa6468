"""The orchestrator computes, normalises, weights and sums all components of a batch, and keeps every number.

All steps of all trajectories form one flat batch. Python loops over the steps only for strings (actions, penalties) and
for the breakdown.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor

from ..configs import metric_names as metric
from ..configs.sections.rewards import RewardsConfig
from ..envs.trajectory import Trajectory
from .breakdown import ComponentValue, NormalizedBy, Penalty, RewardBreakdown, StepReward
from .components import Correctness, RewardComponent, RewardError, RewardInputs, Values, make_components
from .components.curiosity import CuriosityDrivenRewardModule, CuriosityReward
from .components.given import scored_components
from .metrics import Moments, batch_metrics
from .normalization import RewardNormalizer, tensor_moments
from .penalties.rules import check_steps, make_rules

STATE_FORMAT = 1


@dataclass(frozen=True)
class RewardResult:
    """The rewards of B trajectories with at most S steps and C components.

    total: float32 [B, S], 0 after a trajectory's end. contributions: float64 [B, S, C], 0 where a component is
    undefined: curiosity at the last step, coherence at the first, the task before the last. `total` is their sum over
    C. `component_names` indexes C. `metrics` are for the record and include dictionaries such as the action
    distribution.
    """

    total: Tensor
    component_names: tuple[str, ...]
    contributions: Tensor
    breakdowns: list[RewardBreakdown]
    metrics: Mapping[str, float | Mapping[str, float]]


class RewardOrchestrator:
    """Computes the dense reward of trajectories from the components in `rewards.components`.

    Weights given here override those in `config`. `embedding_dim` defaults to that of the first embeddings. Training
    and serving use it the same way. In distributed training, one process scores the rollouts of all.
    """

    def __init__(
        self,
        w_curiosity: float | None = None,
        w_coherence: float | None = None,
        w_penalty: float | None = None,
        *,
        config: RewardsConfig | None = None,
        embedding_dim: int | None = None,
        seed: int = 0,
    ) -> None:
        weights = {"curiosity": w_curiosity, "coherence": w_coherence, "penalty": w_penalty}
        changed = {f"w_{name}": value for name, value in weights.items() if value is not None}
        self.config = RewardsConfig.model_validate({**(config or RewardsConfig()).model_dump(), **changed})
        self.weights = self.config.weights
        self.normalizer = RewardNormalizer(
            self.config.normalization, {name: self.config.normalization_of(name) for name in self.weights}
        )
        self.components = make_components(self.config, seed)
        self._curiosity = cast("CuriosityReward", self.components["curiosity"])
        self.rules = make_rules(self.config)
        self._pending: dict[str, Moments] = {}
        if embedding_dim is not None and self._curiosity.counts:
            self._curiosity.make(embedding_dim)

    @property
    def curiosity_module(self) -> CuriosityDrivenRewardModule | None:
        """The module of R_curiosity, or None if it has not been needed yet."""
        return self._curiosity.module

    def calculate_total_reward(
        self,
        trajectories: Sequence[Trajectory] | Trajectory,
        correctness: Sequence[Correctness] | Correctness,
        *,
        embeddings: Sequence[Tensor] | Tensor | None = None,
        groups: Sequence[Hashable] | None = None,
        update: bool = True,
        step: int = 0,
    ) -> RewardResult:
        """Compute the dense reward of each step of each trajectory, with its whole breakdown.

        embeddings: [S_i, D] for each trajectory, one row per step, required if curiosity or coherence has weight.
        groups: the group of each trajectory (None: `trajectory.group`). step: optimiser steps so far, for annealing the
        weights.

        Statistics and dynamics model do not change while the batch is scored. They learn from it afterwards: at once,
        or with `update=False` on the next call of `update` (in an evaluation, never). Raises RewardError if embeddings
        are missing or do not match the steps.
        """
        if isinstance(trajectories, Trajectory):
            trajectories = [trajectories]
            embeddings = [embeddings] if isinstance(embeddings, Tensor) else embeddings
        if not isinstance(correctness, Sequence):
            correctness = [correctness]
        inputs = self._inputs(trajectories, correctness, embeddings, groups)
        values = {
            name: _fitting(name, component.compute(inputs), inputs) for name, component in self.components.items()
        }
        found = {name: value for name, value in values.items() if value is not None}
        weights = {name: self.config.weight(name, step) for name in self.weights}
        scored = scored_components(inputs.steps)
        weights |= {name: weight for name, (_, weight) in scored.items()}
        scores = {name: score for name, (score, _) in scored.items()}
        result, self._pending = assemble(inputs, scores | found, weights, self.normalizer)
        if update:
            self.update()
        measured = {k: v for name in found for k, v in self.components[name].metrics().items()}
        return replace(result, metrics={**result.metrics, **measured})

    def update(self) -> None:
        """Add the last scored batch to the running statistics and let the components learn from it."""
        batch, self._pending = self._pending, {}
        self.normalizer.update(batch)
        for component in self.components.values():
            component.update()

    def _calculate_penalties(self, trajectory: Trajectory) -> list[Penalty]:
        return [penalty for step in check_steps(self.rules, trajectory) for penalty in step]

    def _normalize_rewards(self, rewards_tensor: Tensor, component_name: str) -> Tensor:
        """Normalise `rewards_tensor` (any shape) as configured for this component, without changing the statistics.

        z = (r - running_mean) / (running_std + epsilon) with a floored std.
        """
        flat = rewards_tensor.reshape(-1)
        return self.normalizer.normalize(flat, component_name).view(rewards_tensor.shape)

    def state_facts(self) -> dict[str, object]:
        """Return running statistics and the state of the components, as JSON values."""
        facts: dict[str, object] = {"format": STATE_FORMAT, "statistics": self.normalizer.to_json(), "curiosity": None}
        return facts | {name: component.state_facts() for name, component in self._stateful().items()}

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the state of the components as tensors, by flat names. Never empty."""
        tensors = {"format": torch.tensor([STATE_FORMAT])}
        for name, component in self._stateful().items():
            tensors |= {_tensor_name(name, key): value for key, value in component.state_tensors().items()}
        return tensors

    def load_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore `state_tensors` and `state_facts`. Raises RewardError if they come from other settings."""
        if facts.get("format") != STATE_FORMAT:
            raise RewardError(
                f"the saved rewards have format {facts.get('format')}, but this version reads {STATE_FORMAT}"
            )
        for name, component in self.components.items():
            if facts.get(name) is not None:
                prefix = _tensor_name(name, "")
                state_of_component = {
                    key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)
                }
                component.load_state(state_of_component, facts[name])
        self.normalizer.load_json(facts["statistics"])
        self._pending = {}

    def _stateful(self) -> dict[str, RewardComponent]:
        return {name: c for name, c in self.components.items() if c.state_facts() is not None}

    def _inputs(
        self,
        trajectories: Sequence[Trajectory],
        correctness: Sequence[Correctness],
        embeddings: Sequence[Tensor] | Tensor | None,
        groups: Sequence[Hashable] | None,
    ) -> RewardInputs:
        if len(correctness) != len(trajectories):
            raise RewardError(f"{len(trajectories)} trajectories, but {len(correctness)} correctness values")
        if groups is not None and len(groups) != len(trajectories):
            raise RewardError(f"{len(trajectories)} trajectories, but {len(groups)} groups")
        counts = [len(t.steps) for t in trajectories]
        sizes = torch.tensor(counts, dtype=torch.int64)
        last = torch.zeros(sum(counts), dtype=torch.bool)
        last[sizes[sizes > 0].cumsum(0) - 1] = True
        numbers: dict[Hashable, int] = {}
        names = groups if groups is not None else [t.group for t in trajectories]
        keys = [[step.action_key for step in t.steps] for t in trajectories]
        return RewardInputs(
            trajectories,
            correctness,
            steps=[step for t in trajectories for step in t.steps],
            keys=keys,
            last=last,
            rollout=torch.repeat_interleave(torch.arange(len(counts)), sizes),
            group=torch.tensor([numbers.setdefault(name, len(numbers)) for name in names], dtype=torch.int64),
            states=self._embeddings(trajectories, embeddings),
            penalties=[check_steps(self.rules, t, k) for t, k in zip(trajectories, keys, strict=True)],
        )

    def _embeddings(
        self, trajectories: Sequence[Trajectory], embeddings: Sequence[Tensor] | Tensor | None
    ) -> Tensor | None:
        """Concatenate the embeddings of all steps, float32 [N, D]. None if there are none and none is needed."""
        if embeddings is None and self.config.needs_embeddings:
            raise RewardError(
                "curiosity and coherence need state embeddings: pass embeddings, or set w_curiosity and w_coherence to "
                "0"
            )
        if embeddings is None:
            return None
        if len(embeddings) != len(trajectories):
            raise RewardError(f"{len(trajectories)} trajectories, but embeddings of {len(embeddings)}")
        for trajectory, rows in zip(trajectories, embeddings, strict=True):
            if rows.ndim != 2 or rows.shape[0] != len(trajectory.steps):
                raise RewardError(
                    f"trajectory {trajectory.id} has {len(trajectory.steps)} steps, but its embeddings have shape "
                    f"{tuple(rows.shape)}: give one row per step"
                )
        return torch.cat([rows.float() for rows in embeddings]) if trajectories else None


def assemble(
    batch: RewardInputs,
    values: Mapping[str, tuple[Tensor, Tensor]],
    weights: Mapping[str, float],
    normalizer: RewardNormalizer,
) -> tuple[RewardResult, dict[str, Moments]]:
    """Sum the reward of a batch. Returns it with the moments of each component's raw values for the running statistics.

    values: raw rewards of each component, float64 [N], and where they are defined, bool [N]. A value that is not finite
    counts as undefined and in `rewards/nonfinite`.
    """
    scale = {name: float(weights[name]) for name in values}
    components: list[dict[str, ComponentValue]] = [{} for _ in batch.steps]
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
    for i, (trajectory, found) in enumerate(zip(batch.trajectories, batch.penalties, strict=True)):
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
    counts = [len(t.steps) for t in batch.trajectories]
    mask = torch.arange(max(counts, default=0))[None] < torch.tensor(counts, dtype=torch.int64)[:, None]

    def padded(flat: Tensor, dtype: torch.dtype) -> Tensor:
        out = torch.zeros(*mask.shape, *flat.shape[1:], dtype=dtype)
        out[mask] = flat.to(dtype)
        return out

    total, parts = padded(sums, torch.float32), padded(contributions.T, torch.float64)
    return RewardResult(total, tuple(scale), parts, breakdowns, metrics), moments


def _fitting(name: str, values: Values | None, batch: RewardInputs) -> Values | None:
    """Check the values of a component. Raises RewardError unless there is one number per step."""
    steps = len(batch.steps)
    if values is not None and [tuple(v.shape) for v in values] != [(steps,), (steps,)]:
        shapes = " and ".join(str(tuple(v.shape)) for v in values)
        raise RewardError(
            f"the reward component {name} returned shapes {shapes} for {steps} steps: return one number per step"
        )
    return values


def _tensor_name(component: str, name: str) -> str:
    """Return the name of a component's tensor. Curiosity's tensors have no prefix, and checkpoints rely on that."""
    return name if component == "curiosity" else f"{component}.{name}"
