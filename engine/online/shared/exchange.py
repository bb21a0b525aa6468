"""Exchange files between machines that share a queue (snapshots, states, images), in a folder or at an fsspec URL.

A file's name contains its version or checksum. A file is written once, never changed, and valid once the queue names
it. Readers check it before use. Every machine keeps copies in its run's folder.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...runs.durable import make_folder, replace_file
from ...runs.masking import mask_text
from ..store.update_queue import QueueError


class ExchangeError(QueueError):
    """Files cannot be exchanged now. The message is for the user."""


class Exchange:
    """The files below `place`, by name (`states/…`). Methods raise ExchangeError."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._files: Any = None
        self._root = ""

    def put(self, path: Path, name: str) -> None:
        with self._readable_errors("written"):
            self.write(name, path.read_bytes())

    def get(self, name: str, path: Path) -> bool:
        """Download a file to `path` atomically. Returns False if it does not exist."""
        data = self.read(name)
        if data is None:
            return False
        with self._readable_errors("read"):
            make_folder(path.parent)
            replace_file(path, data, wait=False)
        return True

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None if it does not exist."""
        with self._readable_errors("read"):
            files, path = self._find(name)
            try:
                return files.cat_file(path)
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically, and durably if the exchange is a local folder."""
        with self._readable_errors("written"):
            files, path = self._find(name)
            if "file" in ((files.protocol,) if isinstance(files.protocol, str) else files.protocol):
                make_folder(Path(path).parent)
                replace_file(Path(path), data)
            else:
                files.pipe_file(path, data)

    def names(self, folder: str) -> list[str]:
        with self._readable_errors("listed"):
            files, path = self._find(folder)
            files.invalidate_cache()
            try:
                return sorted(posixpath.basename(f) for f in files.ls(path, detail=False))
            except FileNotFoundError:
                return []

    def remove(self, name: str) -> None:
        with contextlib.suppress(Exception):
            files, path = self._find(name)
            files.rm_file(path)

    def _find(self, name: str) -> tuple[Any, str]:
        if self._files is None:
            import fsspec

            self._files, self._root = fsspec.core.url_to_fs(os.path.expanduser(self.place))
        return self._files, posixpath.join(self._root, name)

    @contextmanager
    def _readable_errors(self, done: str) -> Iterator[None]:
        try:
            yield
        except ExchangeError:
            raise
        except Exception as error:  # each fsspec file system raises the errors of its own library
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
            message = mask_text(f"The shared files at {self.place} cannot be {done}: {reason}")
            raise ExchangeError(f"{message.rstrip('.')}.") from error
