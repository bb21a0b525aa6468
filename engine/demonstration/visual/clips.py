"""The input of the tools: a still or a short video, identified by content, with pixels loaded on demand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from ....configs.pictures import check_size, open_picture
from ....configs.plain_data import from_plain
from ....envs.pictures import as_rgb
from . import render
from .scenes import Scene

MAX_FRAMES = 64
"""Maximum frames to read from a user's animation."""


@dataclass(frozen=True)
class Clip:
    """A still or video. `key` identifies the content: equal keys, equal pixels. `load` returns uint8 [F, H, W, 3]."""

    key: str
    width: int
    height: int
    frames: int
    load: Callable[[], np.ndarray] = field(compare=False)


@dataclass(frozen=True)
class Mask:
    """A mask of a clip's first frame, bool [H, W]. `key` identifies its content."""

    key: str
    array: np.ndarray = field(compare=False)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    @classmethod
    def of(cls, mask: np.ndarray) -> Mask:
        return cls(hashlib.sha1(np.packbits(mask).tobytes()).hexdigest()[:16], mask)


def clip_of_task(task: Mapping[str, Any], max_side: int) -> Clip:
    """Return the clip of a task: its drawn `scene`, its `image` (a file, a video if animated), or its `frames` (files).
    Raises ValueError with the reason."""
    if "scene" in task:
        try:
            return _drawn_clip(json.dumps(task["scene"], sort_keys=True))
        except (AttributeError, KeyError, TypeError, ValueError) as problem:
            raise ValueError(f"the task's scene is invalid: {type(problem).__name__}: {problem}") from problem
    paths = task.get("frames") or ([task["image"]] if task.get("image") else None)
    if not isinstance(paths, (list, tuple)) or not all(isinstance(p, str) for p in paths):
        raise ValueError("a task needs a scene, an image (path) or frames (list of paths)")
    return clip_of_files(tuple(Path(p).expanduser() for p in paths), max_side)


@lru_cache(maxsize=4096)
def _drawn_clip(content: str) -> Clip:
    """Return a drawn scene. Its JSON identifies the pixels without drawing, because drawing is deterministic."""
    scene = from_plain(Scene, json.loads(content), strict=True)
    key = hashlib.sha1(f"{render.RENDERER} {content}".encode()).hexdigest()[:16]
    return Clip(key, scene.width, scene.height, scene.frames, partial(render.render, scene))


def clip_of_files(paths: Sequence[Path], max_side: int) -> Clip:
    """Open a user's picture, animation or frames. Raises ValueError with the file and the reason."""
    stamps = []
    for path in paths:
        try:
            stat = path.stat()
        except OSError as problem:
            raise ValueError(f"there is no image {path}") from problem
        stamps.append((str(path), stat.st_mtime_ns, stat.st_size))
    return _read_clip(tuple(stamps), max_side)


@lru_cache(maxsize=4096)
def _read_clip(stamps: tuple[tuple[str, int, int], ...], max_side: int) -> Clip:
    digest = hashlib.sha1(str(max_side).encode())
    for path, _, _ in stamps:
        digest.update(Path(path).read_bytes())
    paths = [path for path, _, _ in stamps]
    pixels = _read_frames(paths, max_side)
    frames, height, width = pixels.shape[:3]
    return Clip(digest.hexdigest()[:16], width, height, frames, partial(_read_frames, paths, max_side))


def _read_frames(paths: Sequence[str], max_side: int) -> np.ndarray:
    """Read uint8 [F, H, W, 3]. All frames get the size of the first, whose longer side is at most `max_side`."""
    frames: list[np.ndarray] = []
    size: tuple[int, int] | None = None
    for path in paths:
        try:
            with open_picture(Path(path)) as image:
                for index in range(min(getattr(image, "n_frames", 1), MAX_FRAMES)):
                    image.seek(index)
                    check_size(image.size)
                    upright = as_rgb(ImageOps.exif_transpose(image))
                    if size is None:
                        factor = min(1.0, max_side / max(upright.size))
                        size = (max(1, round(upright.width * factor)), max(1, round(upright.height * factor)))
                    if upright.size != size:
                        upright = upright.resize(size, Image.Resampling.LANCZOS)
                    frames.append(np.asarray(upright))
        except (OSError, ValueError) as problem:
            raise ValueError(f"{path} cannot be read as an image: {problem}") from problem
    return np.stack(frames)
