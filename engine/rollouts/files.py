"""Read the rows of a CSV, JSON or Parquet file, with their values as they are written.

`datasets` would turn text that looks like a date into one, 42 next to 2.5 into 42.0, 007 into 7 and NA into nothing,
and treats brackets in a path as a pattern.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet

from ...envs.user_code import one_line
from .runner import DataError

_NUMBER = re.compile(r"\s*[+-]?(?:(?:0|[1-9]\d{0,299})(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\s*", re.ASCII)


def rows_of_file(source: str, path: Path) -> list[dict[str, object]]:
    """Read a file by its ending. Each row has all columns. Raises DataError."""
    if path.suffix == ".csv":
        return _csv_rows(source, path)
    if path.suffix == ".parquet":
        try:
            return parquet.ParquetFile(path).read().to_pylist()
        except Exception as problem:  # pyarrow raises various errors
            raise DataError(f"{source} cannot be read: {one_line(problem)[:200]}") from problem
    rows = [row for _, row in json_rows(source, path)]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    return [{column: row.get(column) for column in columns} for row in rows]


def _csv_rows(source: str, path: Path) -> list[dict[str, object]]:
    csv.field_size_limit(2**31 - 1)  # prompts may exceed the default of 131,072 characters
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            header, *lines = [cells for cells in csv.reader(file) if cells] or [[]]
    except UnicodeDecodeError as problem:
        raise DataError(f"{source} is not UTF-8 text") from problem
    for number, cells in enumerate(lines, 1):
        if len(cells) != len(header):
            raise DataError(f"{source}, row {number}: {len(cells)} cells, but the header has {len(header)}")
    columns: dict[str, list[object]] = {}
    for i, name in enumerate(header):
        again = f".{header[:i].count(name)}" if name in header[:i] else ""
        columns[(name or f"Unnamed: {i}") + again] = _values([cells[i] for cells in lines])
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(cells: Sequence[str]) -> list[object]:
    """Parse a CSV column as numbers or booleans if all cells are, else keep them as text. An empty cell becomes
    None."""
    written = [cell for cell in cells if cell]
    if all(_NUMBER.fullmatch(cell) and isfinite(float(cell)) for cell in written):
        return [None if not cell else float(cell) if set(cell) & set(".eE") else int(cell) for cell in cells]
    if all(cell.lower() in ("true", "false") for cell in written):
        return [cell.lower() == "true" if cell else None for cell in cells]
    return [cell or None for cell in cells]


def json_rows(source: str, path: Path) -> list[tuple[int, dict[str, object]]]:
    """Return the objects of a JSON file, a list or one per line, with their numbers. Raises DataError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as problem:
        raise DataError(f"{source} is not UTF-8 text") from problem
    try:
        found = _parsed(text)
        rows = list(enumerate(found if isinstance(found, list) else [found], 1))
    except ValueError as problem:
        if text.strip() and path.suffix == ".json" and getattr(problem, "msg", "") != "Extra data":
            raise DataError(f"{source} is not JSON: {problem}") from problem
        rows = list(_json_lines(source, text))
    for number, row in rows:
        if not isinstance(row, dict):
            raise DataError(f"{source}, row {number}: a row must be a JSON object, not {kind_of(row)}")
    return rows


def _json_lines(source: str, text: str) -> Iterable[tuple[int, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, _parsed(line)
            except ValueError as problem:
                raise DataError(f"{source}, row {number}: not JSON ({problem})") from problem


def _parsed(text: str) -> Any:
    """Parse JSON. Raises ValueError, also for a duplicate key and for text that cannot be UTF-8."""
    found = json.loads(text, object_pairs_hook=_unique_keys)
    if "\\u" in text:  # JSON allows halves of a surrogate pair
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return an object with unique keys. Raises ValueError."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(n for n in names if names.count(n) > 1)} occurs twice")
    return mapping


def kind_of(value: object) -> str:
    """Name the type of a value in a message."""
    return "nothing" if value is None else f"a {type(value).__name__}"
