"""Local copies of dumps that are not plain files: standard input, tar archives, and remote addresses.

Copies are in the cache. A copy is refreshed when its source changes, and deleted with its index.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
import tarfile
import time
import zlib
from lzma import LZMAError
from pathlib import Path
from typing import Self

from ..runs.remote.address import AddressError, connected, is_address, readable_errors
from . import cache
from .errors import DumpError

MAX_BYTES = 64 << 30
"""Maximum bytes that an archive may unpack to."""
_DAMAGE = (tarfile.TarError, EOFError, zlib.error, LZMAError)
_TORN = ".torn"


def local(reference: str | Path) -> Path:
    """Return the path of a dump on this machine, copied or unpacked if needed. Raises DumpError."""
    if reference == "-":
        return _stdin()
    path = _downloaded(str(reference)) if is_address(reference) else Path(reference).expanduser().absolute()
    path = path.resolve() if ".." in path.parts else path  # its name becomes the name of the index
    if not path.exists():
        raise DumpError(f"there is no file or folder {reference}")
    return _unpacked(path) if path.is_file() and _is_tar(path) else path


def _folder(*parts: object) -> Path:
    key = hashlib.blake2b("\0".join(map(str, parts)).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return cache.cache_dir().parent / "copies" / key


def _stdin() -> Path:
    new = _folder("stdin", os.getpid(), time.time_ns())  # another pipe may be read at the same time
    new.mkdir(parents=True)
    temporary = new / "new"
    digest = hashlib.blake2b(digest_size=8)
    with temporary.open("wb") as file:
        while block := sys.stdin.buffer.read(1 << 20):
            digest.update(block)
            file.write(block)
    if not temporary.stat().st_size:
        raise DumpError("standard input is empty")
    target = _folder("stdin", digest.hexdigest()) / f"stdin-{digest.hexdigest()}"
    target.parent.mkdir(exist_ok=True)
    temporary.replace(target)
    new.rmdir()
    return local(str(target))


def _downloaded(address: str) -> Path:
    scheme, _, rest = address.partition("://")
    try:
        files, inner = connected(address)
        with readable_errors(address):
            size = files.size(inner) if files.isfile(inner) else None
            state = files.checksum(inner) if size is not None and scheme not in ("http", "https") else size
            folder = _folder(address, state)
            target = folder / (Path(rest.rstrip("/")).name or scheme)
            if not target.exists() or size is None:
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                temporary = target.with_name(f".{target.name}.part")  # an interrupted copy must not count
                files.get(inner, str(temporary), recursive=size is None)
                temporary.replace(target)
            return target
    except AddressError as error:
        raise DumpError(str(error)) from None


def _is_tar(path: Path) -> bool:
    """Return whether a file is a tar archive, compressed or not. An empty archive does not count."""
    with path.open("rb") as file:
        head = file.read(265)
    packed = head[:3] in (b"\x1f\x8b\x08", b"BZh") or head[:6] == b"\xfd7zXZ\0"
    if head[257:262] != b"ustar" and not packed:
        return False
    try:
        with tarfile.open(path) as archive:
            return archive.next() is not None
    except (*_DAMAGE, OSError):
        return False


class _Member(tarfile.TarInfo):
    """A member of an archive. `tarfile` ends an archive at a damaged header as if nothing followed."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        try:
            return super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            if buf.strip(b"\0"):  # neither the end of the file nor that of the archive
                raise tarfile.ReadError(str(error)) from error
            raise


def _unpacked(path: Path) -> Path:
    """Unpack an archive and return its folder. Only plain files with paths inside the folder are unpacked."""
    stat = path.stat()
    name = path.name.partition(".tar")[0].removesuffix(".tgz") or "archive"
    target = _folder(path, stat.st_size, stat.st_mtime_ns) / name
    if target.is_dir():
        return target
    temporary = target.with_name(f".{name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    left = MAX_BYTES
    try:
        with tarfile.open(path, tarinfo=_Member) as archive:
            for member in archive:
                left -= member.size
                if left < 0:
                    raise DumpError(f"{path}: it unpacks to more than {MAX_BYTES >> 30} GiB")
                if member.isfile():
                    with contextlib.suppress(tarfile.FilterError):  # a path outside the folder
                        archive.extract(member, temporary, filter="data")
            while archive.fileobj and archive.fileobj.read(1 << 20):  # the checksum is behind the last member
                pass
    except (*_DAMAGE, OSError) as error:
        from_system = isinstance(error, OSError) and error.errno is not None  # not the archive: a full disk, a name
        if from_system or not any(temporary.iterdir()):
            shutil.rmtree(temporary, ignore_errors=True)
            raise DumpError(
                f"{path}: this archive cannot be {'unpacked' if from_system else 'read'} ({error})"
            ) from None
        target.with_name(_TORN).write_text(f"the archive {path} is damaged, and its rest was not read ({error})")
    temporary.replace(target)
    return target


def damage_of(dump: Path) -> str:
    """Return a sentence if a dump is the readable part of a damaged archive, else an empty string."""
    if dump.parent.parent != cache.cache_dir().parent / "copies":
        return ""
    try:
        return dump.with_name(_TORN).read_text(errors="replace")
    except OSError:
        return ""


def tidy() -> None:
    """Delete the indexes that are no longer kept (`cache.tidy`), and the copies without an index for an hour."""
    cache.tidy()
    kept = [known[0] for folder in cache.recent() if (known := cache.dump_of(folder)) is not None]
    copies = cache.cache_dir().parent / "copies"
    in_use: set[object] = {part for dump in kept for part in (dump, *dump.parents)}
    for folder in copies.glob("*"):
        if folder not in in_use and time.time() - folder.stat().st_mtime > 3600:
            shutil.rmtree(folder, ignore_errors=True)
