"""Files that are there whole or not at all, and still there after the power went."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path` and wait until it is on the disk. After an OSError, `path` may hold anything."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes | memoryview, *, wait: bool = True) -> None:
    """Put `data` in the place of a file in one instant: a reader sees the old or the new, never a half.

    wait: until it would outlast a power cut. Raises OSError, and leaves the old one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(3).hex()}.tmp")
    try:
        if wait:
            write_synced(temporary, data)
        else:
            temporary.write_bytes(data)
        _replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    if wait:
        sync_folder(path.parent)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a small JSON file in one instant, without waiting for the disk. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(data, default=str, indent=1).encode(), wait=False)


def read_json(path: Path) -> dict[str, Any]:
    """Return a small JSON file as a dictionary; empty if it is missing or damaged."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def overwrite(path: Path, data: bytes) -> bool:
    """Write `data` over a file in the space that it has, because a full disk has none for a new file.

    False when it has less space. A reader may see a half. Raises OSError.
    """
    with open(path, "r+b", buffering=0) as file:
        facts = os.fstat(file.fileno())
        if len(data) > max(facts.st_size, getattr(facts, "st_blocks", 0) * 512):
            return False
        file.write(data.ljust(facts.st_size))
    return True


def _replace(source: Path, target: Path) -> None:
    """Rename a file. Windows refuses that while another process reads the target, so retry there for up to a second."""
    for _ in range(100):
        try:
            return os.replace(source, target)
        except PermissionError:
            if os.name == "posix":
                raise
            time.sleep(0.01)
    os.replace(source, target)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, durably. Raises OSError.

    Several processes may make the same folder at once.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        sync_folder(folder.parent)


def sync_tree(folder: Path) -> None:
    """Wait until everything in `folder` is on the disk, all but its own name. Raises OSError.

    The files get the mode that the umask asks for, so that a server under another user can load saved weights.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            follow_umask(path)
        sync_folder(path)  # of a file, what is in it
    sync_folder(folder)


def follow_umask(path: Path) -> None:
    """Give a file the mode of its new folder: safetensors writes with 0600 whatever the umask is. Raises OSError."""
    path.chmod(path.parent.stat().st_mode & 0o666)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable: syncing a file does not sync its name. Windows cannot open folders."""
    if os.name != "posix" and folder.is_dir():
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
