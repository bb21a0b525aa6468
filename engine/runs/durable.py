"""Files that survive a crash: atomic writes, checksums that reveal damage, and locks between processes."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from ...configs.errors import GrpoTuiError
from ...configs.plain_data import from_plain
from .paths import PROCESSES

_T = TypeVar("_T")


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write `data` to `path` and wait until it is on disk. After an OSError, `path` may hold anything."""
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes | memoryview, *, wait: bool = True) -> None:
    """Replace a file atomically: a reader sees the old or the new content, never a mix.

    wait: whether to wait until the data would survive a power cut. Raises OSError and keeps the old file.
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


def write_json(path: Path, data: Mapping[str, object]) -> None:
    """Replace a small JSON file atomically, without waiting for the disk. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, json.dumps(data, default=str, indent=1).encode(), wait=False)


def read_json(path: Path) -> dict[str, Any]:
    """Return a small JSON file as a dictionary; empty if it is missing or damaged."""
    try:
        return json_object(path.read_bytes())
    except OSError:
        return {}


def json_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object; empty if the text is anything else."""
    try:
        data = json.loads(text)
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def read_as(kind: type[_T], value: object) -> _T | None:
    """Convert plain data from an untrusted file into a dataclass; None if it does not fit."""
    try:
        return from_plain(kind, value, strict=True) if isinstance(value, dict) else None
    except (TypeError, ValueError):
        return None


def overwrite(path: Path, data: bytes) -> bool:
    """Overwrite a file within its allocated space, because a full disk has no space for a new file.

    Return False if the space is too small. A reader may see a partial write. Raises OSError.
    """
    with open(path, "r+b", buffering=0) as file:
        facts = os.fstat(file.fileno())
        if len(data) > max(facts.st_size, getattr(facts, "st_blocks", 0) * 512):
            return False
        file.write(data.ljust(facts.st_size))
    return True


def _replace(source: Path, target: Path) -> None:
    """Rename a file. Windows refuses while another process reads the target, so retry there for up to a second."""
    for _ in range(100):
        try:
            return os.replace(source, target)
        except PermissionError:
            if os.name == "posix":
                raise
            time.sleep(0.01)
    os.replace(source, target)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents durably. Raises OSError.

    Several processes may create the same folder at once.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None
        sync_folder(folder.parent)


def sync_tree(folder: Path) -> None:
    """Wait until everything in `folder` is on disk, except the folder's own name. Raises OSError.

    The files get the mode of the umask, so that a server under another user can load saved weights.
    """
    for path in folder.rglob("*"):
        if path.is_file():
            follow_umask(path)
        sync_folder(path)  # of a file, what is in it
    sync_folder(folder)


def follow_umask(path: Path) -> None:
    """Give a file the mode of its new folder, because safetensors always writes with mode 0600. Raises OSError."""
    path.chmod(path.parent.stat().st_mode & 0o666)


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable, because syncing a file does not sync its name. Windows cannot open folders."""
    if os.name != "posix" and folder.is_dir():
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL}
"""Error codes of file systems without locks."""


class Locked(GrpoTuiError, RuntimeError):
    """Another process holds the lock. The message names the run."""


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Hold the lock file `path`; yield False if another process holds it.

    A file system without locks grants every lock. Raises OSError if the file cannot be created.
    """
    from filelock import FileLock, Timeout  # local import: viewing a run takes no lock

    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    free = True
    try:
        lock.acquire(blocking=False)
    except Timeout:
        free = False
    except OSError as problem:
        if problem.errno not in WITHOUT_LOCKS:
            raise
    try:
        yield free
    finally:
        lock.release()


@contextmanager
def hold(run_dir: Path, name: str) -> Iterator[None]:
    """Hold the lock `name` of a run. Raises Locked at once if another process holds it."""
    with try_lock(run_dir / PROCESSES / f".{name}.lock") as free:
        if not free:
            raise Locked(f"another process runs the {name} of run {run_dir.name}: stop it first")
        yield


CHECKSUMS = "checksums.json"


def write_checksums(folder: Path) -> None:
    """Store length and checksum of every file in `folder` and its subfolders. Raises OSError."""
    files = {str(p.relative_to(folder)): _facts(p) for p in sorted(folder.rglob("*")) if p.is_file()}
    files.pop(CHECKSUMS, None)
    (folder / CHECKSUMS).write_text(json.dumps({"files": files}, indent=1), encoding="utf-8")


def find_damage(folder: Path) -> str | None:
    """Describe the first difference from a folder's checksums in a few words; None if it is intact."""
    try:
        files = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))["files"]
        expected = {str(name): (int(f["bytes"]), str(f["sha256"])) for name, f in files.items()}
    except FileNotFoundError:
        return f"its {CHECKSUMS} is missing"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return f"its {CHECKSUMS} cannot be read"
    for name, (length, digest) in expected.items():
        try:
            found = _facts(folder / name)
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as problem:
            return f"{name} cannot be read ({problem.strerror})"
        if found["bytes"] != length:
            return f"{name} has {found['bytes']} bytes, but {length} were written"
        if found["sha256"] != digest:
            return f"{name} has changed since it was written"
    return None


def _facts(path: Path) -> dict[str, str | int]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": file.tell(), "sha256": digest}
