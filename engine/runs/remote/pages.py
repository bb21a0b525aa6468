"""A SQLite database on another machine: apsw's SQLite reads pages through fsspec on demand, in blocks."""

from __future__ import annotations

import contextlib
import mmap
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from .address import connected, readable_errors

BLOCK = 1 << 15
"""Bytes of the smallest request: four pages. Larger blocks need fewer round trips but fetch more unneeded data."""
_MOST = 32
"""The maximum number of blocks per request."""
_STATE = (
    *("size", "mtime", "LastModified", "Last-Modified", "last_modified", "created", "ETag", "Content-MD5"),
    *("blob_id", "xet_hash"),
)
"""The file facts by which fsspec file systems reveal a change."""


class RemoteFile:
    """The bytes of one file, read in blocks and cached in a temporary file. Threads may share it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.version = 1
        """Increases when the file has changed."""
        self._lock = threading.Lock()
        self._files, self._path = connected(address)
        self._recent = True
        """Whether it changed recently. Times have a resolution of seconds, so a second change may go unnoticed."""
        with readable_errors(address):
            self._open()

    def _open(self) -> None:
        self._state = self._stat()
        self._remote = self._files.open(self._path, "rb", cache_type="none")
        self.size = int(self._files.size(self._path))
        self._kept: set[int] = set()
        self._next, self._ahead = -1, 1
        with tempfile.TemporaryFile() as file:
            file.truncate(max(1, self.size))
            self._bytes = mmap.mmap(file.fileno(), max(1, self.size))

    def _stat(self) -> object:
        self._files.invalidate_cache()
        info = self._files.info(self._path)
        return [info.get(key) for key in _STATE]

    def renew(self) -> None:
        """Forget all blocks if the file has changed. Raises AddressError."""
        with self._lock, readable_errors(self.address):
            changed = self._stat() != self._state
            if changed or self._recent:
                self._recent = changed
                self._remote.close()
                self._open()
                self.version += 1

    def read(self, start: int, count: int) -> bytes:
        """Return at most `count` bytes from `start`. Raises AddressError."""
        end = min(start + count, self.size)
        with self._lock, readable_errors(self.address):
            for block in range(start // BLOCK, -(-end // BLOCK)):
                if block not in self._kept:
                    self._fetch(block)
            return self._bytes[start:end]

    def _fetch(self, first: int) -> None:
        """Fetch a block. For sequential reads, fetch more and more blocks at once."""
        self._ahead = min(2 * self._ahead, _MOST) if first == self._next else 1
        last = -(-self.size // BLOCK)
        blocks = [first]
        while len(blocks) < self._ahead and (follows := blocks[-1] + 1) < last and follows not in self._kept:
            blocks.append(follows)
        start, end = first * BLOCK, min((blocks[-1] + 1) * BLOCK, self.size)
        self._remote.seek(start)
        data = self._remote.read(end - start)
        if len(data) != end - start:
            raise FileNotFoundError(self._path)  # the file is shorter than before, so it was replaced
        self._bytes[start:end] = data
        self._kept.update(blocks)
        self._next = blocks[-1] + 1


@cache
def remote_file(address: str) -> RemoteFile:
    """Return the file of an address. All connections of this process share its blocks. Raises AddressError."""
    return RemoteFile(address)


class _File:
    """A database file for SQLite. apsw documents the methods under `VFSFile`."""

    def __init__(self, file: RemoteFile) -> None:
        self._file = file

    def xRead(self, amount: int, offset: int) -> bytes:
        data = self._file.read(offset, amount)
        if offset < 28:
            # Write-ahead logs need shared memory, so declare the rollback journal (1) in bytes 18 and 19.
            # SQLite drops its cached pages when the change counter in bytes 24 to 27 changes.
            head = bytearray(self._file.read(0, 28))
            head[18:20], head[24:28] = b"\1\1", self._file.version.to_bytes(4, "big")
            data = bytes(head[offset : offset + amount]) + data[max(0, 28 - offset) :]
        return data

    def xFileSize(self) -> int:
        return self._file.size

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, pointer: int) -> bool:
        return False

    def xLock(self, level: int) -> None: ...
    def xUnlock(self, level: int) -> None: ...
    def xClose(self) -> None: ...
    def xSectorSize(self) -> int:
        return 4096

    def xDeviceCharacteristics(self) -> int:
        return 0


@cache
def _file_system() -> object:
    """Return the VFS of remote files, registered with apsw's SQLite."""
    import apsw  # pyright: ignore[reportMissingImports]

    class RemoteFiles(apsw.VFS):
        def xOpen(self, name: Any, flags: list[int]) -> Any:
            flags[1] = apsw.SQLITE_OPEN_READONLY
            return _File(remote_file(name.uri_parameter("address")))

        def xAccess(self, pathname: str, flags: int) -> bool:
            return False

        def xFullPathname(self, name: str) -> str:
            return name

    return RemoteFiles("grpo-tui-remote", "")


class RemoteDatabase:
    """A read-only connection to a remote database with the `sqlite3` methods and errors that readers use."""

    def __init__(self, address: str) -> None:
        from urllib.parse import quote

        with readable_errors(address):
            import apsw  # pyright: ignore[reportMissingImports]

            _file_system()
        with _errors():
            remote_file(address)
            flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
            uri = f"file:remote?address={quote(address, safe='')}"
            self._db = apsw.Connection(uri, flags=flags, vfs="grpo-tui-remote")
            self._db.execute("PRAGMA temp_store = MEMORY")

    def execute(self, sql: str, params: Sequence[object] = ()) -> Any:
        with _errors():
            return _Cursor(self._db.execute(sql, tuple(params)))

    def set_progress_handler(self, handler: Callable[[], int] | None, opcodes: int) -> None:
        self._db.set_progress_handler(handler, opcodes)  # type: ignore[arg-type]

    def close(self) -> None:
        self._db.close()


class _Cursor:
    """A cursor with the errors of `sqlite3`."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def __iter__(self) -> Iterator[object]:
        with _errors():
            yield from self._cursor

    def fetchall(self) -> list[object]:
        return list(self)

    def fetchone(self) -> Any:
        return next(iter(self), None)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn errors of apsw and of reading a page into errors of `sqlite3`."""
    import apsw  # pyright: ignore[reportMissingImports]

    try:
        yield
    except (apsw.CorruptError, apsw.NotADBError) as error:
        raise sqlite3.DatabaseError(str(error)) from error
    except (apsw.Error, OSError, UnicodeDecodeError) as error:
        raise sqlite3.OperationalError(str(error)) from error
