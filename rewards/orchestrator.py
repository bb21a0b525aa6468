"""The orchestrator: all components of a batch, normalised, weighted and added up, with every number kept.

`offline_rl.md`, Task 4. All steps of all trajectories go through one flat batch; Python only walks over the steps for
what is made of strings (actions, penalties) and for the breakdown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..configs.sections.rewards import COMPONENTS, RewardsConfig
from ..envs.tools import ToolSpec
from ..envs.trajectory import Step, Trajectory
from .breakdown import ComponentValue, Penalty, RewardBreakdown, StepReward
from .coherence import TrajectoryCoherenceAnalyzer
from .curiosity import CuriosityDrivenRewardModule, Gather
from .embedding import Embedder, HashedEmbedder
from .metrics import ACTION_DISTRIBUTION, action_distribution, component_metrics
from .moments import Moments, merge_all
from .normalization import RewardNormalizer, tensor_moments
from .penalties import Episode, PenaltyRule, PenaltyRuleError, make_rules
from .plugins import load_class
from .result import RewardResult

Correctness = bool | float | None
"""Whether the final answer is right: True or False, a score of its own scale, or None where nobody knows."""


class RewardError(ValueError):
    """Rewards cannot be computed as configured; the message says what is missing and what would be right."""


class RewardOrchestrator:
    """Computes the dense reward of trajectories: task, environment, curiosity, coherence and penalties.

    Weights given here take the place of those in `config`. `embedding_dim` may be left out: it is then that of the
    first embeddings. `gather` makes the processes of a distributed run share one set of statistics and one dynamics
    model: it collects a tensor [...] of every process into [P, ...]. Used the same way offline and online.
    """

    def __init__(
        self,
        w_curiosity: float | None = None,
        w_coherence: float | None = None,
        w_penalty: float | None = None,
        *,
        w_task: float | None = None,
        w_environment: float | None = None,
        config: RewardsConfig | None = None,
        embedding_dim: int | None = None,
        embedder: Embedder | None = None,
        rules: Sequence[PenaltyRule] | None = None,
        gather: Gather | None = None,
        seed: int = 0,
    ) -> None:
        base = config or RewardsConfig()
        given = {
            "w_curiosity": w_curiosity,
            "w_coherence": w_coherence,
            "w_penalty": w_penalty,
            "w_task": w_task,
            "w_environment": w_environment,
        }
        changed = {name: value for name, value in given.items() if value is not None}
        self.config = RewardsConfig.model_validate({**base.model_dump(), **changed})
        self.weights = {name: float(getattr(self.config, f"w_{name}")) for name in self.config.components}
        self.normalizer = RewardNormalizer(self.config.normalization, self.weights)
        self.coherence_module = TrajectoryCoherenceAnalyzer(self.config.coherence)
        self.curiosity_module: CuriosityDrivenRewardModule | None = None
        self.embedder = embedder if embedder is not None else _embedder(self.config.embedder)
        self.rules = list(rules) if rules is not None else make_rules(self.config)
        self.gather = gather
        self.seed = seed
        self._pending: dict[str, Moments] = {}
        self._tools: dict[int, tuple[tuple[ToolSpec, ...], dict[str, ToolSpec]]] = {}
        if embedding_dim is not None and self._wants_curiosity:
            self._curiosity(embedding_dim)

    @classmethod
    def from_config(
        cls,
        config: RewardsConfig,
        embedding_dim: int | None = None,
        *,
        embedder: Embedder | None = None,
        gather: Gather | None = None,
        seed: int = 0,
    ) -> RewardOrchestrator:
        """The orchestrator of a run's `rewards` section."""
        return cls(config=config, embedding_dim=embedding_dim, embedder=embedder, gather=gather, seed=seed)

    def calculate_total_reward(
        self,
        trajectories: Sequence[Trajectory] | Trajectory,
        correctness: Sequence[Correctness] | Correctness,
        *,
        embeddings: Sequence[Tensor] | Tensor | None = None,
        env_rewards: Sequence[Sequence[float]] | None = None,
        groups: Sequence[Any] | None = None,
        update: bool = True,
    ) -> RewardResult:
        """The dense reward of each step of each trajectory, with its whole breakdown.

        embeddings: [S_i, D] for each trajectory, a row a step (`pool_step_embeddings`); needed where curiosity or
        coherence carries weight and no embedder is plugged in. env_rewards: the environment's own rewards per step;
        left out, those in the steps. groups: the group of each trajectory; left out, `trajectory.group`.

        Statistics and dynamics model stay as they are while the batch is scored; afterwards they take it in (with
        `update=False` not before `update` is called, for evaluation never).
        Raises RewardError when embeddings are missing or do not fit the steps.
        """
        if isinstance(trajectories, Trajectory):
            trajectories, correctness = [trajectories], [correctness]  # type: ignore[list-item]
            embeddings = [embeddings] if isinstance(embeddings, Tensor) else embeddings
        assert isinstance(correctness, Sequence)
        if len(correctness) != len(trajectories):
            raise RewardError(f"{len(trajectories)} trajectories, but {len(correctness)} values of correctness")
        counts = [len(t.steps) for t in trajectories]
        steps = [step for t in trajectories for step in t.steps]
        keys = [[step.action_key for step in t.steps] for t in trajectories]
        rollout = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64))
        last = _last_steps(counts)

        states = self._embeddings(trajectories, counts, embeddings)
        penalties = [self._check(Episode(t, self._tools_of(t), k)) for t, k in zip(trajectories, keys, strict=True)]
        values: dict[str, tuple[Tensor, Tensor]] = {}
        everywhere = torch.ones(len(steps), dtype=torch.bool)
        for name in self.weights:
            if name == "task":
                task = torch.zeros(len(steps), dtype=torch.float64)
                outcome = [self._task_reward(t, c) for t, c in zip(trajectories, correctness, strict=True)]
                task[last] = torch.tensor([r for r, n in zip(outcome, counts, strict=True) if n], dtype=torch.float64)
                values[name] = (task, last)
            elif name == "environment" and self.weights[name]:
                own = [r for row in env_rewards for r in row] if env_rewards is not None else [s.reward for s in steps]
                values[name] = (torch.tensor(own, dtype=torch.float64), everywhere)
            elif name == "curiosity" and states is not None and self._wants_curiosity:
                module = self._curiosity(states.shape[-1])
                flat_keys = [key for row in keys for key in row]
                values[name] = (module.compute(states, steps, flat_keys, ~last), ~last)
            elif name == "coherence" and (states is not None or not self.config.coherence.similarity):
                values[name] = self.coherence_module.compute(states, keys)
            elif name == "penalty":
                amounts = [sum(p.amount for p in at) for row in penalties for at in row]
                values[name] = (torch.tensor(amounts, dtype=torch.float64), everywhere)
        result = self._assemble(trajectories, counts, rollout, values, penalties, groups)
        if update:
            self.update()
        return result

    def update(self) -> None:
        """Take the last scored batch into the running statistics and let the dynamics model learn from it.

        A collective call where `gather` is given: every process calls it equally often.
        """
        batch, self._pending = self._pending, {}
        if self.gather is not None:
            mine = [batch.get(name, Moments()).to_json() for name in self.weights]
            everyone = self.gather(torch.tensor(mine, dtype=torch.float64))
            batch = {
                name: merge_all(Moments.from_json(process[i].tolist()) for process in everyone)
                for i, name in enumerate(self.weights)
            }
        self.normalizer.update(batch)
        if self.curiosity_module is not None:
            self.curiosity_module.update()

    def _calculate_penalties(self, trajectory: Trajectory) -> list[Penalty]:
        """All penalties of a trajectory, in order of steps and rules."""
        return [p for step in self._check(Episode(trajectory, self._tools_of(trajectory))) for p in step]

    def _normalize_rewards(self, rewards_tensor: Tensor, component_name: str) -> Tensor:
        """`rewards_tensor` (any shape) normalised as this component is configured, by the statistics as they stand.

        z = (r - running_mean) / (running_std + epsilon) with a floored std; does not change the statistics.
        """
        flat = rewards_tensor.reshape(-1)
        return self.normalizer.normalize(flat, component_name).view(rewards_tensor.shape)

    @property
    def _wants_curiosity(self) -> bool:
        return self.weights.get("curiosity", 0.0) > 0

    def _curiosity(self, embedding_dim: int) -> CuriosityDrivenRewardModule:
        if self.curiosity_module is None:
            self.curiosity_module = CuriosityDrivenRewardModule(
                embedding_dim, self.config.curiosity, seed=self.seed, gather=self.gather
            )
        known = self.curiosity_module.model.embedding_dim
        if known != embedding_dim:
            raise RewardError(f"the dynamics model knows embeddings of width {known}, these have {embedding_dim}")
        return self.curiosity_module

    def _tools_of(self, trajectory: Trajectory) -> dict[str, ToolSpec]:
        """Tools by name; trajectories of an environment share the tuple, so it is looked up by identity."""
        found = self._tools.get(id(trajectory.tools))
        if found is None or found[0] is not trajectory.tools:
            if len(self._tools) > 256:
                self._tools.clear()
            found = self._tools[id(trajectory.tools)] = (trajectory.tools, {t.name: t for t in trajectory.tools})
        return found[1]

    def _check(self, episode: Episode) -> list[tuple[Penalty, ...]]:
        """The penalties of each step."""
        if "penalty" not in self.weights:
            return [()] * len(episode.steps)
        found: list[tuple[Penalty, ...]] = []
        for step in episode.steps:
            here: tuple[Penalty, ...] = ()
            for rule in self.rules:
                try:
                    penalty = rule.check(episode, step)
                except Exception as error:
                    raise PenaltyRuleError(
                        f"penalty rule {rule.id} failed at step {step.index} of trajectory {episode.trajectory.id}: "
                        f"{type(error).__name__}: {error}"
                    ) from error
                if penalty is not None:
                    here += (_checked(penalty, rule, step),)
            found.append(here)
        return found

    def _task_reward(self, trajectory: Trajectory, correctness: Correctness) -> float:
        if correctness is not None:
            return float(correctness)
        return 0.0 if self.weights.get("environment") else float(trajectory.env_reward)

    def _embeddings(
        self, trajectories: Sequence[Trajectory], counts: Sequence[int], embeddings: Sequence[Tensor] | Tensor | None
    ) -> Tensor | None:
        """All steps' embeddings one after another, float32 [N, D]; None where there are none and none is needed."""
        if embeddings is None and self.config.needs_embeddings:
            if self.embedder is None:
                raise RewardError(
                    "curiosity and coherence need state embeddings: pass embeddings, set rewards.embedder to hashed, "
                    "or set w_curiosity to 0 and coherence.similarity to false (or w_coherence to 0)"
                )
            embeddings = self.embedder(trajectories)
        if embeddings is None:
            return None
        if len(embeddings) != len(counts):
            raise RewardError(f"{len(counts)} trajectories, but embeddings for {len(embeddings)}")
        for i, (rows, count) in enumerate(zip(embeddings, counts, strict=True)):
            if rows.ndim != 2 or rows.shape[0] != count:
                raise RewardError(
                    f"trajectory {trajectories[i].id} has {count} steps, but its embeddings are {tuple(rows.shape)}: "
                    "one row a step"
                )
        return torch.cat([rows.float() for rows in embeddings]) if counts else None

    def _assemble(
        self,
        trajectories: Sequence[Trajectory],
        counts: Sequence[int],
        rollout: Tensor,
        values: Mapping[str, tuple[Tensor, Tensor]],
        penalties: Sequence[Sequence[tuple[Penalty, ...]]],
        groups: Sequence[Any] | None,
    ) -> RewardResult:
        names = tuple(name for name in COMPONENTS if name in values)
        weights = tuple(self.weights[name] for name in names)
        total_steps = rollout.numel()
        group = _group_ids(groups if groups is not None else [t.group for t in trajectories])
        raw = torch.zeros(len(names), total_steps, dtype=torch.float64)
        valid = torch.zeros(len(names), total_steps, dtype=torch.bool)
        normalized = torch.zeros_like(raw)
        metrics: dict[str, float | Mapping[str, float]] = {}
        nonfinite = 0
        self._pending = {}
        for i, name in enumerate(names):
            value, defined = values[name]
            finite = value.isfinite()
            nonfinite += int((defined & ~finite).sum())
            valid[i] = defined & finite
            raw[i] = torch.where(valid[i], value, 0.0)
            normalized[i] = self.normalizer.normalize(raw[i], name, valid=valid[i], rollout=rollout, group=group)
            self._pending[name] = tensor_moments(raw[i][valid[i]])
        contributions = normalized * torch.tensor(weights, dtype=torch.float64)[:, None]
        per_trajectory = torch.zeros(len(names), len(counts), dtype=torch.float64).index_add_(1, rollout, contributions)
        totals = per_trajectory.sum(dim=0)
        for i, name in enumerate(names):
            metrics |= component_metrics(
                name,
                self._pending[name],
                tensor_moments(normalized[i][valid[i]]),
                weights[i],
                self.normalizer.running[name],
                float(per_trajectory[i].mean()) if counts else 0.0,
            )
        metrics["rewards/total/mean"] = float(totals.mean()) if counts else 0.0
        metrics["rewards/total/std"] = float(totals.std()) if len(counts) > 1 else 0.0
        metrics["rewards/nonfinite"] = float(nonfinite)
        metrics["penalties/per_trajectory"] = sum(len(at) for row in penalties for at in row) / max(1, len(counts))
        if "curiosity" in names and self.curiosity_module is not None:
            metrics["curiosity/cache_hit_rate"] = self.curiosity_module.hit_rate
            if self.curiosity_module.loss is not None:
                metrics["curiosity/dynamics_loss"] = self.curiosity_module.loss
        metrics[ACTION_DISTRIBUTION] = action_distribution(trajectories)

        longest = max(counts, default=0)
        mask = torch.arange(longest)[None] < torch.tensor(counts, dtype=torch.int64)[:, None]

        def padded(flat: Tensor) -> Tensor:
            out = torch.zeros(len(counts), longest, len(names), dtype=flat.dtype)
            out[mask] = flat.T
            return out

        dense = torch.zeros(len(counts), longest, dtype=torch.float32)
        dense[mask] = contributions.sum(dim=0).float()
        return RewardResult(
            total=dense,
            mask=mask,
            component_names=names,
            weights=weights,
            raw=padded(raw),
            normalized=padded(normalized),
            contributions=padded(contributions),
            valid=padded(valid),
            breakdowns=_breakdowns(trajectories, names, weights, raw, normalized, contributions, valid, penalties),
            metrics=metrics,
        )


def _breakdowns(
    trajectories: Sequence[Trajectory],
    names: tuple[str, ...],
    weights: tuple[float, ...],
    raw: Tensor,
    normalized: Tensor,
    contributions: Tensor,
    valid: Tensor,
    penalties: Sequence[Sequence[tuple[Penalty, ...]]],
) -> list[RewardBreakdown]:
    columns = list(
        zip(names, weights, raw.tolist(), normalized.tolist(), contributions.tolist(), valid.tolist(), strict=True)
    )
    sums = contributions.sum(dim=0).tolist()
    out: list[RewardBreakdown] = []
    n = 0
    for trajectory, rows in zip(trajectories, penalties, strict=True):
        first = n
        steps: list[StepReward] = []
        for step, here in zip(trajectory.steps, rows, strict=True):
            components = {
                name: ComponentValue(r[n], z[n], weight, c[n]) for name, weight, r, z, c, ok in columns if ok[n]
            }
            steps.append(StepReward(step.index, components, here, sums[n]))
            n += 1
        out.append(RewardBreakdown(trajectory.id, tuple(steps), sum(sums[first:n])))
    return out


def _last_steps(counts: Sequence[int]) -> Tensor:
    """bool [N]: True at the last step of each trajectory."""
    last = torch.zeros(sum(counts), dtype=torch.bool)
    ends = torch.tensor([n for n in counts if n], dtype=torch.int64).cumsum(0) - 1
    last[ends] = True
    return last


def _group_ids(groups: Sequence[Any]) -> Tensor:
    """int64 [B]: groups numbered in order of first appearance."""
    numbers: dict[Any, int] = {}
    return torch.tensor([numbers.setdefault(g, len(numbers)) for g in groups], dtype=torch.int64)


def _checked(penalty: Any, rule: PenaltyRule, step: Step) -> Penalty:
    if not isinstance(penalty, Penalty) or not penalty.amount <= 0:
        raise PenaltyRuleError(f"penalty rule {rule.id} must return None or a Penalty with an amount <= 0")
    return penalty if penalty.step == step.index else replace(penalty, step=step.index)


def _embedder(name: str) -> Embedder | None:
    if name in ("reference", "none"):
        return None
    return HashedEmbedder() if name == "hashed" else load_class(name)()
