"""State and action embeddings. States come from the frozen reference pass, or from a plug-in. Actions are hashed.

A step's state embedding s_t is the mean of the last hidden states over the tokens that the agent wrote in that step:
the policy's reference at the time of the action, before the environment answers. So (s_t, a_t) -> s_{t+1} is the
transition that the answer to a_t makes, and the last step has no s_{t+1}.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ..envs.trajectory import Step, Trajectory


class Embedder(Protocol):
    """Makes state embeddings from trajectories, without a reference pass."""

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[Tensor]:
        """Return float32 [S_i, D] for each trajectory, a row a step. Equal steps get equal rows."""
        ...


def pool_step_embeddings(
    hidden_states: Tensor, turn_ids: Tensor, agent_mask: Tensor, steps: Sequence[int]
) -> list[Tensor]:
    """Return the mean of the last hidden states over each step's agent tokens.

    hidden_states: [B, T, D]. turn_ids: int [B, T], -1 in the prompt. agent_mask: [B, T], non-zero where the agent wrote
    the token. steps: S_i for each row. Returns float32 [S_i, D] for each row, on the device of `hidden_states`. A step
    without tokens gets zeros.
    """
    batch, _, width = hidden_states.shape
    slots = max(steps, default=0)
    counted = agent_mask.bool() & (turn_ids >= 0) & (turn_ids < slots)
    row, column = counted.nonzero(as_tuple=True)
    index = row * slots + turn_ids[row, column].long()
    means = segment_means(hidden_states[row, column], index, batch * slots).view(batch, slots, width)
    return [means[i, :count] for i, count in enumerate(steps)]


def segment_means(values: Tensor, segment: Tensor, number: int) -> Tensor:
    """Return means of `values` [M, D] over the rows of each segment, float32 [number, D]; zeros without rows.

    segment: int64 [M], below `number`.
    """
    sums = torch.zeros(number, values.shape[-1], dtype=torch.float32, device=values.device)
    sums.index_add_(0, segment, values.float())
    return sums / torch.bincount(segment, minlength=number).clamp(min=1)[:, None]


class ActionEncoder:
    """Actions as vectors by feature hashing (Weinberger et al. 2009, arXiv 0902.2206): deterministic in every
    process, equal for equal tool and arguments, near for equal tools."""

    KNOWN = 8192
    """Vectors that are kept; when there are more, all are forgotten (making one costs little)."""

    dimension = 64

    def __init__(self) -> None:
        self._known: dict[str, np.ndarray] = {}

    def __call__(self, steps: Sequence[Step], keys: Sequence[str]) -> Tensor:
        """Return float32 [N, A], a row an action. `keys` are the canonical actions of `steps`."""
        rows = np.empty((len(steps), self.dimension), dtype=np.float32)
        new: dict[str, list[int]] = {}
        for i, key in enumerate(keys):
            vector = self._known.get(key)
            if vector is None:
                new.setdefault(key, []).append(i)
            else:
                rows[i] = vector
        if new:
            if len(self._known) > self.KNOWN:
                self._known.clear()
            vectors = self._encode([steps[places[0]] for places in new.values()])
            for (key, places), vector in zip(new.items(), vectors, strict=True):
                self._known[key] = vector
                rows[places] = vector
        return torch.from_numpy(rows)

    def _encode(self, steps: Sequence[Step]) -> np.ndarray:
        """Return float32 [K, A]: the tool's vector plus half of each argument's, all at once."""
        texts: list[str] = []
        first: list[int] = []
        for step in steps:
            first.append(len(texts))
            texts.append(step.action or "?")
            texts += [f"{step.action} {name}={value!r}" for name, value in step.arguments.items()]
        signs = _signs(texts, self.dimension)
        weights = np.full((len(texts), 1), 0.5, dtype=np.float32)
        weights[first] = 1.0
        return np.add.reduceat(signs * weights, first, axis=0) / np.float32(np.sqrt(self.dimension))


class HashedEmbedder:
    """State embeddings without a model: hashed words of the last observation and of the action.

    A plug-in for training without a reference pass. It is deterministic and knows no meaning beyond equal words.
    """

    dimension = 128

    def __call__(self, trajectories: Sequence[Trajectory]) -> list[Tensor]:
        """Return float32 [S_i, D] for each trajectory, with rows of length 1."""
        return [self._trajectory(t) for t in trajectories]

    def _trajectory(self, trajectory: Trajectory) -> Tensor:
        rows = np.zeros((len(trajectory.steps), self.dimension), dtype=np.float32)
        seen = trajectory.prompt
        for i, step in enumerate(trajectory.steps):
            for word in _WORD.findall(f"{seen[:2000]} {step.action_key[:500]}"):
                rows[i] += _word_signs(word, self.dimension)
            seen = step.observation
        length = np.linalg.norm(rows, axis=1, keepdims=True)
        return torch.from_numpy(rows / np.maximum(length, 1e-8))


_WORD = re.compile(r"\w+")


@lru_cache(maxsize=16384)
def _word_signs(word: str, dimension: int) -> np.ndarray:
    return _signs([word], dimension)[0]


def _signs(texts: Sequence[str], dimension: int) -> np.ndarray:
    """Return a fixed vector of +1 and -1 for each text, float32 [K, dimension]."""
    blocks = -(-dimension // 512)
    size = -(-dimension // (8 * blocks))
    bits = b"".join(
        blake2b(text.encode("utf-8", "replace"), digest_size=size, salt=block.to_bytes(8, "little")).digest()
        for text in texts
        for block in range(blocks)
    )
    flags = np.unpackbits(np.frombuffer(bits, dtype=np.uint8).reshape(len(texts), -1), axis=1)[:, :dimension]
    return flags.astype(np.float32) * 2 - 1
