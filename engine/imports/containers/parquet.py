"""Rows of a parquet file.

The reader is arro3 (Arrow's Rust implementation, 35 MiB installed, no dependencies); where pyarrow is already there,
as beside any trainer of Hugging Face, that serves as well (170 MiB is why it is not asked for).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from .base import DumpError, Found

INSTALL = "reading parquet needs one more package: pip install 'grpo-tui[parquet]'"
MAX_ROWS = 2_000_000


class Parquet:
    """`.parquet` of any name."""

    name = "parquet"

    def detect(self, head: bytes) -> bool:
        """The magic bytes."""
        return head[:4] == b"PAR1"

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[Found]:
        """Rows by number."""
        for i, row in enumerate(_rows(path, os.stat(path).st_size, os.stat(path).st_mtime_ns)):
            if i >= after:
                yield Found(i, 1, i + 1, i + 1, row)

    def read(self, path: Path, offset: int, length: int) -> Any:
        """A row by its number."""
        rows = _rows(path, os.stat(path).st_size, os.stat(path).st_mtime_ns)
        if offset >= len(rows):
            raise DumpError(f"{path} has changed since it was indexed: it has no row {offset + 1} any more")
        return rows[offset]

    def end(self, path: Path) -> int:
        """Its size: such a file is written once."""
        return os.stat(path).st_size


@lru_cache(maxsize=4)
def _rows(path: Path, _size: int, _changed: int) -> tuple[Mapping[str, Any], ...]:
    """All rows as plain values."""
    _check_footer(path)
    try:
        columns = _arro3(path)
    except ModuleNotFoundError:
        try:
            columns = _pyarrow(path)
        except ModuleNotFoundError:
            raise DumpError(f"{path}: {INSTALL}") from None
    names = list(columns)
    return tuple(dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True))


def _arro3(path: Path) -> dict[str, list[Any]]:
    from arro3.io import read_parquet

    try:
        with _quiet():
            table = read_parquet(str(path)).read_all()
            return {name: list(table.column(name).to_pylist()) for name in table.column_names}
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # for a damaged file arro3 lets Rust panic, which is no Exception
        raise DumpError(f"{path}: this parquet file cannot be read ({str(error).splitlines()[0][:200]})") from None


def _check_footer(path: Path) -> None:
    """Refuse what was cut off before a reader stumbles over it."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        length, magic = struct.unpack("<I4s", file.read(8).rjust(8, b"\0"))
    if magic != b"PAR1" or length + 12 > size:
        raise DumpError(f"{path}: this parquet file is not whole (its end is missing)")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what Rust prints about a panic: it would land in the middle of the screen."""
    try:
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:
        yield
        return
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _pyarrow(path: Path) -> dict[str, list[Any]]:
    from pyarrow import ArrowException, parquet

    try:
        table = parquet.ParquetFile(path).read()
        return {name: list(table.column(name).to_pylist()) for name in table.column_names}
    except (ArrowException, OSError, ValueError) as error:
        raise DumpError(f"{path}: this parquet file cannot be read ({str(error).splitlines()[0][:200]})") from None
