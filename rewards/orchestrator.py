"""The orchestrator: all components of a batch, normalised, weighted and added up, with every number kept.

All steps of all trajectories go through one flat batch; Python only walks over the steps for
what is made of strings (actions, penalties) and for the breakdown.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from ..configs.errors import GrpoTuiError
from ..configs.sections.rewards import POTENTIALS, RewardsConfig
from ..envs.tools import ToolSpec
from ..envs.trajectory import Step, Trajectory
from ..envs.user_code import UserCodeError, find_class
from .assembly import StepBatch, assemble
from .breakdown import Penalty
from .coherence import TrajectoryCoherenceAnalyzer
from .curiosity import CuriosityDrivenRewardModule
from .embedding import Embedder, HashedEmbedder
from .moments import Moments
from .normalization import RewardNormalizer
from .penalties import Episode, PenaltyRule, PenaltyRuleError, make_rules
from .potential import potential_differences
from .result import RewardResult
from .scores import scored_components

STATE_FORMAT = 1

Correctness = bool | float | None
"""Whether the final answer is right: True or False, a score of its own scale, or None where nobody knows."""


class RewardError(GrpoTuiError, ValueError):
    """Rewards cannot be computed as configured; the message says what is missing and what would be right."""


class RewardOrchestrator:
    """Computes the dense reward of trajectories: task, environment, curiosity, coherence and penalties.

    Weights given here take the place of those in `config`. `embedding_dim` may be left out: it is then that of the
    first embeddings. Used the same way offline and online; of several processes, one scores the rollouts of all.
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
        self.normalizer = RewardNormalizer(self.config.used_normalization, self.weights)
        self.coherence_module = TrajectoryCoherenceAnalyzer(self.config.coherence)
        self.curiosity_module: CuriosityDrivenRewardModule | None = None
        self.embedder = embedder if embedder is not None else _embedder(self.config.embedder)
        self.rules = list(rules) if rules is not None else make_rules(self.config)
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
        seed: int = 0,
    ) -> RewardOrchestrator:
        """The orchestrator of a run's `rewards` section."""
        return cls(config=config, embedding_dim=embedding_dim, embedder=embedder, seed=seed)

    def calculate_total_reward(
        self,
        trajectories: Sequence[Trajectory] | Trajectory,
        correctness: Sequence[Correctness] | Correctness,
        *,
        embeddings: Sequence[Tensor] | Tensor | None = None,
        env_rewards: Sequence[Sequence[float]] | None = None,
        groups: Sequence[Hashable] | None = None,
        update: bool = True,
        step: int = 0,
    ) -> RewardResult:
        """The dense reward of each step of each trajectory, with its whole breakdown.

        embeddings: [S_i, D] for each trajectory, a row a step (`pool_step_embeddings`); needed where curiosity or
        coherence carries weight and no embedder is plugged in. env_rewards: the environment's own rewards per step;
        left out, those in the steps. groups: the group of each trajectory; left out, `trajectory.group`. step:
        optimiser steps made so far, by which weights are annealed.

        Statistics and dynamics model stay as they are while the batch is scored; afterwards they take it in (with
        `update=False` not before `update` is called, for evaluation never).
        Raises RewardError when embeddings are missing or do not fit the steps.
        """
        if isinstance(trajectories, Trajectory):
            trajectories = [trajectories]
            embeddings = [embeddings] if isinstance(embeddings, Tensor) else embeddings
        if not isinstance(correctness, Sequence):
            correctness = [correctness]
        if len(correctness) != len(trajectories):
            raise RewardError(f"{len(trajectories)} trajectories, but {len(correctness)} values of correctness")
        if groups is not None and len(groups) != len(trajectories):
            raise RewardError(f"{len(trajectories)} trajectories, but {len(groups)} groups")
        batch = StepBatch.of(trajectories, groups)
        steps = [step for t in trajectories for step in t.steps]
        keys = [[step.action_key for step in t.steps] for t in trajectories]
        states = self._embeddings(trajectories, batch.counts, embeddings)
        penalties = [self._check(Episode(t, self._tools_of(t), k)) for t, k in zip(trajectories, keys, strict=True)]
        last, everywhere = batch.last, torch.ones_like(batch.last)
        values: dict[str, tuple[Tensor, Tensor]] = {}
        scored = scored_components(steps)
        for name in self.weights:
            if name == "task":
                if trajectories and all(t.judged_by for t in trajectories):
                    continue  # reward functions judge: their scores stand for themselves
                outcome = [self._task_reward(t, c) for t, c in zip(trajectories, correctness, strict=True) if t.steps]
                task = torch.zeros(len(steps), dtype=torch.float64)
                task[last] = torch.tensor(outcome, dtype=torch.float64)
                judged = torch.tensor([bool(t.judged_by) for t in trajectories for _ in t.steps], dtype=torch.bool)
                values[name] = (task, last & ~judged)
            elif name == "environment" and self.weights[name]:
                own = env_rewards if env_rewards is not None else [[s.reward for s in t.steps] for t in trajectories]
                if [len(row) for row in own] != list(batch.counts):
                    raise RewardError("env_rewards needs one number for each step of each trajectory")
                values[name] = (torch.tensor([r for row in own for r in row], dtype=torch.float64), everywhere)
            elif name == "curiosity" and states is not None and self._wants_curiosity:
                flat_keys = [key for row in keys for key in row]
                module = self._curiosity(states.shape[-1])
                values[name] = (module.compute(states, steps, flat_keys, ~last), ~last)
            elif name == "coherence" and (states is not None or not self.config.coherence.similarity):
                values[name] = self.coherence_module.compute(states, keys)
            elif name == "penalty":
                amounts = [sum(p.amount for p in at) for row in penalties for at in row]
                values[name] = (torch.tensor(amounts, dtype=torch.float64), everywhere)
        if self.config.shaping == "potential":
            for name in POTENTIALS:
                if name in values:
                    values[name] = (potential_differences(*values[name], last), everywhere)
        weights = {name: self.config.weight(name, step) for name in self.weights}
        weights |= {name: component.weight for name, component in scored.items()}
        values |= {name: (component.raw, component.defined) for name, component in scored.items()}
        result, self._pending = assemble(batch, values, weights, penalties, self.normalizer)
        if update:
            self.update()
        if "curiosity" in values:
            result = replace(result, metrics={**result.metrics, **self._curiosity_metrics()})
        return result

    def update(self) -> None:
        """Take the last scored batch into the running statistics and let the dynamics model learn from it."""
        batch, self._pending = self._pending, {}
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

    def state_facts(self) -> dict[str, Any]:
        """Running statistics and the version of the dynamics model, as JSON values."""
        module = self.curiosity_module
        return {
            "format": STATE_FORMAT,
            "statistics": self.normalizer.to_json(),
            "curiosity": module.state_facts() if module else None,
        }

    def state_tensors(self) -> dict[str, Tensor]:
        """Weights, optimiser and random state of the dynamics model, by flat names; never empty."""
        module = self.curiosity_module
        return {"format": torch.tensor([STATE_FORMAT]), **(module.state_tensors() if module else {})}

    def load_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """The inverse of `state_tensors` and `state_facts`.

        Raises RewardError when they are of other settings or of another format.
        """
        if facts.get("format") != STATE_FORMAT:
            raise RewardError(f"the saved rewards have format {facts.get('format')}, this version reads {STATE_FORMAT}")
        if facts["curiosity"] is not None and self._wants_curiosity:
            try:
                self._curiosity(int(facts["curiosity"]["embedding_dim"])).load_state(tensors, facts["curiosity"])
            except (RuntimeError, KeyError) as error:
                raise RewardError(
                    "the saved dynamics model does not fit rewards.curiosity: keep hidden and lora_rank as they were, "
                    f"or start a new run ({str(error).splitlines()[0]})"
                ) from error
        self.normalizer.load_json(facts["statistics"])
        self._pending = {}

    @property
    def _wants_curiosity(self) -> bool:
        return self.weights.get("curiosity", 0.0) > 0

    def _curiosity(self, embedding_dim: int) -> CuriosityDrivenRewardModule:
        if self.curiosity_module is None:
            self.curiosity_module = CuriosityDrivenRewardModule(embedding_dim, self.config.curiosity, seed=self.seed)
        known = self.curiosity_module.model.embedding_dim
        if known != embedding_dim:
            raise RewardError(f"the dynamics model knows embeddings of width {known}, these have {embedding_dim}")
        return self.curiosity_module

    def _curiosity_metrics(self) -> dict[str, float]:
        module = self.curiosity_module
        if module is None:
            return {}
        loss = {} if module.loss is None else {"curiosity/dynamics_loss": module.loss}
        return {"curiosity/cache_hit_rate": module.hit_rate, "curiosity/version": float(module.model.version), **loss}

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
        return 0.0 if self.weights.get("environment") else float(trajectory.env_reward or 0.0)

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


def _checked(penalty: Any, rule: PenaltyRule, step: Step) -> Penalty:
    if not isinstance(penalty, Penalty) or not penalty.amount <= 0:
        raise PenaltyRuleError(f"penalty rule {rule.id} must return None or a Penalty with an amount <= 0")
    return penalty if penalty.step == step.index else replace(penalty, step=step.index)


def _embedder(name: str) -> Embedder | None:
    if name in ("reference", "none"):
        return None
    if name == "hashed":
        return HashedEmbedder()
    try:
        made = find_class(name)()
    except UserCodeError as error:
        raise RewardError(f"rewards.embedder: {error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise RewardError(f"rewards.embedder: {name} cannot be made without arguments ({reason})") from error
    if not callable(made):
        raise RewardError(f"rewards.embedder: {name} has no method __call__(self, trajectories)")
    return cast("Embedder", made)
