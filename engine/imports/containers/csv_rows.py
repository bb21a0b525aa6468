"""Rows of a CSV or TSV file whose first row names the columns. A row may extend over several lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from ..errors import DumpError
from .base import MARK, MAX_DOCUMENT, Container, FoundDocument, cached_by_file

csv.field_size_limit(MAX_DOCUMENT)
_NAME = re.compile(r"[\w ./:()\[\]-]{0,80}")
"""A column name. pandas leaves the name of its index empty."""
_COLUMNS = re.compile(
    r"(?i)\b(prompts?|completions?|responses?|outputs?|generations?|messages|conversations?|questions?|instructions?"
    r"|input|query|chosen|rejected|rewards?|scores?|answers?|generated_text|prediction|_?step|global_step)\b"
)
"""Column names of a table of rollouts or metrics. Other text with commas does not count as a table."""
_DECIMAL = re.compile(r"-?\d+,\d+")
"""A number with a decimal comma, as spreadsheets write it in files whose columns end with semicolons."""
_NUMBERS = re.compile(r"(?i)reward|score|advantage|loss|kl|success|rate")
"""Names of numeric columns. In any other column a text such as `3,14` stays unchanged."""
_LOGGED = re.compile(r"\W?\d{4}-\d\d-\d\d[ T]\d\d:")
"""The timestamp at the beginning of a log line."""


class CsvRow(dict[str, str | None]):
    """A row of texts, with null for an empty cell. Formats parse numbers where a column can hold nothing else."""


class CsvRows(Container):
    """`.csv` and `.tsv` of any name. The first row decides whether commas, tabs or semicolons end the columns."""

    name = "csv"

    def detect(self, head: bytes) -> bool:
        if b"\0" in head[:1024]:
            return False
        first, newline, rest = head.removeprefix(MARK).partition(b"\n")
        try:
            names = _split(_text(first))
        except csv.Error:  # a carriage return within the line
            return False
        return (
            bool(newline and rest.strip())
            and len(names) > 1
            and not _LOGGED.match(names[0])
            and all(map(_NAME.fullmatch, names))
            and any(map(_COLUMNS.search, names))
        )

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        header, begin, delimiter = _header(path)
        offset = max(after, begin)
        with open(path, "rb") as file:
            file.seek(offset)
            taken = 0

            def lines() -> Iterator[str]:
                nonlocal taken
                for data in file:
                    taken += len(data)
                    yield _text(data)

            try:
                for values in csv.reader(lines(), delimiter=delimiter):
                    length, taken = taken, 0
                    line += 1
                    if delimiter == ";":
                        values = [
                            v.replace(",", ".") if _NUMBERS.search(name) and _DECIMAL.fullmatch(v) else v
                            for name, v in zip_longest(header, values, fillvalue="")
                        ][: len(values)]
                    if len(values) == len(header):
                        row = CsvRow((name, value or None) for name, value in zip(header, values, strict=True) if name)
                        yield FoundDocument(offset, length, line + 1, offset + length, row)
                    elif values:
                        problem = f"the row has {len(values)} columns, the first row {len(header)}"
                        yield FoundDocument(offset, length, line + 1, offset + length, problem=problem)
                    offset += length
            except csv.Error as error:
                raise DumpError(f"{path}, row {line + 2}: {error}") from None


def _text(data: bytes) -> str:
    """Decode a line of UTF-8, or of the Western Windows code page that some spreadsheets write."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        damaged = not data.decode(errors="ignore").isascii()  # it also has valid UTF-8 characters
        return data.decode("utf-8" if damaged else "cp1252", "replace")


def _delimiter(line: str) -> str:
    return "\t" if "\t" in line else ";" if line.count(";") > line.count(",") else ","


def _split(line: str) -> list[str]:
    return [name.strip() for name in next(csv.reader([line.rstrip("\r\n")], delimiter=_delimiter(line)), [])]


@cached_by_file(maxsize=16)
def _header(path: Path) -> tuple[tuple[str, ...], int, str]:
    with open(path, "rb") as file:
        first = file.readline()
    line = _text(first.removeprefix(MARK))
    return tuple(_split(line)), len(first), _delimiter(line)
