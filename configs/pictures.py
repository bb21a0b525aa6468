"""Open a picture of unknown origin: a file of a user, a caller's upload, a picture in a dump."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
"""Pillow decodes these itself. It reads others as well, some by starting a program (EPS: Ghostscript)."""
MAX_PIXELS = 40_000_000
"""Of one frame; a larger one is refused before a pixel is decoded."""


@contextmanager
def open_picture(source: Path | BinaryIO, max_pixels: int = MAX_PIXELS) -> Iterator[Image]:
    """Open the picture in a file, without decoding it.

    Raises ValueError with the reason, also for faults found while decoding inside the block, and OSError for a file
    that cannot be opened.
    """
    from PIL import Image, UnidentifiedImageError

    with source.open("rb") if isinstance(source, Path) else source as file:
        head = file.read(10)
        if head.startswith(b"GIF8") and len(head) == 10:  # Pillow fills a GIF's screen when it opens it
            check_size(struct.unpack("<HH", head[6:]), max_pixels)
        file.seek(0)
        try:
            with Image.open(file, formats=FORMATS) as image:
                check_size(image.size, max_pixels)
                yield image
        except UnidentifiedImageError:
            raise ValueError("it is not a PNG, JPEG, WebP or GIF image") from None
        except ValueError:
            raise
        except Exception as problem:  # of a broken file, decoders raise whatever they stumble over
            raise ValueError(str(problem) or type(problem).__name__) from problem


def check_size(size: tuple[int, ...], max_pixels: int = MAX_PIXELS) -> None:
    """Raise ValueError for a picture of more pixels than are read."""
    width, height = size
    if width * height > max_pixels:
        raise ValueError(f"it has {width:,} x {height:,} pixels; at most {max_pixels:,} are read")
