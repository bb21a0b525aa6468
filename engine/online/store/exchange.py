"""Files that machines with one queue exchange (snapshots, states, images), in a folder or at an fsspec URL.

The name of a file contains its version or checksum. A file is written once and never changed, and it counts once the
queue names it. Readers check it before use. Every machine keeps copies in its run's folder.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...runs.durable import make_folder, sync_folder
from ...runs.masking import mask_text
from .update_queue import QueueError


class ExchangeError(QueueError):
    """Files cannot be exchanged now. The message is for the user."""


class Exchange:
    """The files below `place`, by name (`states/…`). Methods raise ExchangeError."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._files: Any = None
        self._root = ""

    def put(self, path: Path, name: str) -> None:
        """Copy a file there, durably."""
        with self._in_words("written"):
            files, to = self._there(name)
            if _is_local(files):
                _copy(path, Path(to))
            else:
                files.put_file(str(path), to)

    def get(self, name: str, path: Path) -> bool:
        """Copy a file here, atomically. Returns False when it does not exist."""
        with self._in_words("read"):
            files, at = self._there(name)
            make_folder(path.parent)
            temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(3).hex()}.part")
            try:
                files.get_file(at, str(temporary))
                os.replace(temporary, path)
                return True
            except FileNotFoundError:
                return False
            finally:
                with contextlib.suppress(OSError):
                    temporary.unlink(missing_ok=True)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, None when it does not exist."""
        with self._in_words("read"):
            files, at = self._there(name)
            try:
                return files.cat_file(at)
            except FileNotFoundError:
                return None

    def write(self, name: str, data: bytes) -> None:
        """Write a small file atomically."""
        with self._in_words("written"):
            files, to = self._there(name)
            if _is_local(files):
                _copy(data, Path(to))
            else:
                files.pipe_file(to, data)

    def names(self, folder: str) -> list[str]:
        with self._in_words("listed"):
            files, at = self._there(folder)
            files.invalidate_cache()
            try:
                return sorted(posixpath.basename(f) for f in files.ls(at, detail=False))
            except FileNotFoundError:
                return []

    def remove(self, name: str) -> None:
        """Delete a file if possible."""
        with contextlib.suppress(Exception):
            files, at = self._there(name)
            files.rm_file(at)

    def _there(self, name: str) -> tuple[Any, str]:
        if self._files is None:
            import fsspec

            self._files, self._root = fsspec.core.url_to_fs(os.path.expanduser(self.place))
        return self._files, posixpath.join(self._root, name)

    @contextmanager
    def _in_words(self, done: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # each of fsspec's file systems raises what its library does
            reason = getattr(error, "strerror", None) or str(error).partition("\n")[0] or type(error).__name__
            told = mask_text(f"The shared files at {self.place} cannot be {done}: {reason}")
            raise ExchangeError(f"{told.rstrip('.')}.") from error


def _is_local(files: Any) -> bool:
    return "file" in ((files.protocol,) if isinstance(files.protocol, str) else files.protocol)


def _copy(content: Path | bytes, to: Path) -> None:
    """Write a file atomically and durably. Raises OSError."""
    make_folder(to.parent)
    temporary = to.with_name(f".{to.name}.{os.getpid()}.{os.urandom(3).hex()}.part")
    try:
        with open(temporary, "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                with open(content, "rb") as source:
                    while block := source.read(1 << 20):
                        file.write(block)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, to)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(to.parent)
