"""The process that indexes an open dump. The app starts it before it loads anything else, so this module is small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from ..runs.paths import DATABASE, RUN_FILE
from ..runs.remote.address import is_address

OPEN = "open"
"""The argument that tells the process to open the dump first."""


class OpenedDump(NamedTuple):
    """An indexed dump: the folder of its index, a summary, and whether there is more to index."""

    folder: Path
    summary: dict[str, object]
    more: bool


class Opening(AbstractContextManager["Opening"]):
    """A dump that another process opens and indexes while this one loads its screens.

    options: `Options.to_json()`.
    """

    def __init__(self, dump: str | Path, options: dict[str, Any]) -> None:
        self._process = start([OPEN, str(dump), json.dumps(options), str(os.getpid())], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._answers = self._process.stdout

    def opened(self) -> OpenedDump | str | None:
        """Wait for the first rows. Return the dump, the reason why it cannot be opened, or None if the process ended
        without an answer."""
        with self._answers:
            line = self._answers.readline()
        if not line.endswith(b"\n"):
            return None
        answer = json.loads(line)
        if isinstance(answer, str):
            return answer
        return OpenedDump(Path(os.fsdecode(bytes(answer["folder"]))), answer["summary"], answer["more"])

    def __exit__(self, *exc: object) -> None:
        self._answers.close()
        self._process.terminate()
        self._process.wait()


def is_dump(path: Path) -> bool:
    """Return whether a path may be a dump: a file, or a folder that is not one of our own runs."""
    if path.is_file():
        return True
    return path.is_dir() and not (path / RUN_FILE).is_file() and not (path / DATABASE).is_file()


def is_path_of_dump(reference: str, home: Path) -> bool:
    """Return whether a reference is a dump, not a run: an existing path, standard input, or an address without a run.

    Raises AddressError.
    """
    if reference == "-":
        return True
    if is_address(reference):
        from ..runs.remote.mirror import mirrored

        return mirrored(reference) is None
    return reference != "" and is_dump(Path(reference).expanduser()) and not (home / reference / RUN_FILE).is_file()


def start(arguments: list[str], stdout: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
    """Start the process that indexes a dump; see `__main__`."""
    # -P: the working directory may contain modules with the same names as ours.
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __package__ or "", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
    )
