"""Rows of a parquet file, a batch at a time: of a file of any size only one batch is in memory.

The reader is arro3 (Arrow's Rust implementation, 35 MiB installed, no dependencies); where pyarrow is already there,
as beside any trainer of Hugging Face, that serves as well (170 MiB is why it is not asked for).

arro3 0.9 cannot leave out columns or row groups at reading. What they cost is small: 600 MB of pictures are passed over
in 1.6 s of processor time; but the largest page of the file is in memory, which for pictures can be hundreds of MB.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from ..errors import DumpError
from .base import Container, Found

INSTALL = "reading parquet needs one more package: pip install 'grpo-tui[parquet]'"
BATCH = 64
"""Rows in memory at once: a picture in each can be a megabyte. Smaller ones cost time, larger ones memory."""
_OTHER = re.compile(r"decimal|timestamp|date|duration|time|map", re.I)
"""Types whose values JSON does not have."""
COPIES = {"trajectory_json": ("messages",)}
"""Columns that hold again, arrow's way, what another column holds whole (ART's): they are not made into Python's
values, which is what costs the time, in a batch in which every row has that other one."""

Row = Mapping[str, Any]


@dataclass
class _Reading:
    """A file in the middle of its batches: `rows` are those from row `at` on."""

    key: tuple[Path, int, int]
    batches: Iterator[Sequence[Any]]
    at: int = 0
    rows: list[Row] = field(default_factory=list)


class Parquet(Container):
    """`.parquet` of any name."""

    name = "parquet"

    def __init__(self) -> None:
        self._kept: _Reading | None = None

    def detect(self, head: bytes) -> bool:
        return head[:4] == b"PAR1"

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[Found]:
        """Yield the rows, whose places are their numbers."""
        at = 0
        for batch in _batches(path):
            size = _size(batch)
            if at + size > after:
                for i, row in enumerate(_rows(path, batch), at):
                    if i >= after:
                        yield Found(i, 1, i + 1, i + 1, row)
            at += size

    def read(self, path: Path, offset: int, length: int) -> Any:
        """A row by its number. The batch that was read last is kept, and where it stands: what is near costs little."""
        stat = path.stat()
        key = (path, stat.st_size, stat.st_mtime_ns)
        kept, self._kept = self._kept, None
        if kept is None or kept.key != key or offset < kept.at:
            kept = _Reading(key, _batches(path))
        while offset >= kept.at + len(kept.rows):
            at = kept.at + len(kept.rows)
            batch = next(kept.batches, None)
            while batch is not None and offset >= at + _size(batch):  # passed over without a value being made
                at += _size(batch)
                batch = next(kept.batches, None)
            if batch is None:
                raise DumpError(f"{path} has changed since it was indexed: it has no row {offset + 1} any more")
            kept.at, kept.rows = at, list(_rows(path, batch))
        self._kept = kept
        return kept.rows[offset - kept.at]


def _batches(path: Path) -> Iterator[Any]:
    """The batches of a file, as the reader that is installed has them."""
    _check_footer(path)
    try:
        from arro3.io import read_parquet
    except ModuleNotFoundError:
        yield from _by_pyarrow(path)
        return
    try:
        with _quiet():
            reader = read_parquet(str(path), batch_size=BATCH)
        while True:
            with _quiet():
                batch = next(reader, None)
            if batch is None:
                return
            yield batch
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # for a damaged file arro3 lets Rust panic, which is no Exception
        raise _unreadable(path, error) from None


def _by_pyarrow(path: Path) -> Iterator[Any]:
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
    said = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return DumpError(f"{path}: this parquet file cannot be read ({said})")


def _size(batch: Any) -> int:
    return int(batch.num_rows)


def _rows(path: Path, batch: Any) -> Iterator[Row]:
    """The rows of a batch as plain values. Copies of other columns, and bytes (images), are left out as null."""
    names = [str(name) for name in batch.schema.names]
    try:
        with _quiet():
            whole = {n for n in COPIES if n in names and batch.column(names.index(n)).null_count == 0}
            left_out = {copy for name in whole for copy in COPIES[name]}
            columns = [
                [None] * _size(batch) if name in left_out or _is_bytes(kind) else _values(batch.column(i), kind)
                for i, (name, kind) in enumerate(zip(names, _types(batch), strict=True))
            ]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # as above
        raise _unreadable(path, error) from None
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _values(column: Any, kind: str) -> list[Any]:
    """The values of a column as JSON has them: exact numbers as floats, times as texts, maps as objects."""
    values = column.to_pylist()
    plain = _OTHER.search(kind) is None
    return values if plain else [_as_json(v, kind.lower().startswith("map")) for v in values]


def _as_json(value: Any, is_map: bool = False) -> Any:
    match value:
        case Decimal():
            return float(value)
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


def _types(batch: Any) -> list[str]:
    return [str(batch.schema.field(i).type) for i in range(len(batch.schema.names))]


def _is_bytes(kind: str) -> bool:
    return "binary" in kind.lower()


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
