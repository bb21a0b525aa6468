"""Arguments of a forward pass over rows with images, in addition to tokens and a mask.

| argument | models | source |
|---|---|---|
| features instead of image tokens | all | `mm_encoder_outputs` |
| positions in time, height and width (M-RoPE) | those with `get_rope_index` | the model's own method |
| bidirectional attention over an image | those whose forward takes `token_type_ids` | runs of image tokens |
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from cachetools import LRUCache
from torch import Tensor
from transformers import PreTrainedModel

from ..packing import SeenBatch
from ..unwrap import device_of
from .processor import ModelImage, VisionError
from .tower import VisionTower

Images = Sequence[ModelImage]
KNOWN_POSITIONS = 4096
"""The most beginnings of conversations whose positions are cached."""


@dataclass(frozen=True)
class TokenPositions:
    """Positions of one row of T tokens, int64 [3, T], and the offset of later tokens from their indices."""

    values: np.ndarray
    delta: int

    def at(self, first: int, length: int) -> np.ndarray:
        """Return the positions of tokens at indices [first, first + length), int64 [3, length]."""
        known = self.values.shape[1]
        out = np.broadcast_to(np.arange(first, first + length) + self.delta, (3, length)).copy()
        inside = max(0, min(known - first, length))
        out[:, :inside] = self.values[:, first : first + inside]
        return out


class VisionModel:
    """A vision-language model as this package calls it. image_id: the token of an image patch."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        self.tower = VisionTower(model)
        self.image_id = int(model.config.image_token_id)
        self._positions: LRUCache[tuple[object, ...], TokenPositions] = LRUCache(KNOWN_POSITIONS)
        self._rope = getattr(model.base_model, "get_rope_index", None)
        self._placing = () if self._rope is None else tuple(inspect.signature(self._rope).parameters)
        self.two_way = "token_type_ids" in inspect.signature(model.forward).parameters

    @staticmethod
    def of(model: PreTrainedModel) -> VisionModel | None:
        """Return the model's object, or None for a text model."""
        if not hasattr(model.base_model, "get_image_features"):
            return None
        if "mm_encoder_outputs" not in inspect.signature(type(model.base_model).forward).parameters:
            raise VisionError(
                f"{type(model).__name__} of transformers {transformers.__version__} does not accept precomputed image "
                "features (mm_encoder_outputs): vision policies need transformers 5.23 or newer"
            )
        if not isinstance(found := getattr(model, "seeing", None), VisionModel):
            found = VisionModel(model)
            model.seeing = found  # type: ignore[assignment]
        return found

    @property
    def deep_layers(self) -> int:
        """The number of first layers that receive image features again."""
        return len(getattr(self.model.config.vision_config, "deepstack_visual_indexes", None) or ())

    @property
    def has_own_positions(self) -> bool:
        """Whether positions differ from indices in the row."""
        return self._rope is not None

    def positions(self, token_ids: np.ndarray, images: Images) -> TokenPositions:
        if self._rope is None or not images:  # they equal the indices
            return TokenPositions(np.zeros((3, 0), np.int64), 0)
        # Positions after the last image are counted on from there, so rows with the same beginning share the result.
        prefix = np.ascontiguousarray(token_ids[: int(np.flatnonzero(token_ids == self.image_id)[-1]) + 1], np.int64)
        # So do pictures of the same size: the model needs their grids, not their pixels.
        grids = {k: torch.cat([i.inputs[k] for i in images]) for k in images[0].inputs if k in self._placing}
        key = (prefix.tobytes(), *(grid.numpy().tobytes() for grid in grids.values()))
        if key not in self._positions:
            ids = torch.from_numpy(prefix)[None]
            found, _ = self._rope(ids, mm_token_type_ids=(ids == self.image_id).int(), **grids)
            values = found[:, 0].numpy()
            self._positions[key] = TokenPositions(values, int(values.max()) + 1 - values.shape[1])
        return self._positions[key]

    def runs(self, token_ids: Tensor) -> Tensor:
        """Number the unbroken runs of image tokens, int64 [..., T]; -1 for text."""
        image = token_ids == self.image_id
        begins = image & ~torch.nn.functional.pad(image, (1, 0))[..., :-1]
        return torch.where(image, begins.cumsum(-1) - 1, -1)

    def batch(self, token_ids: Sequence[np.ndarray], images: Sequence[Images]) -> SeenBatch | None:
        """Prepare rows [T_i] with images[i] for `pack`. Returns None if no row has any."""
        if not any(images):
            return None
        positions = None
        if self._rope is not None:
            rows = zip(token_ids, images, strict=True)
            positions = [self.positions(ids, row).at(0, len(ids)) for ids, row in rows]
        return SeenBatch(images, self.image_id, positions)

    def padded(self, token_ids: Tensor, images: Sequence[Images]) -> dict[str, Any]:
        """Return arguments of a forward pass over right-padded rows [B, T] with images[i] in row i, in token order."""
        everything = [image for row in images for image in row]
        if not everything:
            return {}
        arguments: dict[str, object] = {"mm_encoder_outputs": self.tower.features(everything)}
        if self.two_way:
            arguments["token_type_ids"] = (token_ids == self.image_id).long().to(device_of(self.model))
        if self._rope is not None:
            pairs = zip(token_ids.cpu().numpy(), images, strict=True)
            positions = np.stack([self.positions(ids, row).at(0, len(ids)) for ids, row in pairs], 1)  # [3, B, T]
            arguments["position_ids"] = torch.from_numpy(positions).to(device_of(self.model))
        return arguments
