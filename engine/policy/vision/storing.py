"""Store the images of many rows as named arrays and JSON data, each distinct image once, for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .processor import ModelImage


def stored_images(rows: Sequence[Sequence[ModelImage]]) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    """Return arrays by name, and JSON data: the images of each row, and their facts."""
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
