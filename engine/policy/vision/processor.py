"""Prepare pictures and text for a vision-language model with the model's own processor.

The processor gets one image at a time. So an image that repeats (in each rollout of a group, in each pass) is processed
once, and a text with several images is assembled from cached pieces. `VisionProcessor.encode` checks that image tokens
and pixels agree, and refuses an input that does not, with the reason.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from cachetools import LRUCache
from PIL import Image
from torch import Tensor

from ....configs.errors import GrpoTuiError
from ....envs.content import Content, Picture, blocks_of

if TYPE_CHECKING:
    from transformers import (  # takes half a second, which text models save
        PreTrainedConfig,
        PreTrainedTokenizerBase,
        ProcessorMixin,
    )

KNOWN_SIZES = 1024
"""The most picture sizes whose placeholder text is cached."""
CACHED_BYTES = 256 << 20
"""Bytes of processed images that are cached for the next rollout that shows them."""
NOT_FOR_THE_TOWER = frozenset({"input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "labels"})
PIXEL_TOKENS = ("image_token_id", "video_token_id", "audio_token_id")
UNUSED = frozenset({"text_replacement_offsets", "num_crops", "rows", "cols"})


class VisionError(GrpoTuiError, ValueError):
    """A picture cannot be shown to the model, or its tokens and its pixels do not agree. The message has the reason."""


@dataclass(frozen=True, eq=False)
class ModelImage:
    """One image as the model takes it. Equal keys mean equal inputs.

    inputs: arguments of the vision tower, a batch of one. text: the text of the image in the prompt. tokens: the number
    of image tokens in it. size: width and height as shown to the model. original: those of the picture.
    """

    key: str
    inputs: Mapping[str, Tensor] = field(repr=False)
    text: str = field(repr=False)
    tokens: int
    size: tuple[int, int]
    original: tuple[int, int]

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in self.inputs.values())


class Encoded(NamedTuple):
    """Text with images as tokens, and the images in the order of their tokens."""

    ids: list[int]
    images: tuple[ModelImage, ...]


class VisionProcessor:
    """A transformers processor with its tokenizer. Raises VisionError if it has no placeholder for an image.

    config: of the model; it names the token of an image patch. max_pixels: larger pictures are scaled down to this
    number before processing. max_images: the most images in a conversation (None: any number).
    """

    def __init__(
        self,
        processor: ProcessorMixin,
        tokenizer: PreTrainedTokenizerBase,
        config: PreTrainedConfig,
        *,
        max_pixels: int | None = None,
        max_images: int | None = None,
    ) -> None:
        self.processor = processor
        self.tokenizer = tokenizer
        self.max_pixels = max_pixels
        self.max_images = max_images
        sign = getattr(processor, "image_token", None)
        if not isinstance(sign, str) or not hasattr(processor, "replace_image_token"):
            raise VisionError(f"{type(processor).__name__} does not define an image token")
        self.sign = sign
        self.image_id = int(config.image_token_id)
        self.never = tuple(sorted({int(i) for name in PIXEL_TOKENS if (i := getattr(config, name, None)) is not None}))
        """Tokens that stand for pixels. A policy that wrote one would show itself an image that does not exist."""
        self._stands: LRUCache[tuple[int, int], tuple[str, int]] = LRUCache(KNOWN_SIZES)
        """The text and the image tokens by picture size, on which alone they depend. Computing them is half of a
        processor's work. `VisionTower` counts features, which detects a processor where this does not hold."""
        self._known: LRUCache[str, ModelImage] = LRUCache(CACHED_BYTES, attrgetter("nbytes"))

    def render(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """Render the chat template, with a placeholder for every image."""
        blocks = [{**message, "content": _plain(message.get("content", ""))} for message in messages]
        return str(self.processor.apply_chat_template(blocks, tokenize=False, **options))

    def encode(self, text: str, pictures: Sequence[Picture]) -> Encoded:
        """Encode a rendered text whose placeholders stand for `pictures`, in order.

        Raises VisionError if a picture cannot be shown, if the text has more or fewer placeholders than pictures, or if
        the number of tokens does not fit the pixels.
        """
        parts = text.split(self.sign)
        if len(parts) != len(pictures) + 1:
            raise VisionError(
                f"the text contains {len(parts) - 1} image tokens ({self.sign}) but there are {len(pictures)} images: "
                "a message contains such a token, or the chat template drops images"
            )
        images = tuple(map(self.image, pictures))
        with_images = parts[0] + "".join(image.text + part for image, part in zip(images, parts[1:], strict=True))
        return self.agreed(self.tokenizer.encode(with_images, add_special_tokens=False), images)

    def agreed(self, ids: Sequence[int], images: Sequence[ModelImage]) -> Encoded:
        """Return tokens and their images. Raises VisionError if the image tokens do not match the images."""
        found, expected = list(ids).count(self.image_id), sum(image.tokens for image in images)
        if found != expected:
            raise VisionError(
                f"the text has {found} image tokens, but its {len(images)} images need {expected}: a message contains "
                "the model's image token"
            )
        return Encoded(list(ids), tuple(images))

    def image(self, picture: Picture) -> ModelImage:
        """Prepare a picture for the model. Raises VisionError."""
        try:
            pixels = picture.load()
        except Exception as error:  # a picture may come from user code or from any file
            raise VisionError(f"the image {picture.name} cannot be loaded: {error}") from error
        pixels = _as_rgb(pixels, picture.name)
        key = hashlib.sha1(repr((pixels.shape, self.max_pixels)).encode() + pixels.tobytes()).hexdigest()
        if (image := self._known.get(key)) is None:
            image = self._make(key, pixels, picture.name)
            with suppress(ValueError):  # larger than the cache
                self._known[key] = image
        return image

    def _make(self, key: str, pixels: np.ndarray, name: str) -> ModelImage:
        shown = scaled_down(Image.fromarray(pixels), self.max_pixels)
        process: Any = self.processor
        known = self._stands.get(shown.size)
        out: Any = None
        if known is not None:
            with suppress(Exception):  # InternVL's processor needs the text each time
                out = process(images=[shown], return_tensors="pt")
        asked = {"text": [self.sign], "return_text_replacement_offsets": True}
        try:
            out = out or process(images=[shown], return_tensors="pt", **asked)
        except Exception as error:  # processors raise various errors for unsupported sizes
            raise VisionError(
                f"the image {name} ({shown.width} x {shown.height} pixels) cannot be shown: {error}"
            ) from error
        text, tokens = known or self._stand(out, shown.size, name)
        dropped = NOT_FOR_THE_TOWER | UNUSED
        inputs = {k: v for k, v in out.items() if isinstance(v, Tensor) and k not in dropped}
        size = _shown_size(inputs, self.processor, shown.size)
        return ModelImage(key, inputs, text, tokens, size, (int(pixels.shape[1]), int(pixels.shape[0])))

    def _stand(self, out: Mapping[str, Any], size: tuple[int, int], name: str) -> tuple[str, int]:
        """Return the processor's text for an image of this size, and its number of image tokens."""
        replaced = out.get("text_replacement_offsets")
        if not replaced or len(replaced[0]) != 1:
            raise VisionError(f"{type(self.processor).__name__} does not define the tokens of an image")
        text = str(replaced[0][0]["replacement"])
        tokens = list(self.tokenizer.encode(text, add_special_tokens=False)).count(self.image_id)
        if tokens == 0:
            raise VisionError(f"the image {name} became no tokens")
        self._stands[size] = text, tokens
        return text, tokens


def scaled_down(image: Image.Image, max_pixels: int | None) -> Image.Image:
    """Scale an image down to at most `max_pixels`, keeping its proportions."""
    pixels = image.width * image.height
    if max_pixels is None or pixels <= max_pixels:
        return image
    factor = (max_pixels / pixels) ** 0.5
    size = max(1, int(image.width * factor)), max(1, int(image.height * factor))
    return image.resize(size, Image.Resampling.BICUBIC)


def _shown_size(inputs: Mapping[str, Tensor], processor: Any, size: tuple[int, int]) -> tuple[int, int]:
    """Return the width and height of the tower's input: of its patch grid, its pixels, or the original image."""
    grid = inputs.get("image_grid_thw")
    if grid is not None:
        patch = int(getattr(processor.image_processor, "patch_size", 1))
        return int(grid[0, 2]) * patch, int(grid[0, 1]) * patch
    pixels = inputs.get("pixel_values")
    return (int(pixels.shape[-1]), int(pixels.shape[-2])) if pixels is not None and pixels.dim() >= 4 else size


def _as_rgb(pixels: object, name: str) -> np.ndarray:
    """Return uint8 [H, W, 3]. A mask [H, W] becomes grey."""
    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim not in (2, 3) or not array.size or array.shape[2:] not in ((), (3,)):
        raise VisionError(f"the image {name} is {array.dtype} {list(array.shape)}; expected uint8 [height, width, 3]")
    return np.ascontiguousarray(np.repeat(array[..., None], 3, axis=2) if array.ndim == 2 else array)


def _plain(content: Content) -> list[dict[str, str]]:
    """Return blocks in the form of vision-language chat templates."""
    return [{"type": "image"} if b["type"] == "image" else {**b} for b in blocks_of(content)]  # type: ignore[misc]


def stack_inputs(images: Sequence[ModelImage]) -> dict[str, Tensor]:
    """Stack the inputs of several images for one pass of the tower."""
    return {name: torch.cat([image.inputs[name] for image in images]) for name in images[0].inputs}


def load_processor(source: str, revision: str | None, config: PreTrainedConfig) -> ProcessorMixin:
    """Load the processor at `source` (a folder or hub id). Raises VisionError and the errors of loading."""
    from transformers import AutoProcessor, ProcessorMixin
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    pinned: dict[str, Any] = {"trust_remote_code": False} | ({} if revision is None else {"revision": revision})
    try:
        processor: Any = AutoProcessor.from_pretrained(source, **pinned)
    except (ImportError, OSError):  # its video part needs torchvision, or was never saved
        if type(config) not in PROCESSOR_MAPPING:
            raise
        kind: Any = PROCESSOR_MAPPING[type(config)]
        processor = without_video(kind).from_pretrained(source, **pinned)
    if not isinstance(processor, ProcessorMixin):
        raise VisionError(f"{source} has no image processor, only a {type(processor).__name__}")
    return processor


def without_video(kind: type[ProcessorMixin]) -> type[ProcessorMixin]:
    """Remove the processor's video part, which needs torchvision. Frames are shown as images."""
    kept = [name for name in kind.get_attributes() if name != "video_processor"]
    if len(kept) == len(kind.get_attributes()):
        return kind
    members = {"get_attributes": classmethod(lambda cls: kept), "__module__": kind.__module__}
    return type(kind.__name__, (kind,), members)


def stored_images(rows: Sequence[Sequence[ModelImage]]) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Return the images of many rows for a checkpoint: arrays by name, each distinct image once, and JSON data with the
    images of each row and their facts."""
    different = {image.key: image for row in rows for image in row}
    number = {key: n for n, key in enumerate(different)}
    arrays = {f"image.{number[i.key]}.{k}": v.numpy() for i in different.values() for k, v in i.inputs.items()}
    facts = [
        {"key": i.key, "text": i.text, "tokens": i.tokens, "size": i.size, "original": i.original}
        for i in different.values()
    ]
    return arrays, {"rows": [[number[i.key] for i in row] for row in rows], "images": facts}


def read_images(arrays: Mapping[str, np.ndarray], stored: Mapping[str, Any]) -> list[tuple[ModelImage, ...]]:
    """Read the images that `stored_images` stored. Raises KeyError."""
    images = []
    for n, facts in enumerate(stored["images"]):
        start = f"image.{n}."
        inputs = {k.removeprefix(start): torch.from_numpy(v) for k, v in arrays.items() if k.startswith(start)}
        sizes = {name: (int(facts[name][0]), int(facts[name][1])) for name in ("size", "original")}
        images.append(ModelImage(facts["key"], inputs, facts["text"], facts["tokens"], **sizes))
    return [tuple(images[n] for n in row) for row in stored["rows"]]
