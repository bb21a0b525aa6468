"""Pictures of callers: data URLs become files of the run; nothing is fetched, no other file of the machine is read."""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from .problems import HttpProblem

MAX_PIXELS = 1 << 24
FILE_KEYS = ("image", "images", "video", "frames", "file_name")
"""Keys of a task that name files of pictures."""


@dataclass(frozen=True)
class Uploads:
    """Where uploaded pictures go, and which folders callers may name pictures of."""

    folder: Path
    shared: tuple[Path, ...] = ()

    def picture(self, url: str) -> str:
        """The path of the picture in a data URL, saved as a PNG file named by its content. Raises HttpProblem."""
        head, _, data = url.partition(",")
        if not head.startswith("data:image/") or not head.endswith(";base64"):
            raise HttpProblem(
                400, "a picture must be a data URL (data:image/png;base64,…): nothing is fetched for you", param="url"
            )
        try:
            raw = base64.b64decode(data, validate=True)
            with Image.open(io.BytesIO(raw)) as image:
                if image.width * image.height > MAX_PIXELS:
                    raise HttpProblem(413, f"the picture has {image.width} x {image.height} pixels, too many")
                image.load()
                pixels = image.convert("RGB")
        except (binascii.Error, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise HttpProblem(400, f"the picture cannot be read: {error}") from error
        path = self.folder / f"{hashlib.sha256(raw).hexdigest()[:32]}.png"
        self.folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            pixels.save(path)
        return str(path.resolve())

    def task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """A caller's task whose pictures are files that callers may use. Raises HttpProblem.

        The answer is the same for files that exist and files that do not: who asks learns nothing of the disk.
        """
        checked = dict(task)
        for key in FILE_KEYS:
            value = checked.get(key)
            if isinstance(value, str):
                checked[key] = self._file(key, value)
            elif isinstance(value, Sequence):
                checked[key] = [self._file(key, v) if isinstance(v, str) else v for v in value]
        return checked

    def _file(self, key: str, value: str) -> str:
        if value.startswith("data:"):
            return self.picture(value)
        allowed = (self.folder, *self.shared)
        named = Path(value)
        try:
            inside = named.is_absolute() and any(named.resolve().is_relative_to(f.resolve()) for f in allowed)
        except (OSError, ValueError, RuntimeError):
            inside = False
        if not inside:
            raise HttpProblem(
                400,
                f"task_data.{key} must be a data URL, or a file in a folder that online.image_folders names",
                param=f"task_data.{key}",
            )
        return value
