"""Pictures of a run as PNG files in its folder, written by the record's thread."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from .paths import IMAGES


def image_path(name: str) -> str:
    """The path of an image inside the run's folder; characters that a file name should not have become `_`."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:120] or "image"
    return f"{IMAGES}/{stem}" if stem.lower().endswith((".png", ".jpg", ".jpeg")) else f"{IMAGES}/{stem}.png"


def write_image(target: Path, image: Any) -> None:
    """Write an array (uint8 `[H, W]` or `[H, W, 3]`, or bool `[H, W]`) or a PIL image. Raises OSError, ValueError."""
    from PIL import Image

    if not isinstance(image, Image.Image):
        import numpy as np

        array = np.asarray(image)
        if array.dtype == bool:
            array = array.astype(np.uint8) * 255
        image = Image.fromarray(array)
    target.parent.mkdir(exist_ok=True)  # not parents: a run's folder that was removed stays removed
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        format_ = "PNG" if target.suffix.lower() == ".png" else "JPEG"
        image.save(temporary, format=format_, quality=92)  # of JPEG; PNG has none
        os.replace(temporary, target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
