"""Pictures of a run as PNG files in its folder, written by the record's thread."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..durable import replace_file
from ..paths import IMAGES

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image as PILImage

    Image = np.ndarray | PILImage
    """A picture: uint8 `[H, W]` or `[H, W, 3]`, bool `[H, W]`, or a PIL image."""


def image_path(name: str) -> str:
    """Return the path of an image inside the run's folder. Characters that file names should not have become `_`."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:120] or "image"
    return f"{IMAGES}/{stem}" if stem.lower().endswith((".png", ".jpg", ".jpeg")) else f"{IMAGES}/{stem}.png"


def encode_image(name: str, image: Image) -> bytes:
    """Return the bytes of a PNG (or JPEG, by the name).

    image: an array (uint8 `[H, W]` or `[H, W, 3]`, or bool `[H, W]`) or a PIL image. Raises ValueError for anything
    else.
    """
    from PIL import Image as Pictures

    try:
        if not isinstance(image, Pictures.Image):
            import numpy as np

            array = np.asarray(image)
            if array.dtype == bool:
                array = array.astype(np.uint8) * 255
            image = Pictures.fromarray(array)
        buffer = io.BytesIO()
        image.save(buffer, format="PNG" if name.lower().endswith(".png") else "JPEG")
    except (OSError, KeyError, TypeError, AttributeError) as error:  # PIL says OSError for a mode that it cannot write
        raise ValueError(str(error)) from error
    return buffer.getvalue()


def write_image(target: Path, data: bytes) -> None:
    """Put a file in its place in one instant. Raises OSError."""
    target.parent.mkdir(exist_ok=True)  # not parents: a run's folder that was removed stays removed
    replace_file(target, data, wait=False)
