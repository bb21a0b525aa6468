"""JSON lines, and one JSON document in a file: an object, or a list whose items are the documents.

A damaged line is skipped and reported. An incomplete last line is read later.

Lists and concatenated documents are read item by item. A single object is read at once. If its end is missing, it is
read up to the last whole item of its outermost unfinished list.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import BufferedIOBase
from pathlib import Path

from ..errors import DumpError
from .base import MARK, MAX_DOCUMENT, Container, FoundDocument, begins_json, cached_by_file, loads

_BLOCK = 1 << 20
_BEGIN = re.compile(r"(?:\xef\xbb\xbf)?\s*\[")
_BRACKETS = re.compile(rb'["{}\[\]]')
_IN_TEXT = re.compile(rb'["\\]')
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[{}\[\],]', re.S)
_CUT = "the file ends within an item: the items before it were read"
_BETWEEN = re.compile(r"\s*(?:,|\]\s*\[?)?\s*")
"""The separator of two items. Another list may follow a list."""


class JsonLines(Container):
    """`.jsonl` of any name."""

    name = "json lines"

    def detect(self, head: bytes) -> bool:
        return begins_json(head)

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        with open(path, "rb") as file:
            file.seek(after)
            yield from lines(file, after, line)


def lines(stream: BufferedIOBase, offset: int, line: int, *, grows: bool = True) -> Iterator[FoundDocument]:
    """Yield the documents of a stream of lines, from byte `offset`, which follows line number `line`.

    An incomplete last line is left for later if the stream `grows`, else it is reported.
    """
    while data := stream.readline(MAX_DOCUMENT + 1):
        ended = data.endswith(b"\n")
        length = len(data) - ended
        while not ended and length > MAX_DOCUMENT and (more := stream.readline(_BLOCK)):
            ended = more.endswith(b"\n")
            length += len(more) - ended
        line += 1
        if not data.isspace():
            try:
                if length > MAX_DOCUMENT:
                    raise ValueError(f"the line has {length >> 20} MiB; up to {MAX_DOCUMENT >> 20} MiB are read")
                document, problem = loads(data), None
            except ValueError as error:
                document, problem = None, str(error)
            complete = ended or length > MAX_DOCUMENT
            if not complete and (grows if problem else not isinstance(document, (dict, list))):
                return
            yield FoundDocument(offset, length, line, offset + length + ended, document, problem)
        offset += length + ended


class JsonFile(Container):
    """`.json` of any name. A file with one document per line is JSON lines instead."""

    name = "json"

    def detect(self, head: bytes) -> bool:
        """Return whether an object or list does not end on its first line, or is the only line of the file."""
        if not begins_json(head):
            return False
        first, _, rest = head.removeprefix(MARK).lstrip().partition(b"\n")
        if not rest.strip():
            # one line so far: a list is a file of items; an object may be the first line of a growing file
            return first[:1] == b"[" and first[1:].lstrip()[:1] == b"{"
        # the first line is not a complete document: a list, pretty-printed JSON, or a damaged line among good ones
        return _parsed(first) is None and (first[:1] == b"[" or not isinstance(_parsed(rest.partition(b"\n")[0]), dict))

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        """Yield the object (offset 0, length 1), or the items of the list with their byte offsets."""
        with path.open("rb") as file:
            is_list = begins_list(file.read(64))
        found = items(partial(_opened, path), after, line)
        if not is_list:
            with suppress(ValueError):  # several documents, or a damaged one
                found = iter(found_whole(*_load(path), length=1)[after:])
        yield from found

    def read(self, path: Path, offset: int, length: int) -> object:
        try:
            if length == 1:
                return _load(path)[0]
            with _opened(path, offset) as file:
                return loads(file.read(length))
        except ValueError as error:
            raise DumpError(f"{path}, byte {offset}: {error}; the file has changed since it was indexed") from None


def _opened(path: Path, offset: int) -> BufferedIOBase:
    file = path.open("rb")
    file.seek(offset)
    return file


def is_long_line(stream: BufferedIOBase) -> bool:
    """Return whether a text is a single line that is too long for JSON lines."""
    length = 0
    while part := stream.readline(_BLOCK):
        length += len(part)
        if part.endswith(b"\n"):
            break
    return length > MAX_DOCUMENT and not stream.read(_BLOCK).strip()


def is_cut(text: bytes) -> bool:
    """Return whether a text is a single line with an object that lacks its end, but has items."""
    with suppress(ValueError):
        return b"\n" not in text and not text.endswith(b"}") and _repaired(text) is not None
    return False


def begins_list(head: bytes) -> bool:
    """Return whether a text begins as a list."""
    return _BEGIN.match(head.decode("latin-1")) is not None


def items(at: Callable[[int], BufferedIOBase], after: int, line: int) -> Iterator[FoundDocument]:
    """Yield the items of a list, or concatenated documents, from byte `after` on. Skip damaged ones.

    `at` opens the text at a byte. The scan for the end of an item uses Latin-1, which has one character per byte. The
    item itself is parsed from its bytes.
    """
    decoder = json.JSONDecoder(parse_int=str)  # an `int` may have too many digits
    stream = at(after)
    base, text = after, stream.read(_BLOCK).decode("latin-1")
    begin = _BEGIN.match(text) if after == 0 else None
    position = begin.end() if begin is not None else 0
    while True:
        position = _BETWEEN.match(text, position).end()  # type: ignore[union-attr] - it also matches the empty text
        problem, end = None, position
        try:
            end = decoder.raw_decode(text, position)[1]
        except RecursionError:
            problem = "it is nested too deeply"
        except json.JSONDecodeError as error:
            problem = f"it is not JSON ({error.msg} at byte {base + error.pos})"
            # a truncated item fails at its end, or at the beginning of an unterminated string
            torn = error.msg.startswith("Unterminated") or error.pos >= len(text) - 16
            if len(text) - position > MAX_DOCUMENT:
                problem = f"the item has more than {MAX_DOCUMENT >> 20} MiB"
            elif torn and (more := stream.read(max(_BLOCK, len(text) - position))):
                base, text, position = base + position, text[position:] + more.decode("latin-1"), 0
                continue
        line += 1
        if problem is not None:
            begins = base + position
            after_value = _end_of_value(at(begins), begins)
            if after_value is None:
                if text[position:].strip():
                    problem += "; the file is not read from here on"
                    yield FoundDocument(begins, 0, line, base + len(text), problem=problem)
                return
            yield FoundDocument(begins, after_value - begins, line, after_value, problem=problem)
            stream = at(after_value)
            base, text, position = after_value, stream.read(_BLOCK).decode("latin-1"), 0
            continue
        try:
            document = loads(text[position:end].encode("latin-1"))
        except ValueError as error:
            yield FoundDocument(base + position, end - position, line, base + end, problem=str(error))
        else:
            yield FoundDocument(base + position, end - position, line, base + end, document)
        position = end


def _end_of_value(stream: BufferedIOBase, offset: int) -> int | None:
    """Match brackets to find the end of an object or list that is too large or damaged; None if there is none. Both
    the object and the stream begin at byte `offset`."""
    depth, inside = 0, False
    while block := stream.read(_BLOCK):
        i = 0
        while (found := (_IN_TEXT if inside else _BRACKETS).search(block, i)) is not None:
            i, mark = found.end(), found[0]
            if mark == b"\\":
                if i == len(block):  # the escaped character is in the next block
                    block += stream.read(1)
                i += 1
            elif mark == b'"':
                inside = not inside
            else:
                depth += 1 if mark in b"{[" else -1
                if depth <= 0:
                    return offset + i if depth == 0 else None
        if depth == 0:
            return None  # it does not begin with a bracket
        offset += len(block)
    return None


@cached_by_file(maxsize=2)
def _load(path: Path) -> tuple[object, str]:
    """Return the document of a file, and a sentence if its end is missing."""
    size = os.stat(path).st_size
    if size > 2 << 30:
        raise DumpError(f"{path}: one JSON document of {size >> 20} MiB cannot be read at once; write JSON lines")
    return loaded_or_repaired(path.read_bytes())


def loaded_or_repaired(data: bytes) -> tuple[object, str]:
    """Return the document of a text, and a sentence if its end is missing. Raises ValueError."""
    try:
        return loads(data), ""
    except ValueError as error:
        with suppress(ValueError):
            return _repaired(data), _CUT
        raise error


def found_whole(document: object, problem: str, *, length: int) -> list[FoundDocument]:
    """Return the one document of a file, and the problem with its end if there is one."""
    cut = [FoundDocument(1, 0, 1, 2, problem=problem)] if problem else []
    return [FoundDocument(0, length, 1, 1, document), *cut]


def _repaired(data: bytes) -> object:
    """Return an object without its unfinished end, see the top of this file. Raises ValueError if nothing is left."""
    brackets: list[int] = []
    commas: list[int] = []
    for token in _TOKENS.finditer(data):
        if token[0] in (b"{", b"["):
            brackets.append(token[0][0])
            commas.append(0)
        elif token[0] in (b"}", b"]"):
            del brackets[-1:], commas[-1:]
        elif token[0] == b"," and commas:
            commas[-1] = token.start()
        if not brackets:
            break  # the object has an end
    depth = next((i for i, comma in enumerate(commas) if comma and brackets[i] == ord("[")), None)
    if depth is None:
        raise ValueError("it has no whole item")
    ends = bytes(
        bracket + 2 for bracket in reversed(brackets[: depth + 1])
    )  # in ASCII, brackets close 2 after they open
    return loads(data[: commas[depth]] + ends)


def _parsed(line: bytes) -> object:
    try:
        return loads(line)
    except ValueError:
        return None
