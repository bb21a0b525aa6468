"""Rows of a parquet file.

The reader is arro3 (Arrow's Rust implementation, 35 MiB installed, no dependencies); where pyarrow is already there,
as beside any trainer of Hugging Face, that serves as well (170 MiB is why it is not asked for).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
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
        table = read_parquet(str(path)).read_all()
        return {name: list(table.column(name).to_pylist()) for name in table.column_names}
    except Exception as error:  # arro3 raises its own errors and, for a damaged file, Rust's panics
        raise DumpError(f"{path}: this parquet file cannot be read ({str(error).splitlines()[0][:200]})") from None


def _pyarrow(path: Path) -> dict[str, list[Any]]:
    from pyarrow import ArrowException, parquet

    try:
        table = parquet.ParquetFile(path).read()
        return {name: list(table.column(name).to_pylist()) for name in table.column_names}
    except (ArrowException, OSError, ValueError) as error:
        raise DumpError(f"{path}: this parquet file cannot be read ({str(error).splitlines()[0][:200]})") from None
