"""Rows of a parquet file, with one batch in memory at a time.

The reader is arro3 (Arrow's Rust implementation, 35 MiB without dependencies), or pyarrow (170 MiB) if it is already
installed. arro3 0.9 reads all columns and row groups. That is fast (600 MB of pictures take 1.6 s), but it holds the
largest page of the file in memory.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from ..errors import DumpError
from .base import Container, FoundDocument, stat_of

INSTALL = "reading parquet needs one more package: pip install 'grpo-tui[parquet]'"
BATCH = 64
"""Rows in memory at once. A picture in each can be a megabyte."""
_OTHER = re.compile(r"decimal|timestamp|date|duration|time|map|binary", re.I)
"""Types without a JSON value."""
_BYTES = re.compile(r"(?:\A|DataType<)(?:large_?|fixed_?size_?)?binary", re.I)
COPIES = {"trajectory_json": ("messages",)}
"""Columns that duplicate another column (ART). A batch omits them if every row has the other column, because creating
Python values takes most of the time."""

Row = Mapping[str, Any]


class Parquet(Container):
    """`.parquet` of any name."""

    name = "parquet"

    def __init__(self) -> None:
        self._kept: tuple[object, Iterator[Any], int, list[Row]] = None, iter(()), 0, []
        """The path and state of the last file, its remaining batches, and the last batch: first row, rows."""

    def detect(self, head: bytes) -> bool:
        return head[:4] == b"PAR1"

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        first = 0
        for batch in _batches(path):
            if first + batch.num_rows > after:
                for i, row in enumerate(_rows(path, batch), first):
                    if i >= after:
                        yield FoundDocument(i, 1, i + 1, i + 1, row)
            first += batch.num_rows

    def read(self, path: Path, offset: int, length: int) -> object:
        """Return a row by its number. The last batch is cached, so nearby rows are cheap."""
        key = (path, *stat_of(path))
        (known, batches, first, rows), self._kept = self._kept, (None, iter(()), 0, [])
        if known != key or offset < first:
            batches, first, rows = _batches(path), 0, []
        while offset >= first + len(rows):
            first += len(rows)
            batch = next(batches, None)
            while batch is not None and offset >= first + batch.num_rows:  # skip without creating values
                first += batch.num_rows
                batch = next(batches, None)
            if batch is None:
                raise DumpError(f"{path} has changed since it was indexed: it has no row {offset + 1} any more")
            rows = list(_rows(path, batch))
        self._kept = key, batches, first, rows
        return rows[offset - first]


def _batches(path: Path) -> Iterator[Any]:
    _check_footer(path)
    try:
        from arro3.io import read_parquet
    except ModuleNotFoundError:
        yield from _by_pyarrow(path)
        return
    try:
        with _silence():
            reader = read_parquet(str(path), batch_size=BATCH)
        while True:
            with _silence():
                batch = next(reader, None)
            if batch is None:
                return
            yield batch
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # arro3 panics on a damaged file, which is not an Exception
        raise _unreadable(path, error) from None


def _by_pyarrow(path: Path) -> Iterator[object]:
    try:
        from pyarrow import ArrowException, parquet
    except ModuleNotFoundError:
        raise DumpError(f"{path}: {INSTALL}") from None
    try:
        file = parquet.ParquetFile(path)
        names = [field.name for field in file.schema_arrow if not _is_bytes(str(field.type))]
        yield from file.iter_batches(batch_size=BATCH, columns=names or None)
    except (ArrowException, OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: BaseException) -> DumpError:
    message = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return DumpError(f"{path}: this parquet file cannot be read ({message})")


def _rows(path: Path, batch: Any) -> Iterator[Row]:
    """Yield the rows of a batch as plain values. Duplicate columns and bytes (images) are null."""
    names = [str(name) for name in batch.schema.names]
    kinds = [str(batch.schema.field(i).type) for i in range(len(names))]
    try:
        with _silence():
            complete = {n for n in COPIES if n in names and batch.column(names.index(n)).null_count == 0}
            left_out = {copy for name in complete for copy in COPIES[name]}
            columns = [
                [None] * batch.num_rows if name in left_out or _is_bytes(kind) else _values(batch.column(i), kind)
                for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
            ]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # as above
        raise _unreadable(path, error) from None
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _values(column: Any, kind: str) -> list[object]:
    """Return the values of a column for JSON: exact numbers as floats, times as texts, maps as objects."""
    values = column.to_pylist()
    plain = _OTHER.search(kind) is None
    return values if plain else [_as_json(v, kind.lower().startswith("map")) for v in values]


def _as_json(value: object, is_map: bool = False) -> object:
    match value:
        case Decimal():
            return float(value)
        case bytes():  # of a picture in a message
            return None
        case timedelta():
            return value.total_seconds()
        case date() | time():
            return value.isoformat()
        case dict():
            return {k: _as_json(v) for k, v in value.items()}
        case list() if is_map or (value and all(isinstance(v, tuple) and len(v) == 2 for v in value)):
            return {str(k): _as_json(v) for k, v in value}
        case list():
            return [_as_json(v) for v in value]
        case _:
            return value


def _is_bytes(kind: str) -> bool:
    """Return whether a column holds bytes. Names and types of nested fields do not count."""
    return _BYTES.search(kind) is not None


def _check_footer(path: Path) -> None:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        length, magic = struct.unpack("<I4s", file.read(8).rjust(8, b"\0"))
    if magic != b"PAR1" or length + 12 > size:
        raise DumpError(f"{path}: this parquet file is incomplete (its end is missing)")


@contextmanager
def _silence() -> Iterator[None]:
    """Hide the messages of a Rust panic, which would appear on the screen."""
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
