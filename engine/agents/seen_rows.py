"""The images of a batch of conversations, and what the forward passes over parts of them need because of these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..policy.sight.inputs import Positions, SeeingModel
from ..policy.sight.processor import ModelImage
from .history import TokenHistory


@dataclass(frozen=True)
class ShownImage:
    """An image in a conversation. turn: the turn whose answer brought it, -1 for one of the prompt."""

    image: ModelImage
    turn: int

    @property
    def size(self) -> tuple[int, int]:
        """Width and height as the model was shown it, in pixels."""
        return self.image.size

    @property
    def tokens(self) -> int:
        """How many tokens stand for it."""
        return self.image.tokens


@dataclass(frozen=True)
class SeenPass:
    """Of a forward pass over tokens [n, q] of a cache that then holds L tokens a row.

    arguments: what the model is called with besides (features of the images in these tokens). position_ids: int64
    [3, n, q], None where positions are places. query_runs [n, q], key_runs [n, L]: which image a token is a piece of
    (-1: none) where a model attends both ways over an image, else None.
    """

    arguments: dict[str, Any]
    position_ids: Tensor | None = None
    query_runs: Tensor | None = None
    key_runs: Tensor | None = None

    def see(self, mask: Tensor) -> Tensor:
        """The mask bool [n, 1, q, L], with an image's tokens open to each other."""
        if self.query_runs is None or self.key_runs is None:
            return mask
        same = (self.query_runs[:, :, None] == self.key_runs[:, None]) & (self.query_runs >= 0)[..., None]
        return mask | same[:, None]


class SeenRows:
    """images[row]: those of each row so far, in the order of their tokens."""

    def __init__(self, model: SeeingModel, history: TokenHistory, images: Sequence[Sequence[ModelImage]]) -> None:
        self.model = model
        self._history = history
        self.images: list[tuple[ShownImage, ...]] = [tuple(ShownImage(i, -1) for i in row) for row in images]
        self._positions: list[Positions | None] = [None] * len(self.images)
        prompts: dict[tuple[object, ...], Positions | None] = {}
        for row, shown in enumerate(images):
            ids = history.ids[row, : history.length[row]]
            key = (ids.tobytes(), *(i.key for i in shown))
            if key not in prompts:
                prompts[key] = model.positions(ids, shown)
            self._positions[row] = prompts[key]

    @property
    def filler(self) -> int:
        """A token that is no piece of an image."""
        return 1 if self.model.image_id == 0 else 0

    def append(self, row: int, images: Sequence[ModelImage]) -> None:
        """The row's last observation, which the history has already, brought these images."""
        turn = int(self._history.turns[row]) - 1
        self.images[row] += tuple(ShownImage(image, turn) for image in images)
        ids = self._history.ids[row, : self._history.length[row]]
        self._positions[row] = self.model.positions(ids, [shown.image for shown in self.images[row]])

    def offsets(self, rows: np.ndarray) -> np.ndarray:
        """How much further than its place in the row a new token of text stands, int64 [n]."""
        return np.array([0 if (p := self._positions[row]) is None else p.delta for row in rows], np.int64)

    def new_tokens(
        self, rows: np.ndarray, held: np.ndarray, tokens: Tensor, places: np.ndarray, kv_length: int
    ) -> SeenPass:
        """Of a pass that feeds each of `rows` what lies after its first `held` tokens.

        rows, held: int64 [n]; tokens: int64 [n, q]; places: int64 [n, q], of each token in its row, -1 on the left for
        padding. kv_length: L, how many tokens the cache may hold after it.
        """
        images = [image for row, n in zip(rows, held, strict=True) for image in self._after(int(row), int(n))]
        arguments = {"mm_encoder_outputs": self.model.tower.features(images)} if images else {}
        position_ids = self._position_ids(rows, places, tokens.device) if self.model.has_own_positions else None
        if not self.model.two_way or not images:
            return SeenPass(arguments, position_ids)
        ids = np.zeros((len(rows), kv_length), np.int64)
        width = min(kv_length, self._history.ids.shape[1])
        ids[:, :width] = self._history.ids[rows, :width]
        runs = self.model.runs(torch.as_tensor(ids, device=tokens.device))
        at = torch.as_tensor(places, device=tokens.device)
        queries = torch.where(at < 0, -1, runs.gather(1, at.clamp_min(0)))
        return SeenPass(arguments, position_ids, queries, runs)

    def _after(self, row: int, held: int) -> list[ModelImage]:
        """Images whose tokens come after the first `held` of a row."""
        shown = self.images[row]
        if not shown:
            return []
        before = int((self._history.ids[row, :held] == self.model.image_id).sum())
        rest = []
        for one in shown:
            if before <= 0:
                rest.append(one.image)
            before -= one.image.tokens
        return rest

    def _position_ids(self, rows: np.ndarray, places: np.ndarray, device: torch.device) -> Tensor:
        """int64 [3, n, q]; 0 on padding."""
        out = np.zeros((3, *places.shape), np.int64)
        for i, row in enumerate(rows):
            real = places[i] >= 0
            known = self._positions[row]
            first, length = int(places[i][real][0]), int(real.sum())
            if known is None:
                out[:, i, real] = np.arange(first, first + length)
            else:
                out[:, i, real] = known.at(first, length)
        return torch.from_numpy(out).to(device)
