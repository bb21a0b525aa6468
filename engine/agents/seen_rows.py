"""The images of a batch of conversations, and the inputs of forward passes that depend on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...envs.agent import ShownImage
from ..policy.vision.inputs import TokenPositions, VisionModel
from ..policy.vision.processor import ModelImage
from .chat_session import TokenHistory


@dataclass(frozen=True)
class SeenPass:
    """Inputs of a forward pass over tokens [n, q] of a cache with L tokens per row.

    arguments: additional arguments of the model (features of images in these tokens). position_ids: int64 [3, n, q],
    None if positions equal places. query_runs [n, q], key_runs [n, L]: the image of each token (-1: none) if the model
    has bidirectional attention over an image, else None.
    """

    arguments: dict[str, Any]
    position_ids: Tensor | None = None
    query_runs: Tensor | None = None
    key_runs: Tensor | None = None

    def see(self, mask: Tensor) -> Tensor:
        """Return the mask bool [n, 1, q, L] with attention among the tokens of an image."""
        if self.query_runs is None or self.key_runs is None:
            return mask
        same = (self.query_runs[:, :, None] == self.key_runs[:, None]) & (self.query_runs >= 0)[..., None]
        return mask | same[:, None]


class SeenRows:
    """The images of a session's rows for its forward passes. images: the session's own list, which it appends to."""

    def __init__(self, model: VisionModel, history: TokenHistory, images: list[tuple[ShownImage, ...]]) -> None:
        self.model = model
        self._history = history
        self.images = images
        self._positions = list(map(self._positions_of, range(len(images))))

    def images_came(self, row: int) -> None:
        self._positions[row] = self._positions_of(row)

    def _positions_of(self, row: int) -> TokenPositions:
        ids = self._history.ids[row, : self._history.length[row]]
        return self.model.positions(ids, [shown.image for shown in self.images[row]])

    def offsets(self, rows: np.ndarray) -> np.ndarray:
        """Return the difference between position and place of a new text token, int64 [n]."""
        return np.array([self._positions[row].delta for row in rows], np.int64)

    def new_tokens(
        self, rows: np.ndarray, cached: np.ndarray, tokens: Tensor, places: np.ndarray, kv_length: int
    ) -> SeenPass:
        """Return the inputs of a pass that feeds each of `rows` the tokens after its first `cached`.

        rows, cached: int64 [n]. tokens: int64 [n, q]. places: int64 [n, q], of each token in its row, -1 for padding on
        the left. kv_length: L, the number of tokens in the cache afterwards.
        """
        images = [image for row, n in zip(rows, cached, strict=True) for image in self._after(int(row), int(n))]
        arguments = {"mm_encoder_outputs": self.model.tower.features(images)} if images else {}
        position_ids = self._position_ids(rows, places, tokens.device) if self.model.has_own_positions else None
        if not self.model.two_way or not images:
            return SeenPass(arguments, position_ids)
        ids = np.zeros((len(rows), kv_length), np.int64)
        width = min(kv_length, self._history.ids.shape[1])
        ids[:, :width] = self._history.ids[rows, :width]
        runs = self.model.runs(torch.as_tensor(ids, device=tokens.device))
        positions = torch.as_tensor(places, device=tokens.device)
        queries = torch.where(positions < 0, -1, runs.gather(1, positions.clamp_min(0)))
        return SeenPass(arguments, position_ids, queries, runs)

    def _after(self, row: int, cached: int) -> list[ModelImage]:
        """Return the images whose tokens come after the first `cached` of a row."""
        shown = self.images[row]
        if not shown:
            return []
        before = int((self._history.ids[row, :cached] == self.model.image_id).sum())
        rest = []
        for one in shown:
            if before <= 0:
                rest.append(one.image)
            before -= one.image.tokens
        return rest

    def _position_ids(self, rows: np.ndarray, places: np.ndarray, device: torch.device) -> Tensor:
        """Return int64 [3, n, q]; 0 on padding."""
        out = np.zeros((3, *places.shape), np.int64)
        for i, row in enumerate(rows):
            real = places[i] >= 0
            out[:, i, real] = self._positions[row].at(int(places[i][real][0]), int(real.sum()))
        return torch.from_numpy(out).to(device)
