"""Pictures of callers: data URLs become files of the run; nothing is fetched, no other file of the machine is read."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .....configs.pictures import open_picture
from ....runs.durable import replace_file
from .problems import HttpProblem

MAX_PIXELS = 1 << 24
FILE_KEYS = ("image", "images", "video", "frames", "file_name")
"""Keys that name files of pictures, at any depth of a task (`ChatEnv` reads them out of its messages)."""


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
            with open_picture(io.BytesIO(raw), MAX_PIXELS) as image:
                pixels = image.convert("RGB")
        except ValueError as error:
            raise HttpProblem(400, f"the picture cannot be read: {error}", param="url") from error
        path = self.folder / f"{hashlib.sha256(raw).hexdigest()[:32]}.png"
        self.folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            encoded = io.BytesIO()
            pixels.save(encoded, "PNG", compress_level=1)
            replace_file(path, encoded.getvalue())
        return str(path.resolve())

    def task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """A caller's task whose pictures are files that callers may use. Raises HttpProblem.

        The answer is the same for files that exist and files that do not: who asks learns nothing of the disk.
        """
        return self._checked("task_data", task, False)

    def _checked(self, where: str, value: Any, names_files: bool) -> Any:
        """A part of a task; names_files: whether texts in it are names of files."""
        if isinstance(value, Mapping):
            return {k: self._checked(f"{where}.{k}", v, k in FILE_KEYS) for k, v in value.items()}
        if isinstance(value, list):
            return [self._checked(where, v, names_files) for v in value]
        return self._file(where, value) if names_files and isinstance(value, str) else value

    def _file(self, where: str, value: str) -> str:
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
                f"{where} must be a data URL, or a file in a folder that online.image_folders names",
                param=where,
            )
        return value
