"""Scalars by step from TensorBoard event files and the file of an offline wandb run.

Both frame protocol buffers with checksums. This module reads only the few fields that hold scalars, so it needs neither
TensorBoard nor wandb. It skips anything else, such as pictures.
"""

from __future__ import annotations

import struct
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .base import Container, FoundDocument, loads

_LARGEST = 1 << 20
"""Maximum bytes of a record with scalars. A larger one holds something else."""
_POLYNOMIAL = 0x82F63B78
_TABLE: list[int] = []


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli) checksum, masked as TFRecord stores it."""
    if not _TABLE:
        for byte in range(256):
            for _ in range(8):
                byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
            _TABLE.append(byte)
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and value of each field of a protocol buffer: an int for a varint, bytes for anything else.

    Raises ValueError for a damaged buffer.
    """
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        if key & 7 == 0:
            value, offset = _varint(data, offset)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 2:
            size, offset = _varint(data, offset)
        if size is None or offset + size > len(data):
            raise ValueError("the record is not a protocol buffer")
        yield key >> 3, data[offset : offset + size]
        offset += size


def _varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while offset < len(data) and shift < 70:
        value |= (data[offset] & 0x7F) << shift
        shift += 7
        offset += 1
        if data[offset - 1] < 0x80:
            return value, offset
    raise ValueError("the record is not a protocol buffer")


class _ScalarLog(Container):
    kind: str

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        """Yield `{kind: {name: value}, "step": step}`, merging neighbouring records of one step."""
        step, values, begin = None, dict[str, float](), after
        offset = after
        with open(path, "rb") as file:
            for start, offset, record in self._records(file, after):
                line += 1
                try:
                    if record is None:
                        raise ValueError("its checksum is wrong")
                    new, more = self._scalars(record)
                except (ValueError, TypeError, AttributeError, struct.error) as error:
                    yield FoundDocument(
                        start, offset - start, line, offset, problem=f"record {line} is damaged ({error})"
                    )
                    continue
                if not more:
                    continue
                if values and new != step:
                    yield FoundDocument(begin, start - begin, line - 1, start, {self.kind: values, "step": step})
                    values = {}
                if not values:
                    begin = start
                step, values = new, {**values, **more}
        if values:
            yield FoundDocument(begin, offset - begin, line, offset, {self.kind: values, "step": step})

    @abstractmethod
    def _records(self, file: BinaryIO, offset: int) -> Iterator[tuple[int, int, bytes | None]]:
        """Yield begin, end and content of each complete record; content is None for a damaged one."""

    @abstractmethod
    def _scalars(self, record: bytes) -> tuple[int | None, dict[str, float]]:
        """Return step and scalars of a record. Raises ValueError."""


class TensorBoard(_ScalarLog):
    """`events.out.tfevents.…` of any name."""

    name = "TensorBoard events"
    kind = "tensorboard"

    def detect(self, head: bytes) -> bool:
        return len(head) > 12 and crc32c(head[:8]) == int.from_bytes(head[8:12], "little")

    def _records(self, file: BinaryIO, offset: int) -> Iterator[tuple[int, int, bytes | None]]:
        file.seek(offset)
        while len(head := file.read(12)) == 12:
            size, checksum = struct.unpack("<QI", head)
            if crc32c(head[:8]) != checksum:
                yield offset, offset + 12, None  # no record after it can be found
                return
            end = offset + 16 + size
            if size > _LARGEST:
                file.seek(end)
                yield offset, end, b""
            else:
                data = file.read(size + 4)
                if len(data) < size + 4:  # it is still being written
                    return
                intact = crc32c(data[:-4]) == int.from_bytes(data[-4:], "little")
                yield offset, end, data[:-4] if intact else None
            offset = end

    def _scalars(self, record: bytes) -> tuple[int | None, dict[str, float]]:
        step, found = 0, dict[str, float]()
        for number, value in fields(record):
            if number == 2:
                step = value
            elif number == 5:
                for inner, summary in fields(value):
                    if inner == 1:
                        found.update(_summary(summary))
        return step if step < 1 << 62 else None, found


def _summary(data: bytes) -> dict[str, float]:
    """Return name and value of a scalar summary (`simple_value`, or a tensor of one number)."""
    name, scalar = "", None
    for number, value in fields(data):
        if number == 1:
            name = value.decode("utf-8", "replace")
        elif number == 2:
            (scalar,) = struct.unpack("<f", value)
        elif number == 8:
            tensor = dict(fields(value))
            layout = {1: ("<f", 5), 2: ("<d", 6)}.get(tensor.get(1, 0))
            if layout is not None:
                stored = tensor.get(layout[1], tensor.get(4, b""))
                scalar = struct.unpack(*layout[:1], stored)[0] if len(stored) == struct.calcsize(layout[0]) else None
    return {} if scalar is None else {name: scalar}


class WandbLog(_ScalarLog):
    """`run-….wandb` of an offline run: blocks of 32 KiB as in the LevelDB log format."""

    name = "wandb log"
    kind = "wandb"
    _BLOCK = 1 << 15

    def detect(self, head: bytes) -> bool:
        return head[:4] == b":W&B"

    def _records(self, file: BinaryIO, offset: int) -> Iterator[tuple[int, int, bytes | None]]:
        offset = max(offset, 7)
        begin, parts, intact = offset, b"", True
        while True:
            if self._BLOCK - offset % self._BLOCK < 7:
                offset += self._BLOCK - offset % self._BLOCK
            file.seek(offset)
            head = file.read(7)
            checksum, size, kind = struct.unpack("<IHB", head) if len(head) == 7 else (0, 0, 0)
            data = file.read(size)
            if not kind or len(data) < size:  # the rest is still being written
                return
            if kind in (1, 2):  # a whole record, or its first part
                begin, parts, intact = offset, b"", True
            offset += 7 + size
            parts += data
            intact = intact and zlib.crc32(data, zlib.crc32(bytes([kind]))) == checksum
            if kind in (1, 4):
                yield begin, offset, parts if intact else None

    def _scalars(self, record: bytes) -> tuple[int | None, dict[str, float]]:
        step, found = None, dict[str, float]()
        for number, history in fields(record):
            if number != 2:
                continue
            for inner, value in fields(history):
                if inner == 2:
                    step = dict(fields(value)).get(1, 0)
                elif inner == 1:
                    found.update(_item(value))
        return step, found


def _item(data: bytes) -> dict[str, float]:
    """Return name and value of an item of the wandb history, if the value is a number."""
    names, scalar = list[str](), None
    for number, value in fields(data):
        if number in (1, 2):
            names.append(value.decode("utf-8", "replace"))
        elif number == 5:
            scalar = value >> 1 ^ -(value & 1)
        elif number == 6:
            (scalar,) = struct.unpack("<d", value)
        elif number in (8, 16) and len(value) < 64:
            scalar = loads(value)
    if isinstance(scalar, bool) or not isinstance(scalar, (int, float)):
        return {}
    return {".".join(names): float(scalar)}
