"""The arithmetic of updates: the inputs of the loss of each micro-batch, and the resulting loss.

A training that is recorded by a hook writes files `updates/PROCESS-1.bin`, `-2.bin`, … in the run's folder, one per
start. A file is a series of blocks. A block is the length of a zstd frame (4 bytes, little-endian) and the frame. The
frame holds a line of JSON and then the arrays that the line names, in the same order.
"""

from __future__ import annotations

import json
import re
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, cast

from .codec import compress, decompress, encode_json

FOLDER = "updates"
_NAME = re.compile(r"(.+)-(\d+)\.bin")
_LENGTH = struct.Struct("<I")

Kind = Literal["settings", "generation", "loss", "log"]


@dataclass(frozen=True)
class Block:
    """One block of a file.

    kind: `settings` (the trainer's declared settings, first in a file), `generation` (rollouts that were sampled and
    scored together), `loss` (a micro-batch), or `log` (the numbers that the trainer logs). step: the optimiser step.
    data: plain JSON. arrays: float32, by name.
    """

    kind: Kind
    step: int
    data: Mapping[str, Any]
    arrays: Mapping[str, Sequence[float]] = field(default_factory=dict)
    process: str = ""


class UpdateLog:
    """Writes the blocks of one process. Raises OSError."""

    def __init__(self, run_dir: Path, process: str) -> None:
        folder = run_dir / FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        earlier = [int(m[2]) for path in folder.iterdir() if (m := _NAME.fullmatch(path.name)) and m[1] == process]
        self.path = folder / f"{process}-{max(earlier, default=0) + 1}.bin"
        self._file: IO[bytes] | None = None

    def write(self, block: Block) -> None:
        """Append a block, visible to readers at once."""
        sizes = {name: len(values) for name, values in block.arrays.items()}
        line = {"kind": block.kind, "step": block.step, "data": block.data, "arrays": sizes}
        parts = [encode_json(line, finite=False), b"\n"]
        for values in block.arrays.values():
            arrays = values if hasattr(values, "tobytes") else array("f", values)  # NumPy arrays have it
            parts.append(cast(Any, arrays).tobytes())
        frame = compress(b"".join(parts))
        if self._file is None:
            self._file = self.path.open("ab")
        self._file.write(_LENGTH.pack(len(frame)) + frame)
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_updates(run_dir: Path) -> Iterator[Block]:
    """Yield the blocks of all processes, process by process, in writing order.

    Blocks of steps that a later start of the training repeated are left out. A truncated file ends early.
    """
    files: dict[str, list[tuple[int, Path]]] = {}
    for path in (run_dir / FOLDER).glob("*.bin"):
        if found := _NAME.fullmatch(path.name):
            files.setdefault(found[1], []).append((int(found[2]), path))
    for process, starts in sorted(files.items()):
        ordered = [path for _, path in sorted(starts)]
        begins = [next((block.step for block in _blocks(path, process)), 0) for path in ordered]
        for i, path in enumerate(ordered):
            end = min(begins[i + 1 :], default=None)
            yield from (b for b in _blocks(path, process) if end is None or b.step < end or b.kind == "settings")


def _blocks(path: Path, process: str) -> Iterator[Block]:
    with path.open("rb") as file:
        while len(head := file.read(_LENGTH.size)) == _LENGTH.size:
            frame = file.read(_LENGTH.unpack(head)[0])
            try:
                line, payload = decompress(frame).split(b"\n", 1)
            except ValueError:
                return
            header = json.loads(line)
            arrays, offset = {}, 0
            for name, size in header["arrays"].items():
                arrays[name] = array("f", payload[offset : offset + 4 * size])
                offset += 4 * size
            yield Block(header["kind"], header["step"], header["data"], arrays, process)
