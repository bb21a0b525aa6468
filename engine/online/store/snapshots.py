"""Versioned snapshots of the served model, published atomically.

No file is overwritten in place. Version numbers only grow, even across restarts. Deleting a version needs an exclusive
lock, which a reader's lock prevents. Locks are `flock`s and end with their process. `docs/architecture/online.md`
explains each step of a writer and of a reader.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import safetensors
import safetensors.torch
import xxhash
from torch import Tensor

from ....configs.errors import GrpoTuiError
from ....configs.plain_data import from_plain
from ...runs.durable import follow_umask, make_folder, replace_file, sync_folder, write_synced

POINTER = "latest_model_version.txt"
_NAME = re.compile(r"ema_model_snapshot\.v(\d+)\.safetensors")
_MANIFEST = re.compile(r"ema_model_snapshot\.v(\d+)\.json")
_LEFTOVER = re.compile(
    r"(ema_model_snapshot\.v\d+\.(safetensors|json)|latest_model_version\.txt)\.tmp|\.tmp\w{6}"
    r"|\.{1,2}ema_model_snapshot\..*\.(fetched|part|tmp)"
)
"""Temporary files of ours and of safetensors, and incomplete copies of versions from other machines."""


class SnapshotError(GrpoTuiError, RuntimeError):
    """A snapshot cannot be written or read. The message is for the user."""


@dataclass(frozen=True)
class Manifest:
    """The content and origin of a snapshot. size: bytes. checksum: XXH3-128. update: the last update in it."""

    version: int
    file: str
    size: int
    checksum: str
    keys: tuple[str, ...]
    base_model: str
    parent_version: int
    update: int
    created: float

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Parse a manifest. Raises ValueError if the bytes are not one."""
        try:
            return from_plain(cls, json.loads(data), strict=True)
        except TypeError as error:
            raise ValueError("not a manifest") from error


def file_name(version: int) -> str:
    """Return `ema_model_snapshot.v<N>.safetensors`."""
    return f"ema_model_snapshot.v{version}.safetensors"


def version_of(name: str) -> int | None:
    """Return the version in a snapshot's file name; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def published_versions(folder: Path) -> list[int]:
    """Return the versions with their final names, oldest first. They may be damaged."""
    try:
        return sorted(v for v in map(version_of, os.listdir(folder)) if v is not None)
    except FileNotFoundError:
        return []


def pointed_version(folder: Path) -> int | None:
    """Return the version that the pointer names; None if it names none."""
    try:
        with open(folder / POINTER, encoding="utf-8", errors="replace") as file:
            return version_of(file.read(200).strip())
    except FileNotFoundError:
        return None


def _checksum(file: BinaryIO) -> str:
    """Compute the XXH3-128 of a file. It detects damage, not tampering."""
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return xxhash.xxh3_128_hexdigest(content)


def _manifest_path(folder: Path, version: int) -> Path:
    return folder / f"ema_model_snapshot.v{version}.json"


class SnapshotWriter:
    """Publishes versions to a folder, as its only writer.

    Raises SnapshotError if the folder cannot be used or another process publishes to it.
    """

    offer: Callable[[Path, Manifest], None] | None = None
    """Called with the written tensors and the manifest before the version gets its final name. An exception prevents
    publication.
    """

    def __init__(self, folder: Path, *, base_model: str) -> None:
        self.folder = folder
        self.base_model = base_model
        try:
            make_folder(folder)
            self._lock = open(folder / ".writer.lock", "a")  # noqa: SIM115 - held for the writer's life
        except OSError as error:
            raise SnapshotError(f"The snapshot folder {folder} cannot be written: {error.strerror}.") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise SnapshotError(f"Another process already publishes snapshots into {folder}; stop it first.") from error
        for name in os.listdir(folder):
            manifest = _MANIFEST.fullmatch(name)
            orphan = manifest is not None and not (folder / file_name(int(manifest[1]))).exists()
            if orphan or _LEFTOVER.fullmatch(name):  # left by a writer that was killed
                with contextlib.suppress(OSError):
                    (folder / name).unlink()
        self.version = max([pointed_version(folder) or 0, *published_versions(folder)])

    def publish(self, tensors: Mapping[str, Tensor], *, update: int = 0) -> Manifest:
        """Publish `tensors` as the next version. On SnapshotError, the pointer still names the previous version."""
        try:
            return self._publish({k: v.detach().to("cpu").contiguous() for k, v in tensors.items()}, update)
        except (OSError, safetensors.SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise SnapshotError(
                f"Version {self.version + 1} could not be published into {self.folder}: {reason}. Version "
                f"{pointed_version(self.folder)} stays served."
            ) from error

    def _publish(self, tensors: dict[str, Tensor], update: int) -> Manifest:
        version = self.version + 1
        final, described = self.folder / file_name(version), _manifest_path(self.folder, version)
        temporary, described_temporary, pointer_temporary = (
            p.with_name(p.name + ".tmp") for p in (final, described, self.folder / POINTER)
        )
        try:
            # No file has its final name yet, so these three may reach the disk in any order.
            safetensors.torch.save_file(tensors, temporary, {"version": str(version)})
            follow_umask(temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
                manifest = Manifest(
                    version=version,
                    file=final.name,
                    size=os.fstat(file.fileno()).st_size,
                    checksum=_checksum(file),
                    keys=tuple(sorted(tensors)),
                    base_model=self.base_model,
                    parent_version=self.version,
                    update=update,
                    created=time.time(),
                )
            write_synced(described_temporary, manifest.to_bytes())
            write_synced(pointer_temporary, final.name.encode())
            if self.offer is not None:
                self.offer(temporary, manifest)
                self.version = version
            with _naming(self.folder):
                os.rename(described_temporary, described)
                os.rename(temporary, final)
                sync_folder(self.folder)
                self.version = version  # the number is used, whatever happens to the pointer
                if (pointed_version(self.folder) or 0) < version:
                    os.replace(pointer_temporary, self.folder / POINTER)
                    sync_folder(self.folder)
        finally:
            for path in (temporary, described_temporary, pointer_temporary):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
        return manifest

    def close(self) -> None:
        self._lock.close()


def install(folder: Path, tensors: Path, manifest: Manifest) -> None:
    """Install a version from another machine. The pointer only moves to a newer version.

    tensors: a file in `folder`, which is checked and renamed. Raises OSError, and SnapshotError if the file does not
    match the manifest.
    """
    with open(tensors, "rb") as file:
        if os.fstat(file.fileno()).st_size != manifest.size or _checksum(file) != manifest.checksum:
            raise SnapshotError(f"Snapshot {manifest.file} does not match its checksum.")
        os.fsync(file.fileno())
    with _naming(folder):
        replace_file(_manifest_path(folder, manifest.version), manifest.to_bytes())
        os.replace(tensors, folder / file_name(manifest.version))
        sync_folder(folder)
        if (pointed_version(folder) or 0) < manifest.version:
            replace_file(folder / POINTER, file_name(manifest.version).encode())


@contextlib.contextmanager
def _naming(folder: Path) -> Iterator[None]:
    """Serialise the naming of versions by the worker and by `install`."""
    with open(folder / ".naming.lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def prune(folder: Path, keep: int, protect: Iterable[int] = ()) -> list[int]:
    """Delete all but the newest `keep` versions, `protect`, the one that the pointer names, and those held by a reader.
    Returns the deleted versions.
    """
    kept = {*protect, pointed_version(folder)}
    removed = []
    for version in published_versions(folder)[:-keep]:
        path = folder / file_name(version)
        # An error means that a reader holds it or that it is already gone.
        with contextlib.suppress(OSError):
            if version not in kept:
                with open(path, "rb") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                    _manifest_path(folder, version).unlink(missing_ok=True)
                removed.append(version)
    return removed


@dataclass
class Snapshot(contextlib.AbstractContextManager):
    """A checked version, protected from deletion until `close`."""

    path: Path
    manifest: Manifest
    hold: BinaryIO

    @property
    def version(self) -> int:
        return self.manifest.version

    def tensors(self, device: str = "cpu") -> dict[str, Tensor]:
        """Copy all tensors out of the mapped file."""
        with safetensors.safe_open(self.path, framework="pt", device=device) as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dictionary

    def close(self) -> None:
        self.hold.close()

    def __exit__(self, *error: object) -> None:
        self.close()


class SnapshotReader:
    """Finds the newest good version. `on_problem` receives each problem once."""

    def __init__(self, folder: Path, on_problem: Callable[[str], None] | None = None) -> None:
        self.folder = folder
        self._on_problem = on_problem
        self._reported: set[str] = set()
        self._damaged: set[tuple[int, int, int]] = set()  # so that polls do not hash them again

    def newer_than(self, version: int) -> Snapshot | None:
        """Return the newest good version above `version`, held; None if there is none."""
        pointed = self._pointed()
        candidates = published_versions(self.folder)
        while pointed is not None and pointed > version and pointed not in candidates:
            moved = self._pointed()
            if moved == pointed:
                self._report(f"Snapshot {file_name(pointed)}, to which the pointer points, is missing")
                break
            pointed = moved  # the writer published and pruned between the two reads
            candidates = published_versions(self.folder)
        for candidate in reversed(candidates):
            if candidate <= version or (pointed is not None and candidate > pointed):
                continue  # versions above the pointer are not published yet
            try:
                status = os.stat(self.folder / file_name(candidate))
                identity = candidate, status.st_mtime_ns, status.st_size
                if identity in self._damaged:
                    continue
                try:
                    return self.open(candidate)
                except SnapshotError as error:
                    self._damaged.add(identity)
                    self._report(str(error).rstrip("."))
            except FileNotFoundError:  # pruned between listing and opening
                continue
            except OSError as error:
                self._report(f"Snapshot {file_name(candidate)} cannot be read: {error.strerror}")
        return None

    def open(self, version: int) -> Snapshot:
        """Return a version, checked and held. Raises SnapshotError if damaged, FileNotFoundError if missing."""
        path = self.folder / file_name(version)
        hold = open(path, "rb")  # noqa: SIM115 - kept open: the lock lives as long as the file
        try:
            fcntl.flock(hold, fcntl.LOCK_SH)
            if not os.path.exists(path) or not os.path.samestat(os.stat(path), os.fstat(hold.fileno())):
                raise FileNotFoundError(path)  # deleted between open and lock
            manifest = self.manifest(version)
            size = os.fstat(hold.fileno()).st_size
            if manifest.version != version or manifest.file != path.name or manifest.size != size:
                raise SnapshotError(f"Snapshot {path.name} has {size} bytes, but its manifest lists {manifest.size}.")
            if _checksum(hold) != manifest.checksum:
                raise SnapshotError(f"Snapshot {path.name} does not match its checksum.")
        except BaseException:
            hold.close()
            raise
        return Snapshot(path, manifest, hold)

    def manifest(self, version: int) -> Manifest:
        """Read a version's manifest without checking it. Raises SnapshotError if it is not readable."""
        try:
            return Manifest.from_bytes(_manifest_path(self.folder, version).read_bytes())
        except (OSError, ValueError) as error:
            raise SnapshotError(f"Snapshot {file_name(version)} has no readable manifest.") from error

    def _pointed(self) -> int | None:
        exists, pointed = (self.folder / POINTER).exists(), pointed_version(self.folder)
        if exists and pointed is None:
            self._report(f"The pointer {self.folder / POINTER} does not name a snapshot")
        return pointed

    def _report(self, message: str) -> None:
        if self._on_problem is not None and message not in self._reported:
            self._reported.add(message)
            self._on_problem(f"{message}. Serving continues with the newest whole version.")


def check_fit(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless `tensors` has exactly the names and shapes of `parameters`."""
    if parameters.keys() != tensors.keys():
        strange = sorted(parameters.keys() ^ tensors.keys())
        raise ValueError(f"the weights are of another model: {len(strange)} names differ, such as {strange[0]}")
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            shapes = f"{tuple(tensors[name].shape)}, not {tuple(parameter.shape)}"
            raise ValueError(f"the weights are of another model: {name} is {shapes}")


@contextlib.contextmanager
def weights_in_place(parameters: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside the block, let the parameters reference the data of `tensors`."""
    before = {name: parameter.data for name, parameter in parameters.items()}
    try:
        for name, parameter in parameters.items():
            parameter.data = tensors[name]
        yield
    finally:
        for name, parameter in parameters.items():
            parameter.data = before[name]
