"""Rows of a model with states other than keys and values (recurrent layers, its own positions).

Such a state cannot be cut back to the end of a row's tokens, so no state is kept between turns. Each turn encodes its
conversations again, padded on the left, and continues on the model's own cache, or without any (`WholeRows`).
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import torch
from transformers.generation.utils import ALL_CACHE_NAMES

from ..policy.padded import padded_forward
from .chat_session import TokenHistory
from .decoder import Decoder, UnsupportedModelError
from .seen_rows import SeenPass, SeenRows


class PaddedRows:
    """The interface of `CachedRows`, without a cache between turns. Equal prompts are encoded once."""

    cached = False

    def __init__(
        self, decoder: Decoder, history: TokenHistory, num_rollouts: int, longest: int, seen: SeenRows | None = None
    ) -> None:
        if seen is not None and seen.model.two_way:
            raise UnsupportedModelError("these rows do not attend in both directions over an image")
        self._decoder = decoder
        self._history = history
        self._num_rollouts = num_rollouts
        self._seen = seen
        self._parameters = inspect.signature(decoder.base.forward).parameters
        self._cache: Any = None
        self._cache_name = ""
        self._attention_mask: torch.Tensor | None = None
        """Mask of the fed tokens that are not padding, int64 `[n, fed]`."""
        self._offsets: torch.Tensor | None = None
        """Difference between position and place of new tokens, int64 `[n]`, for a model with its own positions."""

    def prepare(self, rows: np.ndarray, capacity: int) -> tuple[np.ndarray, torch.Tensor]:
        self.clear()
        seen_before = self._seen is not None and self._history.turns[rows].any()  # observations may differ in images
        firsts, source = self._history.alike(rows, 1 if seen_before else self._num_rollouts)
        lengths = self._history.length[firsts]
        position = np.arange(int(lengths.max())) - (lengths.max() - lengths)[:, None]
        tokens = np.take_along_axis(self._history.ids[firsts], position.clip(0), axis=1).astype(np.int64)
        device = self._decoder.device
        self._attention_mask = torch.as_tensor(position >= 0, device=device).long()
        fed, seen = torch.as_tensor(tokens, device=device), SeenPass({})
        if self._seen is not None:
            none = np.zeros(len(firsts), np.int64)
            seen = self._seen.new_tokens(firsts, none, fed, position.clip(-1), position.shape[1])
            if self._seen.model.has_own_positions:
                self._offsets = torch.as_tensor(self._seen.offsets(firsts), device=device)
        logits = self._pass(fed, torch.as_tensor(position, device=device), seen)
        return rows, logits[self._keep(torch.as_tensor(source, device=device))]

    def feed(self, tokens: torch.Tensor, positions: torch.Tensor, length: int) -> torch.Tensor:
        assert self._attention_mask is not None, "`prepare` comes first"
        self._attention_mask = torch.cat([self._attention_mask, torch.ones_like(tokens)], 1)
        places = None if self._offsets is None else (positions + self._offsets[:, None]).expand(3, -1, -1)
        return self._pass(tokens, positions, SeenPass({}, places))

    def fed(self, rows: np.ndarray, tokens: np.ndarray) -> None:
        self.clear()

    def compact(self, alive: torch.Tensor, num_alive: int) -> torch.Tensor:
        return self._keep(alive.nonzero()[:, 0])

    def clear(self) -> None:
        self._cache = self._attention_mask = self._offsets = None

    def _keep(self, places: torch.Tensor) -> torch.Tensor:
        assert self._attention_mask is not None
        self._cache.reorder_cache(places)
        self._attention_mask = self._attention_mask[places]
        self._offsets = None if self._offsets is None else self._offsets[places]
        return places

    def _pass(self, tokens: torch.Tensor, positions: torch.Tensor, seen: SeenPass) -> torch.Tensor:
        position_ids = positions.clamp_min(0) if seen.position_ids is None else seen.position_ids
        arguments: dict[str, object] = {"attention_mask": self._attention_mask, "position_ids": position_ids}
        arguments = {name: value for name, value in arguments.items() if name in self._parameters}
        arguments |= seen.arguments
        if self._cache is not None:
            arguments[self._cache_name] = self._cache
        if "logits_to_keep" in self._parameters:
            arguments["logits_to_keep"] = 1
        output = self._decoder.base(input_ids=tokens, use_cache=True, **arguments)
        kept = [name for name in ALL_CACHE_NAMES if hasattr(getattr(output, name, None), "reorder_cache")]
        if not kept:
            raise UnsupportedModelError("it provides no cache of rows")
        self._cache_name, self._cache = kept[0], getattr(output, kept[0])
        return output.logits[:, -1]


class WholeRows:
    """The interface of `CachedRows` by the forward pass of the loss: each token takes a pass over the whole
    conversations. It is slow, and fits every causal model."""

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
