"""Rows of a CSV or TSV file whose first row names the columns. A row may extend over several lines."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from ..errors import DumpError
from .base import HEAD, MAX_DOCUMENT, Container, FoundDocument

csv.field_size_limit(MAX_DOCUMENT)
_NAME = re.compile(r"[\w ./:()\[\]?%#&+,'*-]{0,80}")
"""A column name. pandas leaves the name of its index empty."""
_START = re.compile(rb"(?:\xef\xbb\xbf)?(?:\r?\n)*(?:sep=([^\r\n])\r?\n)?")
"""The beginning of a file: a byte order mark, empty lines, and the delimiter as Excel names it."""
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
    """`.csv` and `.tsv` of any name. The first row decides whether commas, tabs, semicolons or pipes end columns."""

    name = "csv"

    def detect(self, head: bytes) -> bool:
        if b"\0" in head[:1024]:
            return False
        try:
            names, begin, _ = _header(head)
        except csv.Error:  # a carriage return within the line
            return False
        return (
            bool(head[begin:].strip())
            and len(names) > 1
            and any((names[0], names[-1]))  # else it is a table in Markdown
            and not _LOGGED.match(names[0])
            and all(map(_NAME.fullmatch, names))
            and any(map(_COLUMNS.search, names))
        )

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        with open(path, "rb") as file:
            header, begin, delimiter = _header(file.read(HEAD))
            offset = file.seek(max(after, begin))
            try:
                for values, length in _rows(file, delimiter):
                    line += 1
                    if delimiter != ",":
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


def _rows(lines: Iterable[bytes], delimiter: str) -> Iterator[tuple[list[str], int]]:
    """Yield the values and the number of bytes of each row."""
    taken = 0

    def texts() -> Iterator[str]:
        nonlocal taken
        for data in lines:
            taken += len(data)
            yield _text(data)

    for values in csv.reader(texts(), delimiter=delimiter):
        yield values, taken
        taken = 0


def _header(head: bytes) -> tuple[tuple[str, ...], int, str]:
    """Return the names of the columns, the offset of the next row, and the delimiter: the one that gives most columns,
    unless the file names it. Raises csv.Error."""
    start, best = _START.match(head), ((), 0, ",")
    offset, named = (0, None) if start is None else (start.end(), start[1])
    for delimiter in (named.decode("latin-1"),) if named else ",\t;|":
        names, length = next(_rows(io.BytesIO(head[offset:]), delimiter), ([], 0))
        if len(names) > len(best[0]):
            best = tuple(" ".join(name.split()) for name in names), offset + length, delimiter
    return best
