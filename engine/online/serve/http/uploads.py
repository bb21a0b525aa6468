"""Pictures of callers as files of the run. No address is fetched."""

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
"""Keys that name picture files, at any depth of a task (`ChatEnv` reads them from its messages)."""


@dataclass(frozen=True)
class Uploads:
    """folder: for uploaded pictures. shared: folders of which callers may name pictures."""

    folder: Path
    shared: tuple[Path, ...] = ()

    def picture(self, url: str) -> str:
        """Save the picture of a data URL as a PNG file named by its content; return the path. Raises HttpProblem."""
        head, _, data = url.partition(",")
        if not head.startswith("data:image/") or not head.endswith(";base64"):
            raise HttpProblem(
                400, "a picture must be a data URL (data:image/png;base64,…): no address is fetched", param="url"
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
        """Return a task whose pictures are files that callers may use. Raises HttpProblem.

        The error is the same for existing and missing files, so a caller learns nothing about the disk.
        """
        return self._checked("task_data", task, False)

    def _checked(self, where: str, value: Any, names_files: bool) -> Any:
        """Check a part of a task. names_files: whether its texts are file names."""
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
