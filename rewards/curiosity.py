"""R_curiosity: the error of a dynamics model that learns while rollouts come in (`offline_rl.md`, Task 2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from cachetools import LRUCache
from torch import Tensor
from torch.func import functional_call

from ..configs.sections.rewards import CuriosityConfig
from ..envs.trajectory import Step
from .dynamics import DynamicsModel
from .embedding import ActionEncoder

Gather = Callable[[Tensor], Tensor]
"""Collects one tensor [...] of each of P processes into [P, ...], the same on every process."""


_Key = tuple[int, bytes]
"""Version of the model, digest of (s_t, a_t)."""


@dataclass(frozen=True)
class _Transitions:
    """What the dynamics model learns from: states [M, D], actions [M, A], changes of state [M, D]."""

    states: Tensor
    actions: Tensor
    changes: Tensor


class CuriosityDrivenRewardModule:
    """Prediction error of a `DynamicsModel` on each transition, with a cache of its predictions.

    States are brought to root mean square 1, so the reward's size depends neither on the embedder's scale nor on its
    width: error_t = mean over D of (f(s_t, a_t) - (s_{t+1} - s_t))^2. In `progress` mode the reward is the error of
    an exponential average of past adapters minus the present error: what is being learnt, not what is unpredictable
    (Schmidhuber 1991; Oudeyer, Kaplan and Hafner 2007).

    The cache is a true LRU, keyed by the model's version and a 128-bit digest of the whole (s_t, a_t).
    """

    def __init__(
        self, embedding_dim: int, config: CuriosityConfig | None = None, *, seed: int = 0, gather: Gather | None = None
    ) -> None:
        self.config = config or CuriosityConfig()
        self.gather = gather
        self.encode = ActionEncoder()
        self.model = DynamicsModel(
            embedding_dim, self.encode.dimension, self.config.hidden, self.config.lora_rank, seed=seed
        )
        self.optimizer = torch.optim.Adam(self.model.adapters().values(), lr=self.config.learning_rate)
        self.slow = {name: p.detach().clone() for name, p in self.model.adapters().items()}
        self.cache: LRUCache[_Key, np.ndarray] = LRUCache(self.config.cache_size)
        self.hits = 0
        self.lookups = 0
        self.loss: float | None = None
        self._generator = torch.Generator().manual_seed(seed)
        self._pending: _Transitions | None = None

    @torch.no_grad()
    def compute(self, embeddings: Tensor, steps: Sequence[Step], keys: Sequence[str], has_next: Tensor) -> Tensor:
        """R_curiosity of each step, float64 [N]; 0 at the last step of a trajectory, which has no s_{t+1}.

        embeddings: [N, D], the steps of all trajectories one after another; keys: their canonical actions; has_next:
        bool [N], False at the last step of each trajectory. Keeps the transitions for `update`.
        """
        states = rms_normalized(embeddings.float().cpu())
        here = has_next.nonzero(as_tuple=True)[0]
        indices: list[int] = here.tolist()
        state, change = states[here], states[here + 1] - states[here]
        action = self.encode([steps[i] for i in indices], [keys[i] for i in indices])
        self._pending = _Transitions(state, action, change)
        rewards = torch.zeros(has_next.numel(), dtype=torch.float64)
        if indices:
            predicted = self._predict(state, action, [keys[i] for i in indices])
            errors = (predicted - change[:, None]).square().mean(dim=-1, dtype=torch.float64)
            rewards[here] = errors[:, 0] if self.config.mode == "error" else errors[:, 1] - errors[:, 0]
        return rewards

    def update(self) -> float | None:
        """Train the model on the transitions of the last `compute`; the loss before the step, or None without any.

        With `gather`, the gradient is the mean over the transitions of all processes, which stay equal.
        """
        pending, self._pending = self._pending, None
        if pending is None and self.gather is None:
            return None
        for _ in range(self.config.train_steps):
            self._train_step(pending)
        return self.loss

    @property
    def hit_rate(self) -> float:
        """Share of the last batch's transitions that needed no forward pass."""
        return self.hits / self.lookups if self.lookups else 0.0

    def _predict(self, state: Tensor, action: Tensor, keys: Sequence[str]) -> Tensor:
        """Predicted changes, [M, K, D]: K is 1, or 2 in `progress` mode (now, slow). Equal rows are computed once."""
        rows, version = state.numpy(), self.model.version
        digests = [
            (
                version,
                blake2b(
                    key.encode("utf-8", "replace"), key=blake2b(row, digest_size=32).digest(), digest_size=16
                ).digest(),
            )
            for row, key in zip(rows, keys, strict=True)
        ]
        found: dict[_Key, np.ndarray | None] = {}
        missing: dict[_Key, int] = {}
        for i, digest in enumerate(digests):
            if digest not in found:
                found[digest] = self.cache.get(digest)
                if found[digest] is None:
                    missing[digest] = i
        self.lookups, self.hits = len(digests), len(digests) - len(missing)
        if missing:
            chosen = torch.tensor(list(missing.values()))
            fresh = self._forward(state[chosen], action[chosen])
            for digest, prediction in zip(missing, fresh.numpy(), strict=True):
                found[digest] = prediction
                if self.config.cache_size:
                    self.cache[digest] = prediction.copy()  # a view would keep its whole batch alive
            if not self.hits:
                return fresh
        return torch.from_numpy(np.stack([found[digest] for digest in digests]))  # type: ignore[arg-type]

    def _forward(self, state: Tensor, action: Tensor) -> Tensor:
        now = self.model(state, action)
        if self.config.mode == "error":
            return now[:, None]
        return torch.stack((now, functional_call(self.model, self.slow, (state, action))), dim=1)

    def _train_step(self, pending: _Transitions | None) -> None:
        parameters = list(self.model.adapters().values())
        flat = torch.zeros(sum(p.numel() for p in parameters) + 2, dtype=torch.float64)
        batch = self._sample(pending)
        if batch is not None:
            predicted = self.model(batch.states, batch.actions)
            loss = (predicted - batch.changes).square().mean()
            gradients = torch.autograd.grad(loss, parameters)
            count = batch.states.shape[0]
            flat = torch.cat([g.reshape(-1) for g in (*gradients, loss.detach(), torch.ones(()))]).double() * count
        if self.gather is not None:
            flat = self.gather(flat).sum(dim=0)
        count = float(flat[-1])
        if not count or not bool(torch.isfinite(flat).all()):
            return
        flat = (flat / count).float()
        self.loss = float(flat[-2])
        for parameter, gradient in zip(parameters, flat[:-2].split([p.numel() for p in parameters]), strict=True):
            parameter.grad = gradient.view_as(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.changed()
        with torch.no_grad():
            for name, parameter in self.model.adapters().items():
                self.slow[name].lerp_(parameter, 1 - self.config.progress_decay)

    def _sample(self, pending: _Transitions | None) -> _Transitions | None:
        """At most `train_batch_size` transitions, drawn without replacement, without those that are not finite."""
        if pending is None:
            return None
        states, actions, changes = pending.states, pending.actions, pending.changes
        if len(states) > self.config.train_batch_size:
            chosen = torch.randperm(len(states), generator=self._generator)[: self.config.train_batch_size]
            states, actions, changes = states[chosen], actions[chosen], changes[chosen]
        finite = states.isfinite().all(dim=-1) & changes.isfinite().all(dim=-1)
        if not bool(finite.all()):
            states, actions, changes = states[finite], actions[finite], changes[finite]
        return _Transitions(states, actions, changes) if len(states) else None

    def state_tensors(self) -> dict[str, Tensor]:
        """Everything that has been learnt: model, slow adapters, optimiser, random state. Tensors by flat names."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"slow.{name}": value for name, value in self.slow.items()}
        for name, parameter in self.model.adapters().items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"adam.{key}.{name}"] = value
        tensors["generator"] = self._generator.get_state()
        return {name: value.detach().clone() for name, value in tensors.items()}

    def state_facts(self) -> dict[str, Any]:
        """What `state_tensors` leaves out, as JSON values."""
        return {"version": self.model.version, "embedding_dim": self.model.embedding_dim}

    def load_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """The inverse of `state_tensors` and `state_facts`. The cache is emptied: a version may come twice now."""
        self.model.load_state_dict(_under(tensors, "model."))
        self.model.version = int(facts["version"])
        self.slow = {name: value.clone() for name, value in _under(tensors, "slow.").items()}
        self.optimizer.state.clear()
        for name, parameter in self.model.adapters().items():
            state = {
                key: tensors[f"adam.{key}.{name}"].clone()
                for key in ("step", "exp_avg", "exp_avg_sq")
                if f"adam.{key}.{name}" in tensors
            }
            if state:
                self.optimizer.state[parameter] = state
        self._generator.set_state(tensors["generator"])
        self._pending = None
        self.cache.clear()


def rms_normalized(states: Tensor) -> Tensor:
    """Each row divided by its root mean square, [N, D]; a row of zeros stays."""
    return states / states.square().mean(dim=-1, keepdim=True).sqrt().clamp(min=1e-8)


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
