"""Images that the policy saw when it answered: one file each, named by content.

The update queue only holds the names. The worker loads the images for its forward pass.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import safetensors
from safetensors.numpy import load_file, save

from ...policy.vision.processor import ModelImage, read_images, stored_images
from ...runs.durable import replace_file

KEPT = 256
"""Number of images that a process keeps in memory."""


class ImageFolder:
    """Stores images as model inputs (`ModelImage`). fetch: downloads a file from another machine."""

    def __init__(self, folder: Path, fetch: Callable[[str, Path], bool] | None = None) -> None:
        self.folder = folder
        self.fetch = fetch
        self.load = lru_cache(maxsize=KEPT)(self._load)

    def save(self, rows: Sequence[Sequence[ModelImage]]) -> tuple[tuple[str, ...], ...]:
        """Write each image once, and return the names by row; empty if no row has images. Raises OSError."""
        for image in itertools.chain.from_iterable(rows):
            path = self.path(image.key)
            if not path.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                arrays, facts = stored_images([[image]])
                replace_file(path, save(arrays, {"images": json.dumps(facts)}))
        names = tuple(tuple(image.key for image in row) for row in rows)
        return names if any(names) else ()

    def _load(self, name: str) -> ModelImage:
        """Load an image. Raises KeyError if it is missing or damaged, QueueError if it cannot be fetched now."""
        path = self.path(name)
        try:
            if self.fetch is not None and not path.exists():
                self.fetch(f"images/{path.name}", path)
            with safetensors.safe_open(path, "numpy") as file:
                facts = json.loads((file.metadata() or {})["images"])
            return read_images(load_file(path), facts)[0][0]
        except (OSError, ValueError, IndexError, safetensors.SafetensorError) as error:
            raise KeyError(f"the image {name} is not among the run's images: {error}") from error

    def path(self, name: str) -> Path:
        """Return the path of an image. Raises KeyError for a name that could lead to another folder."""
        if not name.isalnum():
            raise KeyError(f"{name!r} names no image")
        return self.folder / f"{name}.safetensors"
