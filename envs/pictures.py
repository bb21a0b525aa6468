"""Read pictures from files and data URLs: broken, huge, animated, in any colour space.

Use the first frame of an animation, and white behind transparency. Unreadable pictures raise ValueError with the
reason, which fails only the rollout that requested them.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from ..configs.pictures import open_picture
from .content import Picture

MAX_BYTES = 64 << 20
"""The maximum size of one file or data URL."""


def picture_of(source: str) -> Picture:
    """Return the picture in a file or in a `data:image/…;base64,` URL.

    Raises ValueError for any other source. Invalid content raises when the pixels are loaded.
    """
    if source.startswith("data:"):
        content = _decoded(source)
        return Picture(f"{hashlib.sha1(content).hexdigest()}.png", lambda: read_pixels(content, "the image"))
    if "://" in source:
        raise ValueError(f"an image must be a file or a data URL, not {source[:60]}")
    path = Path(source).expanduser()
    try:
        stat = path.stat()
    except (OSError, ValueError) as problem:
        raise ValueError(f"there is no image {path}") from problem
    if stat.st_size > MAX_BYTES:
        raise ValueError(f"{path} has {stat.st_size:,} bytes; an image may have at most {MAX_BYTES:,}")
    stamp = hashlib.sha1(f"{path.resolve()} {stat.st_mtime_ns} {stat.st_size}".encode()).hexdigest()
    return Picture(f"{stamp}.png", lambda: read_pixels(path.read_bytes(), str(path)))


def read_pixels(content: bytes, name: str) -> np.ndarray:
    """Decode a picture to uint8 [H, W, 3]. Raises ValueError with the reason."""
    try:
        with open_picture(io.BytesIO(content)) as image:
            upright = ImageOps.exif_transpose(image)
            return np.asarray(as_rgb(upright), dtype=np.uint8)
    except ValueError as problem:
        raise ValueError(f"{name} cannot be read as an image: {problem}") from problem


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert a picture of any mode to 8-bit RGB, with white behind transparency."""
    if image.mode.startswith("I") or image.mode == "F":  # scale 16 bits and more to 8
        values = np.asarray(image, dtype=np.float64)
        top = max(float(values.max(initial=0)), 255.0)
        return Image.fromarray((values.clip(0) * (255.0 / top)).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        clear = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return image.convert("RGB")


def _decoded(url: str) -> bytes:
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise ValueError("the data URL of an image must start with data:image/…;base64,")
    if len(data) > MAX_BYTES * 4 // 3:
        raise ValueError(f"the data URL is longer than {MAX_BYTES:,} bytes")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as problem:
        raise ValueError(f"the data URL is not base64: {problem}") from problem
