"""A file that is one session: the log lines of a coding agent, or one JSON list of messages or events.

The document is `{"session": [entries]}`. A session grows while the agent works, so each read covers the whole file.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..errors import DumpError
from ..frameworks import as_openai
from .base import MARK, Container, FoundDocument, cached_by_file, loads
from .json_file import items, lines

MAX_BYTES = 256 << 20
_LIST = ("role", "source", "kind", "type", "parts", "task")
_SHOWN = 32


class SessionFile(Container):
    """Logs of Claude Code and Codex, and lists of messages."""

    name = "session"

    def detect(self, head: bytes) -> bool:
        start = head.removeprefix(MARK).lstrip()
        if start[:1] == b"[":
            first = start[1:].lstrip()[:4096]
            return first[:1] == b"{" and any(b'"%s"' % key.encode() in first for key in _LIST) and _is_list(start)
        entries = []
        for line in start.split(b"\n")[:_SHOWN]:
            try:
                entries.append(loads(line))
            except ValueError:
                break
        return is_session(entries)

    def open(self, path: Path, after: int = 0, line: int = 0) -> Iterator[FoundDocument]:
        """Yield a problem for each unreadable line, then the session."""
        size = os.stat(path).st_size
        if after >= size:
            return
        entries, problems = _entries(path)
        for number, problem in problems:
            yield FoundDocument(0, 0, number, 0, problem=problem)
        yield FoundDocument(0, size, 1, size, {"session": list(entries)})

    def read(self, path: Path, offset: int, length: int) -> object:
        return {"session": list(_entries(path)[0])}


def is_session(entries: list[object]) -> bool:
    """Return whether a coding agent's log begins with these entries."""
    known = [e for e in entries if isinstance(e, Mapping)]
    if not known or any("messages" in e or "completion" in e for e in known):
        return False
    codex = known[0].get("type") == "session_meta" or (
        "instructions" in known[0] and "timestamp" in known[0] and "id" in known[0]
    )
    return codex or is_simple(known[0]) or "projectHash" in known[0] or any(map(is_claude, known))


def is_simple(entry: Mapping[str, object]) -> bool:
    """Return whether a session in the Session Trace Simple Format begins with this entry."""
    return entry.get("type") == "session" and "harness" in entry


def is_claude(entry: Mapping[str, object]) -> bool:
    """Return whether an entry belongs to a Claude Code session or to the stream that Claude Code prints."""
    stream = entry.get("type") == "system" and "session_id" in entry
    return stream or ("type" in entry and ("sessionId" in entry or "leafUuid" in entry))


def _is_list(start: bytes) -> bool:
    """Return whether the first item of a list is a message or event of a conversation."""
    text = start[1:].lstrip().decode("latin-1")  # one character per byte, so a truncated UTF-8 character is no error
    try:
        return is_entry(json.JSONDecoder().raw_decode(text)[0])
    except RecursionError:
        return False
    except ValueError:  # the item exceeds the head: OpenHands begins with a long system prompt
        keys = text[:512]
        return '"source"' in keys and '"action"' in keys and '"messages"' not in keys


def is_entry(item: object) -> bool:
    """Return whether an item of a list is a message or an OpenHands event."""
    if not isinstance(item, Mapping):
        return False
    if any(isinstance(m.get("role"), str) and m.keys() & {"content", "tool_calls"} for m in as_openai([item])):
        return True
    event = isinstance(item.get("source"), str) and ("action" in item or "observation" in item or "kind" in item)
    return event or (item.get("from") in ("human", "gpt", "system") and "value" in item)


@cached_by_file(maxsize=4)
def _entries(path: Path) -> tuple[tuple[object, ...], tuple[tuple[int, str], ...]]:
    size = os.stat(path).st_size
    if size > MAX_BYTES:
        raise DumpError(f"{path}: a session of {size >> 20} MiB; up to {MAX_BYTES >> 20} MiB are read")
    data = path.read_bytes()
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"[":
        read = list(items(lambda at: io.BytesIO(data[at:]), 0, 0))
    else:
        read = list(lines(io.BytesIO(data), 0, 0))  # without a last line that is still being written
    problems = tuple((each.line, each.problem) for each in read if each.problem is not None)
    return tuple(each.document for each in read if each.problem is None), problems
