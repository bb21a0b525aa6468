"""The process that indexes a dump in the background.

    python -m grpo_tui.engine.imports FOLDER PARENT             continue the index and follow the files
    python -m grpo_tui.engine.imports open DUMP OPTIONS PARENT  open the dump first and answer on standard output

It indexes rows, then texts, then the rows of growing files, until its parent process PARENT ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import time
from pathlib import Path

from ..runs.durable import try_lock
from . import cache
from .background import OPEN, OpenedDump
from .copies import local, tidy
from .coverage import reason_kept
from .errors import DumpError
from .index import Indexer
from .opening import first_look
from .options import Options

TURN_SECONDS = 0.5


def open_and_follow(reference: str, options: Options, parent: int) -> None:
    """Open a dump, write the answer for `background.Opening`, then continue the index."""
    with contextlib.ExitStack() as stack:
        indexer = None
        try:
            with cache.readable_errors():
                dump = local(reference)
                folder = cache.folder_of(dump, options)
                opened = OpenedDump(folder, {}, True)
                if stack.enter_context(try_lock(folder / ".lock")):  # else another process indexes it already
                    indexer = stack.enter_context(Indexer(dump, folder, options))
                    opened = first_look(indexer)
        except DumpError as error:
            return _answer(str(error))
        except PermissionError as error:
            return _answer(f"{reference} cannot be read: {error.strerror}")
        facts = {"folder": list(os.fsencode(opened.folder)), "summary": opened.summary, "more": opened.more}
        _answer(facts)
        if indexer is not None:
            time.sleep(0.5)  # for the app's first paint: two logical cores are often two threads of one physical core
            tidy()
            with reason_kept(folder):
                _keep_indexing(indexer, parent)


def _answer(answer: object) -> None:
    """Write one line of JSON to standard output, then close it because the parent reads only that line."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(answer).encode() + b"\n")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _lives(parent: int) -> bool:
    if os.name == "posix":
        return os.getppid() == parent
    import psutil

    return psutil.pid_exists(parent)  # Windows never reparents, and a virtual environment puts a launcher between


def follow(folder: Path, parent: int) -> None:
    """Continue an index until the parent ends."""
    if (found := cache.dump_of(folder)) is None:
        return
    with try_lock(folder / ".lock") as locked:
        if locked:
            with reason_kept(folder), Indexer(found[0], folder, found[1]) as indexer:
                _keep_indexing(indexer, parent)


def _keep_indexing(indexer: Indexer, parent: int) -> None:
    if hasattr(os, "nice"):
        os.nice(5)
    changed = True
    while _lives(parent):
        more = indexer.advance(TURN_SECONDS) or indexer.make_searchable(TURN_SECONDS, whole=False)
        changed = changed or more
        if not more:
            if changed:
                indexer.diagnose()
                indexer.describe()
            time.sleep(1.0)
            changed = indexer.look_again()


def main(arguments: list[str]) -> None:
    """Run the command line above."""
    if arguments[0] == OPEN:
        _, reference, options, parent = arguments
        open_and_follow(reference, Options.from_json(json.loads(options)), int(parent))
    else:
        folder, parent = arguments
        follow(Path(folder), int(parent))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (DumpError, OSError, sqlite3.Error, KeyboardInterrupt):
        sys.exit(1)
