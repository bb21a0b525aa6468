"""R_curiosity: the prediction error of a dynamics model that learns online.

The model is a small MLP with a frozen base and peft's LoRA adapters. The base is random: a fixed non-linear expansion
of (state, action) whose output starts near zero, so that the untrained model predicts no change. Only the low-rank
update is learned, which suits the low-rank changes that actions make to a state embedding.

A step's state embedding s_t is the mean of the reference's last hidden states over the tokens that the agent wrote in
that step, before the environment answers. So (s_t, a_t) -> s_{t+1} is the transition that the answer to a_t causes, and
the last step has no s_{t+1}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from cachetools import LRUCache
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn

from ...configs import metric_names as metric
from ...configs.sections.rewards import RewardsConfig
from ...envs.trajectory import Step
from .base import RewardComponent, RewardError, RewardInputs, Values

TRAINABLE_SHARE = 0.1
"""Maximum share of trainable parameters."""


class ActionEncoder:
    """Encodes actions by feature hashing (Weinberger et al. 2009, arXiv 0902.2206). Vectors are the same in every
    process, equal for equal tool and arguments, and near for equal tools."""

    dimension = 64

    def __init__(self) -> None:
        self._known: LRUCache[str, np.ndarray] = LRUCache(8192)

    def __call__(self, steps: Sequence[Step], keys: Sequence[str]) -> Tensor:
        """Encode actions, float32 [N, A], one row each. `keys` are the canonical actions of `steps`."""
        rows = np.empty((len(steps), self.dimension), dtype=np.float32)
        for i, (step, key) in enumerate(zip(steps, keys, strict=True)):
            if key not in self._known:
                self._known[key] = self._encode(step)
            rows[i] = self._known[key]
        return torch.from_numpy(rows)

    def _encode(self, step: Step) -> np.ndarray:
        """Return the tool's vector plus half of each argument's vector, scaled, float32 [A]."""
        texts = [step.action or "?", *(f"{step.action} {name}={value!r}" for name, value in step.arguments.items())]
        tool, *arguments = _signs(texts)
        return (tool + 0.5 * sum(arguments, np.zeros_like(tool))) / np.float32(np.sqrt(self.dimension))


def _signs(texts: Sequence[str]) -> np.ndarray:
    """Return a fixed vector of +1 and -1 for each text, float32 [K, A]."""
    size = ActionEncoder.dimension // 8
    bits = b"".join(blake2b(text.encode("utf-8", "replace"), digest_size=size).digest() for text in texts)
    flags = np.unpackbits(np.frombuffer(bits, dtype=np.uint8).reshape(len(texts), size), axis=1)
    return flags.astype(np.float32) * 2 - 1


class DynamicsModel(nn.Module):
    """Predicts the change of the state embedding: `(s_t [N, D], a_t [N, A]) -> s_{t+1} - s_t [N, D]`.

    `lora_rank` is lowered where needed, so that at most a tenth of all parameters train. `version` increases with each
    change of the weights and is part of the cache key of predictions.
    """

    def __init__(
        self, embedding_dim: int, action_dim: int = 64, hidden: int = 128, lora_rank: int = 8, seed: int = 0
    ) -> None:
        super().__init__()
        self.embedding_dim = embedding_dim
        self.version = 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.expand = nn.Linear(embedding_dim + action_dim, hidden)
            self.project = nn.Linear(hidden, embedding_dim)
            with torch.no_grad():
                self.project.weight.mul_(0.1)
                self.project.bias.zero_()
            self.lora_rank = min(lora_rank, _largest_rank(embedding_dim + action_dim, hidden, embedding_dim))
            adapters = LoraConfig(
                r=self.lora_rank, lora_alpha=2 * self.lora_rank, target_modules=["expand", "project"], bias="none"
            )
            inject_adapter_in_model(adapters, self)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_("lora_" in name)

    def forward(self, state: Tensor, action: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.expand(torch.cat((state, action), dim=-1)))
        return self.project(hidden)

    def adapters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}


def _largest_rank(inputs: int, hidden: int, outputs: int) -> int:
    """Return the largest LoRA rank that keeps the trainable share within `TRAINABLE_SHARE`, at least 1."""
    base = inputs * hidden + hidden + hidden * outputs + outputs
    per_rank = inputs + 2 * hidden + outputs
    return max(1, int(TRAINABLE_SHARE / (1 - TRAINABLE_SHARE) * base / per_rank))


TRAIN_BATCH_SIZE = 128
"""Maximum transitions of a batch in one training step of the dynamics model."""
CACHE_SIZE = 4096
"""Number of predictions in the LRU cache."""

_Key = tuple[int, bytes, str]
"""Version of the model, bytes of s_t, canonical a_t."""


_Transitions = tuple[Tensor, Tensor, Tensor, Tensor]
"""Training data of the dynamics model: states [M, D], actions [M, A], changes of state [M, D], and bool [M], True for
transitions without NaN or infinity."""


class CuriosityDrivenRewardModule:
    """Prediction error of a `DynamicsModel` on each transition, with a cache of its predictions.

    States are scaled to root mean square 1, so the reward's size depends neither on the scale of the embeddings nor on
    their width: error_t = mean over D of (f(s_t, a_t) - (s_{t+1} - s_t))^2.

    Equal transitions of a batch are predicted once. Between batches, an LRU cache keeps predictions while the model is
    unchanged, as in serving. Its key is the model's version and (s_t, a_t), byte for byte. In training, the model
    learns after every batch, so nothing is kept.
    """

    def __init__(self, embedding_dim: int, *, hidden: int = 128, learning_rate: float = 3e-3, seed: int = 0) -> None:
        self.encode = ActionEncoder()
        self.model = DynamicsModel(embedding_dim, self.encode.dimension, hidden, seed=seed)
        self.optimizer = torch.optim.Adam(self.model.adapters().values(), lr=learning_rate)
        self.cache: LRUCache[_Key, np.ndarray] = LRUCache(CACHE_SIZE)
        self._fresh: dict[_Key, np.ndarray] = {}
        self.hit_rate = 0.0
        """Share of the last batch's transitions that were cached from an earlier batch."""
        self.repeat_rate = 0.0
        """Share of the last batch's transitions that were equal to another one in the batch."""
        self.loss: float | None = None
        self._generator = torch.Generator().manual_seed(seed)
        self._pending: _Transitions | None = None

    @torch.no_grad()
    def compute(self, embeddings: Tensor, steps: Sequence[Step], keys: Sequence[str], has_next: Tensor) -> Tensor:
        """Return R_curiosity of each step, float64 [N]; 0 at the last step of a trajectory, which has no s_{t+1}.

        embeddings: [N, D], the steps of all trajectories, concatenated. keys: their canonical actions. has_next: bool
        [N], False at the last step of each trajectory. Keeps the transitions for `update`.
        """
        # The batch is large and the model small, so each pass over [N, D] is expensive. Make as few as possible.
        states = rms_normalized(embeddings.float().cpu())
        positions = has_next.nonzero(as_tuple=True)[0]
        indices: list[int] = positions.tolist()
        keys = [keys[i] for i in indices]
        action = self.encode([steps[i] for i in indices], keys)
        state, change = states[positions], (states[1:] - states[:-1])[positions]
        rewards = torch.zeros(has_next.numel(), dtype=torch.float64)
        finite = torch.ones(0, dtype=torch.bool)
        if indices:
            off = self._predict(state, action, keys) - change
            errors = torch.linalg.vector_norm(off, dim=-1).double().square() / off.shape[-1]
            rewards[positions] = errors
            finite = errors.isfinite()
        self._pending = state, action, change, finite
        return rewards

    def update(self) -> float | None:
        """Train the model on the transitions of the last `compute`. Returns the loss before the step, or None if there
        were no transitions."""
        pending, self._pending = self._pending, None
        if pending is None:
            return None
        *transitions, finite = pending
        chosen = finite.nonzero(as_tuple=True)[0]
        if len(chosen) > TRAIN_BATCH_SIZE:
            chosen = chosen[torch.randperm(len(chosen), generator=self._generator)[:TRAIN_BATCH_SIZE]]
        if not len(chosen):
            return self.loss
        states, actions, changes = (rows[chosen] for rows in transitions)
        parameters = list(self.model.adapters().values())
        loss = (self.model(states, actions) - changes).square().mean()
        gradients = torch.autograd.grad(loss, parameters)
        if not all(bool(torch.isfinite(g).all()) for g in (loss, *gradients)):
            return self.loss
        self.loss = float(loss.detach())
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.version += 1
        return self.loss

    def _predict(self, state: Tensor, action: Tensor, keys: Sequence[str]) -> Tensor:
        """Predict changes, [M, D]. Equal rows are computed once."""
        self._store()
        version = self.model.version
        pairs = [(version, row.tobytes(), key) for row, key in zip(state.numpy(), keys, strict=True)]
        found: dict[_Key, np.ndarray | None] = {}
        missing: dict[_Key, int] = {}
        for i, pair in enumerate(pairs):
            if pair not in found:
                found[pair] = self.cache.get(pair)
                if found[pair] is None:
                    missing[pair] = i
        hits = sum(pair not in missing for pair in pairs)
        self.hit_rate, self.repeat_rate = hits / len(pairs), (len(pairs) - hits - len(missing)) / len(pairs)
        if missing:
            if len(missing) < len(pairs):
                chosen = torch.tensor(list(missing.values()))
                state, action = state[chosen], action[chosen]
            fresh = self.model(state, action)
            self._fresh = dict(zip(missing, fresh.numpy(), strict=True))
            if len(missing) == len(pairs):
                return fresh
            found |= self._fresh
        return torch.from_numpy(np.stack([found[pair] for pair in pairs]))  # type: ignore[arg-type]

    def _store(self) -> None:
        """Cache the predictions of the last batch, unless the model has changed since."""
        fresh, self._fresh = self._fresh, {}
        if fresh and next(iter(fresh))[0] == self.model.version:
            for pair, prediction in fresh.items():
                self.cache[pair] = prediction.copy()  # a view would keep its whole batch alive

    def state_tensors(self) -> dict[str, Tensor]:
        """Return the learned state as tensors by flat names: model, optimiser, random state."""
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.adapters().items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"adam.{key}.{name}"] = value
        tensors["generator"] = self._generator.get_state()
        return {name: value.detach().clone() for name, value in tensors.items()}

    def state_facts(self) -> dict[str, object]:
        return {"version": self.model.version, "embedding_dim": self.model.embedding_dim}

    def load_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore `state_tensors` and `state_facts`. Clears the cache, because a version number may now repeat."""
        model = {name.removeprefix("model."): v for name, v in tensors.items() if name.startswith("model.")}
        self.model.load_state_dict(model)
        self.model.version = int(facts["version"])
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
        self._fresh = {}
        self.cache.clear()


class CuriosityReward(RewardComponent):
    """The prediction error of each transition. The last step of a trajectory has no next state and is undefined.

    The module is created once the width of the embeddings is known.
    """

    def __init__(self, config: RewardsConfig, seed: int) -> None:
        self.counts = config.w_curiosity > 0
        self.seed = seed
        self.module: CuriosityDrivenRewardModule | None = None

    def make(self, embedding_dim: int) -> CuriosityDrivenRewardModule:
        """Return the module for embeddings of this width, creating it once. Raises RewardError if its width differs."""
        if self.module is None:
            self.module = CuriosityDrivenRewardModule(embedding_dim, seed=self.seed)
        known = self.module.model.embedding_dim
        if known != embedding_dim:
            raise RewardError(f"the dynamics model expects embeddings of width {known}, these have {embedding_dim}")
        return self.module

    def compute(self, batch: RewardInputs) -> Values | None:
        if batch.states is None or not self.counts:
            return None
        keys = [key for row in batch.keys for key in row]
        has_next = ~batch.last
        return self.make(batch.states.shape[-1]).compute(batch.states, batch.steps, keys, has_next), has_next

    def update(self) -> None:
        if self.module is not None:
            self.module.update()

    def metrics(self) -> Mapping[str, float]:
        module = self.module
        if module is None:
            return {}
        loss = {} if module.loss is None else {metric.CURIOSITY_DYNAMICS_LOSS: module.loss}
        return {
            metric.CURIOSITY_REPEAT_RATE: module.repeat_rate,
            metric.CURIOSITY_CACHE_HIT_RATE: module.hit_rate,
            metric.CURIOSITY_VERSION: float(module.model.version),
            **loss,
        }

    def state_facts(self) -> dict[str, object] | None:
        return None if self.module is None else self.module.state_facts()

    def state_tensors(self) -> dict[str, Tensor]:
        return {} if self.module is None else self.module.state_tensors()

    def load_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if not self.counts:
            return
        try:
            self.make(int(facts["embedding_dim"])).load_state(tensors, facts)
        except (RuntimeError, KeyError) as error:
            raise RewardError(
                "the saved curiosity model and this version's model have different sizes: start a new run, or set "
                f"rewards.w_curiosity to 0 ({str(error).splitlines()[0]})"
            ) from error


def rms_normalized(states: Tensor) -> Tensor:
    """Divide each row by its root mean square, [N, D]. Rows of zeros stay zero."""
    rms = torch.linalg.vector_norm(states, dim=-1, keepdim=True) / states.shape[-1] ** 0.5
    return states / rms.clamp(min=1e-8)
