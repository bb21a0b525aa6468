"""Files that are there whole or not at all, and still there after the power went."""

from __future__ import annotations

import os
from pathlib import Path


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path` and wait until it is on the disk; raises OSError with nothing promised about `path`."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable: a file's own fsync says nothing about its name."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
