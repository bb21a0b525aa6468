"""The process behind a dump that is open in the app.

It is started before anything else is loaded, so this loads nearly nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple, Self

from ..runs.paths import DATABASE, RUN_FILE

OPEN = "open"
"""Tells the process behind a dump to open it first."""


class Opened(NamedTuple):
    """A dump that can be read: the folder of its index, what was found, and whether more is to be indexed."""

    folder: Path
    summary: dict[str, object]
    more: bool


class Opening:
    """A dump that a process of its own opens, and then indexes on and follows while this one lives.

    So the first rows are read while this process still loads what shows them. options: `Options.to_json()`.
    """

    def __init__(self, dump: str | Path, options: dict[str, Any]) -> None:
        arguments = [OPEN, str(dump), json.dumps(options), str(os.getpid())]
        self._process = start(arguments, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._answers = self._process.stdout

    def opened(self) -> Opened | str | None:
        """The dump once its first rows are there, or why it cannot be opened: one sentence. None when the process has
        ended without a word."""
        with self._answers:
            line = self._answers.readline()
        if not line.endswith(b"\n"):
            return None
        answer = json.loads(line)
        if isinstance(answer, str):
            return answer
        return Opened(Path(os.fsdecode(bytes(answer["folder"]))), answer["summary"], answer["more"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._answers.close()
        self._process.terminate()
        self._process.wait()


def is_dump(path: Path) -> bool:
    """Whether a path is something that may be a dump: a file, or a folder that is no run of our own."""
    if path.is_file():
        return True
    return path.is_dir() and not (path / RUN_FILE).is_file() and not (path / DATABASE).is_file()


def is_path_of_dump(reference: str, home: Path) -> bool:
    """Return whether a reference is a dump and no run below `home`: a path that exists, standard input, an address."""
    if reference == "-" or "://" in reference:
        return True
    return is_dump(Path(reference).expanduser()) and not (home / reference / RUN_FILE).is_file()


def start(arguments: list[str], stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start the process that indexes a dump; see `__main__`."""
    # -P: the working directory may hold anything, also modules with the names of ours.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __package__ or "", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
    )
