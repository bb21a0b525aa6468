"""Detect the kind of a text from its content and source. The kind selects the renderer.

A kind is `raw`, `plain`, `markdown`, `ansi` (a log with SGR colours), `json`, or the name of a Pygments lexer
(`python`, `diff`, `pytb`, `bash`). Except for JSON, only the beginning and the end of a text are read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PureWindowsPath

from ..text import literal

LARGE = 400_000
"""Texts with more characters are shown raw without detection."""
CHUNK = 2_400
"""Approximate number of characters laid out together. Longer lines are cut there."""
_LOOK = 4_000
SGR = re.compile(r"(\x1b\[[0-9;:]*m)")
_MARKDOWN = re.compile(
    r"^(?:#{1,6} \S|\s{0,3}(?:[-*+]|\d{1,3}[.)]) \S|> |\s*(?:```|~~~)|\|.*\|\s*$)|\*\*\S[^*\n]*\*\*|`[^`\n]+`", re.M
)
_STRONG = re.compile(r"^\s*(?:```|~~~)|^\|[ :|-]*-[ :|-]*\|\s*$", re.M)
"""Signs of Markdown that logs and source code never have."""
_DIFF = re.compile(r"^(?:diff --git |--- \S.*\n\+\+\+ \S.*\n@@ |@@ -\d+)", re.M)
_PATCH = re.compile(r"^\*\*\* (?:Begin Patch|Update File|Add File)", re.M)
_TRACE = re.compile(r"^Traceback \(most recent call last\):", re.M)
_FENCE = re.compile(r"\s{0,3}(```+|~~~+)(.*)")
LEXERS = {
    "py": "python", "pyi": "python", "js": "javascript", "mjs": "javascript", "jsx": "jsx", "ts": "typescript",
    "tsx": "tsx", "c": "c", "h": "c", "cc": "cpp", "cpp": "cpp", "hpp": "cpp", "rs": "rust", "go": "go",
    "java": "java", "kt": "kotlin", "rb": "ruby", "php": "php", "cs": "csharp", "swift": "swift", "scala": "scala",
    "sh": "bash", "bash": "bash", "zsh": "bash", "sql": "sql", "html": "html", "xml": "xml", "css": "css",
    "yaml": "yaml", "yml": "yaml", "toml": "toml", "ini": "ini", "cfg": "ini", "json": "json", "ipynb": "json",
    "md": "markdown", "rst": "rst", "tex": "latex", "lua": "lua", "r": "r", "jl": "julia", "hs": "haskell",
    "diff": "diff", "patch": "diff", "dockerfile": "docker", "makefile": "make", "cmake": "cmake", "lean": "lean",
}  # fmt: skip
"""Pygments lexers by extension or name of files that agents write. A look-up in Pygments would load all lexers."""


def by_path(path: str) -> str:
    """Return the kind of a file's text from its path, or an empty string."""
    name = PureWindowsPath(path).name.lower()  # accepts / and \
    return LEXERS.get(name.rsplit(".", 1)[-1], "")


def kind_of(text: str, prose: bool = False) -> str:
    """Return the kind of a text. With `prose`, a person or the agent wrote it, so weak signs count."""
    if len(text) > LARGE:
        return "raw"
    head = text[:_LOOK]
    if SGR.search(head) or (len(text) > _LOOK and SGR.search(text[-_LOOK:])):
        return "ansi"
    if (prose and _MARKDOWN.search(head)) or _STRONG.search(head):
        return "markdown"
    if _DIFF.search(head) or _PATCH.search(head):
        return "diff"
    if head.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):
            json.loads(text)
            return "json"
    return "pytb" if _TRACE.search(head) or _TRACE.search(text[-_LOOK:]) else "plain"


def prepared(text: str, kind: str) -> str:
    """Prepare a text for layout: indent JSON, and make everything literal except the SGR codes of a log."""
    text = text.replace("\r\n", "\n").strip("\n")
    if kind == "json":
        with suppress(ValueError, RecursionError):
            text = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "\n".join(_literal(line.expandtabs(4), kind == "ansi") for line in text.split("\n"))


def _literal(line: str, ansi: bool) -> str:
    parts = SGR.split(line) if ansi else [line]  # texts, with codes between them
    return "".join(part if index % 2 else literal(part) for index, part in enumerate(parts))


def chunks(text: str, kind: str) -> Iterator[tuple[int, str]]:
    """Split a text for layout: Markdown between paragraphs, others between lines, lines over `CHUNK` anywhere. Yields
    the first character and the text of each part."""
    if len(text) <= CHUNK * 3 // 2:
        yield 0, text
        return
    gathered: list[str] = []
    begin = position = size = 0
    fence = ""
    for full_line in text.split("\n"):
        for line in (full_line[start : start + CHUNK] for start in range(0, max(1, len(full_line)), CHUNK)):
            between = kind != "markdown" or not line.strip() or size > 2 * CHUNK
            if size >= CHUNK and between and not (fence and size <= 2 * CHUNK):
                yield begin, "\n".join([*gathered, *([fence[:3]] if fence else [])])
                gathered, size, begin = [fence] if fence else [], 0, position
            if kind == "markdown" and (mark := _FENCE.match(line)):
                fence = "" if fence else mark[1][:3] + mark[2]
            gathered.append(line)
            size += len(line) + 1
            position += len(line)
        position += 1
    if gathered:
        yield begin, "\n".join(gathered)
