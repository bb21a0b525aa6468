"""Reads wandb's offline file: records in LevelDB's log format, each a protobuf message."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

Record: Any = vars(wandb_internal_pb2)["Record"]

BLOCK = 32768
HEADER = 7
FULL, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """All records, with their checksums verified."""
    data = path.read_bytes()
    assert data[:4] == b":W&B"
    position, message = HEADER, b""
    while position < len(data):
        left = BLOCK - position % BLOCK
        if left < HEADER:  # a block ends with zeros too few for a header
            position += left
            continue
        checksum, length, kind = struct.unpack("<IHB", data[position : position + HEADER])
        body = data[position + HEADER : position + HEADER + length]
        assert zlib.crc32(body, zlib.crc32(bytes([kind]))) == checksum
        position += HEADER + length
        message += body
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(message)
            message = b""
            yield record


def history(path: Path) -> dict[int, dict[str, Any]]:
    """What was logged at each step; a nested dictionary by its dotted name."""
    steps: dict[int, dict[str, Any]] = {}
    for record in records(path):
        if record.WhichOneof("record_type") == "history":
            row = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            steps.setdefault(int(row["_step"]), {}).update(row)
    return steps
