"""Rows of a model that no cache serves: each token takes a pass over the whole conversations."""

from __future__ import annotations

import numpy as np
import torch

from ..policy.padded import padded_forward
from .chat_session import TokenHistory
from .decoder import Decoder
from .seen_rows import SeenRows


class WholeRows:
    """The interface of `CachedRows` by the forward pass of the loss. It is slow, and fits every causal model."""

    cached = False

    def __init__(
        self, decoder: Decoder, history: TokenHistory, num_rollouts: int, longest: int, seen: SeenRows | None = None
    ) -> None:
        self._base, self._history, self._seen = decoder.base, history, seen
        self._rows: list[int] = []
        self._ids: list[np.ndarray] = []

    def prepare(self, rows: np.ndarray, capacity: int) -> tuple[np.ndarray, torch.Tensor]:
        self._rows = rows.tolist()
        self._ids = [self._history.ids[row, : self._history.length[row]] for row in self._rows]
        return rows, self._pass()

    def feed(self, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        new = zip(self._ids, positions[:, 0].tolist(), tokens[:, 0].tolist(), strict=True)
        self._ids = [np.append(ids[:place], token) for ids, place, token in new]
        return self._pass()

    def fed(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        self.clear()

    def compact(self, alive: torch.Tensor, num_alive: int) -> torch.Tensor:
        places = alive.nonzero()[:, 0]
        self._rows, self._ids = ([part[i] for i in places.tolist()] for part in (self._rows, self._ids))
        return places

    def clear(self) -> None:
        self._rows, self._ids = [], []

    def _pass(self) -> torch.Tensor:
        ids = [np.append(row, 0) for row in self._ids]  # `padded_forward` predicts the tokens of a mask
        last = [np.arange(len(row)) == len(row) - 1 for row in ids]
        seen = self._seen
        images = None if seen is None else [tuple(one.image for one in seen.images[row]) for row in self._rows]
        return padded_forward(self._base, ids, last, images=images).logits
