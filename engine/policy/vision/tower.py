"""Image features of a vision-language model: the output of its vision tower and projection.

A pass encodes equal images once. If no part that makes features is trained, features are cached from step to step, so
that the rollouts of a group and the passes over them (acting, reference, loss) share one encoding. If a tower is
trained or has adapters, each pass computes its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from cachetools import LRUCache
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from ..precision import half_products
from .kinds import apart_from_language
from .processor import ModelImage, VisionError, stack_inputs

CACHED_BYTES = 512 << 20
"""Bytes of cached features."""

AT_ONCE = 64 << 20
"""Bytes of pixels that go through the tower together, so that its activations stay small relative to the weights."""


@dataclass(frozen=True)
class Features:
    """Features of an image. `pooled` [tokens, D] replaces its tokens; `deep` [tokens, D] add to early layers."""

    pooled: Tensor
    deep: tuple[Tensor, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (self.pooled, *self.deep))


class VisionTower:
    """The part of `model` that makes image features. encoded: how many images it has processed."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.body: Any = model.base_model
        self.encoded = 0
        self._outside_language = apart_from_language(model)
        self._kept: LRUCache[str, Features] = LRUCache(CACHED_BYTES, attrgetter("nbytes"))
        self._as_tensor = False

    @property
    def trained(self) -> bool:
        return any(p.requires_grad for p in self._parameters())

    @property
    def fixed(self) -> bool:
        """Whether equal images always give equal features: nothing is trained, and there are no adapters to switch or
        to load others into."""
        adapted = any(isinstance(m, BaseTunerLayer) for module in self._outside_language for m in module.modules())
        return not adapted and not self.trained

    def features(self, images: Sequence[ModelImage]) -> dict[str, BaseModelOutputWithPooling]:
        """Return `mm_encoder_outputs` of a forward pass for these images, in the order of their tokens.

        Raises VisionError if the tower makes more or fewer features of an image than it has tokens.
        """
        by_key = {image.key: image for image in images}
        if self.fixed:
            found = {key: self._kept[key] for key in by_key if key in self._kept}
            missing = [image for key, image in by_key.items() if key not in found]
            if missing:
                with torch.inference_mode(False), torch.no_grad():  # a loss may read them as well
                    found |= self._encode(missing)
                for image in missing:
                    with suppress(ValueError):  # larger than the cache
                        self._kept[image.key] = found[image.key]
        else:
            found = self._encode(list(by_key.values()))
        rows = [found[image.key] for image in images]
        pooled = [row.pooled for row in rows]
        deep = list(zip(*(row.deep for row in rows), strict=True))
        output: Any = BaseModelOutputWithPooling(
            pooler_output=torch.cat(pooled)[None] if self._as_tensor else pooled  # type: ignore[arg-type]
        )
        if deep:
            output["deepstack_features"] = deep
        return {"image": output}

    def _encode(self, images: Sequence[ModelImage]) -> dict[str, Features]:
        """Return features by key. Images with inputs of the same shapes share a pass."""
        by_shape: dict[object, list[ModelImage]] = {}
        for image in images:
            by_shape.setdefault(tuple((k, tuple(v.shape[1:])) for k, v in image.inputs.items()), []).append(image)
        found: dict[str, Features] = {}
        for group in (part for images_of_size in by_shape.values() for part in _parts(images_of_size)):
            encoded = self._call(group) or [one for image in group for one in self._call([image])]
            for image, features in zip(group, encoded, strict=True):
                if len(features.pooled) != image.tokens:
                    raise VisionError(
                        f"an image of {image.size[0]} x {image.size[1]} pixels has {image.tokens} image tokens and "
                        f"the vision tower makes {len(features.pooled)} features of it"
                    )
                found[image.key] = features
        self.encoded += len(images)
        return found

    def _call(self, images: Sequence[ModelImage]) -> list[Features]:
        """Return the features of each image, or none if those of several images cannot be separated."""
        parameter = next(self._parameters())
        inputs = {k: v.to(parameter.device) for k, v in stack_inputs(images).items()}
        with half_products(self.body):
            out = self.body.get_image_features(**inputs, return_dict=True)
        pooled, deep = out.pooler_output, getattr(out, "deepstack_features", None) or ()
        self._as_tensor = isinstance(pooled, Tensor)
        if len(images) == 1:
            return [Features(_flat(pooled), tuple(map(_flat, deep)))]
        parts = pooled.chunk(len(images)) if isinstance(pooled, Tensor) else pooled  # an image may have several tiles
        found = [Features(part.flatten(0, -2), tuple(layer[i] for layer in deep)) for i, part in enumerate(parts)]
        return found if [len(one.pooled) for one in found] == [image.tokens for image in images] else []

    def _parameters(self) -> Iterator[Tensor]:
        return (p for module in self._outside_language for p in module.parameters())


def _parts(images: Sequence[ModelImage]) -> Iterator[list[ModelImage]]:
    """Split the images into parts for one pass of the tower each."""
    part: list[ModelImage] = []
    for image in images:
        if part and sum(i.nbytes for i in part) + image.nbytes > AT_ONCE:
            yield part
            part = []
        part.append(image)
    if part:
        yield part


def _flat(parts: Tensor | Sequence[Tensor]) -> Tensor:
    if isinstance(parts, Tensor):
        return parts.flatten(0, -2)
    return torch.cat([part.flatten(0, -2) for part in parts])
