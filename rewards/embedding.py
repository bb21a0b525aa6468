"""State and action embeddings. States come from the forward pass of the frozen reference. Actions are hashed.

A step's state embedding s_t is the mean of the reference's last hidden states over the tokens that the agent wrote in
that step, before the environment answers. So (s_t, a_t) -> s_{t+1} is the transition that the answer to a_t causes, and
the last step has no s_{t+1}.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from cachetools import LRUCache
from torch import Tensor

from ..envs.trajectory import Step


def segment_means(values: Tensor, segment: Tensor, number: int) -> Tensor:
    """Average the rows of `values` [M, D] in each segment, float32 [number, D]; zeros for empty segments.

    segment: int64 [M], below `number`.
    """
    sums = torch.zeros(number, values.shape[-1], dtype=torch.float32, device=values.device)
    sums.index_add_(0, segment, values.float())
    return sums / torch.bincount(segment, minlength=number).clamp(min=1)[:, None]


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
