"""Containers of documents, one per module. The first bytes of a file select the container, never its name."""

from __future__ import annotations

from pathlib import Path

from ..errors import DumpError
from . import csv_rows, json_file, packed_lines, parquet, scalar_logs, session, sqlite, zip_file
from .base import HEAD, MAX_DOCUMENT, Container

CONTAINERS: tuple[Container, ...] = (
    parquet.Parquet(),
    sqlite.Sqlite(),
    scalar_logs.WandbLog(),
    scalar_logs.TensorBoard(),
    zip_file.ZipFile(),
    packed_lines.ZstdLines(),
    packed_lines.GzipLines(),
    session.SessionFile(),
    json_file.JsonFile(),
    json_file.JsonLines(),
    csv_rows.CsvRows(),
)
BY_NAME = {container.name: container for container in CONTAINERS}

_PICKLES = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_OTHER_PACKED = {b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x04\x22\x4d\x18": "lz4"}
_OF_CHECKPOINT = ("trainer_state.json", "tokenizer_config.json", "adapter_config.json")
"""Files next to the pickles of a checkpoint. Those pickles are not rollouts."""
_TORCH = "a pickle (torch.save or Python's own): opening it would run code, so grpo-tui never does; write JSON lines"


_FOREIGN = {
    b"ARROW1\0\0": "an Arrow file; write parquet (`dataset.to_parquet`) or JSON lines (`dataset.to_json`)",
    b"\xff\xff\xff\xff": "an Arrow stream; write parquet (`dataset.to_parquet`) or JSON lines (`dataset.to_json`)",
    b"\x89HDF\r\n": "an HDF5 file; write JSON lines or parquet",
    b"\x93NUMPY": "a NumPy array; write JSON lines or parquet",
    b"\x1f\x8b": "not JSON inside gzip; unpack it",
    b"SQLite format 3\0": "a SQLite database without trackio's tables; write the rows as JSON lines or CSV",
    b"PK\x03\x04": "a zip without JSON (of a workbook, save the sheet as CSV)",
}


def kind_of(path: Path) -> str:
    """Describe a file without readable documents by its first bytes, with a format to use instead. Return an empty
    string for other files."""
    with open(path, "rb") as file:
        head = file.read(16)
    if not head:
        return "empty"
    return next((kind for magic, kind in _FOREIGN.items() if head.startswith(magic)), "")


def container_of(path: Path) -> Container | None:
    """Return the container of a file, or None if it holds no documents. Raises DumpError for files that may hold some
    but are never read: pickles outside checkpoints, UTF-16 text, other compressions."""
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if head[:2] in _PICKLES or (head[:4] == b"PK\x03\x04" and zip_file.holds_pickle(path)):
        if any((path.parent / name).exists() for name in _OF_CHECKPOINT):
            return None
        raise DumpError(f"{path}: {_TORCH}")
    if packed := next((name for magic, name in _OTHER_PACKED.items() if head.startswith(magic)), None):
        raise DumpError(f"{path}: it is compressed with {packed}; unpack it, or use gzip or zstd")
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DumpError(f"{path}: it is text in UTF-16; write it as UTF-8")
    found = next((c for c in CONTAINERS if c.detect(head)), None)
    if isinstance(found, json_file.JsonLines) and b"\n" not in head:
        with open(path, "rb") as file:
            if json_file.is_long_line(file):
                return BY_NAME["json"]
            file.seek(0)
            return BY_NAME["json"] if json_file.is_cut(file.readline(MAX_DOCUMENT + 1)) else found
    return found
