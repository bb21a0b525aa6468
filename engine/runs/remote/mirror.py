"""A folder in the cache that mirrors a run at an address.

It holds copies of the run's small files. Its `record.sqlite` is one line with the address from which `pages.py` reads.
Images are fetched when they are shown. The small files of an active run are fetched repeatedly.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sqlite3
import threading
import time
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from ..control.live import FOLDER as LIVE
from ..control.status import look
from ..durable import replace_file
from ..errors import RecordDamaged
from ..notes import NOTES_FILE, place_of
from ..paths import CONFIG_FILE, DATABASE, PROCESSES, RUN_FILE
from .address import MARK, AddressError, address_of, cache_folder, connected, is_file, readable_errors
from .pages import RemoteDatabase, remote_file

_EVERY = 5.0
"""Seconds between two updates of an active run."""
_KEPT = 30 * 86400.0
"""Seconds."""
_LARGEST = 64 << 20
"""The maximum number of bytes copied of a file."""


@cache
def mirrored(address: str) -> Path | None:
    """Return the folder that mirrors the run at an address; None if there is no run. Raises AddressError."""
    address = address.rstrip("/")
    files, root = connected(address)
    with readable_errors(address):
        has_record = is_file(files, f"{root}/{DATABASE}")
        if not (has_record or any(is_file(files, f"{root}/{name}") for name in (RUN_FILE, CONFIG_FILE))):
            return None
        key = hashlib.blake2b(address.encode(), digest_size=8).hexdigest()
        folder = cache_folder() / key / (PurePosixPath(root).name or "run")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _tidy(folder.parent)
        if has_record:
            replace_file(folder / DATABASE, MARK + address.encode(), wait=False)
            (folder / DATABASE).chmod(0o600)  # the address may contain a password
        _copy_small(files, root, folder)
        notes = place_of(folder)
        if not notes.exists() and (folder / NOTES_FILE).exists():  # notes made here are appended to those made there
            notes.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / NOTES_FILE, notes)
    return folder


def _tidy(opened: Path) -> None:
    os.utime(opened)
    for other in opened.parent.iterdir():
        if time.time() - other.stat().st_mtime > _KEPT:
            shutil.rmtree(other, ignore_errors=True)


def _copy_small(files: Any, root: str, folder: Path) -> None:
    """Copy the small files of a run. Keep files that are gone at the source, because their process has ended."""
    files.invalidate_cache()
    names = [RUN_FILE, CONFIG_FILE, NOTES_FILE]
    for sub in (PROCESSES, LIVE):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            listed = (PurePosixPath(str(path)).name for path in files.ls(f"{root}/{sub}", detail=False))
            names += [f"{sub}/{name}" for name in listed if name.endswith(".json")]
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            data = files.cat_file(f"{root}/{name}", start=0, end=_LARGEST)
            (folder / name).parent.mkdir(exist_ok=True)
            replace_file(folder / name, data, wait=False)


def connect(address: str) -> RemoteDatabase:
    """Open the record of the run at an address, and follow the run while it is active. Raises RecordDamaged."""
    try:
        db = RemoteDatabase(f"{address}/{DATABASE}")
        _follow(address)
        return db
    except (OSError, sqlite3.Error) as error:
        raise RecordDamaged(str(error)) from error


@cache
def _follow(address: str) -> None:
    folder = mirrored(address)
    if folder is not None and look(folder).active:
        threading.Thread(target=_keep_fresh, args=(address, folder), daemon=True).start()


def _keep_fresh(address: str, folder: Path) -> None:
    files, root = connected(address)
    while look(folder).active:
        time.sleep(_EVERY)
        with contextlib.suppress(AddressError), readable_errors(address):
            _copy_small(files, root, folder)
            remote_file(f"{address}/{DATABASE}").renew()


def fetch(run_dir: Path, file: Path) -> None:
    """Copy a file of a remote run into its folder if it is not there yet. An unreadable file stays missing."""
    address = None if file.exists() else address_of(run_dir)
    if address is None:
        return
    with contextlib.suppress(AddressError), readable_errors(address):
        files, root = connected(address)
        data = files.cat_file(f"{root}/{file.relative_to(run_dir).as_posix()}", start=0, end=_LARGEST)
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, data, wait=False)
