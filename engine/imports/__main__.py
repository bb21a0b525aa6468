"""The process that indexes a dump behind the app: `python -m grpo_tui.engine.imports FOLDER PARENT`.

It goes on while its parent, the process PARENT, lives: first rows, then text search, then whatever the files grow by.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from pathlib import Path

from .cache import dump_of
from .containers import DumpError
from .index import Indexer
from .lock import locked

PART_SECONDS = 0.5
LOOK_SECONDS = 1.0


def follow(folder: Path, parent: int) -> None:
    """Index on until the parent is gone, which may be before this begins."""
    found = dump_of(folder)
    if found is None:
        return
    with locked(folder) as mine:
        if not mine:
            return
        with Indexer(found[0], folder, found[1]) as indexer:
            news = True
            while os.getppid() == parent:
                more = indexer.advance(PART_SECONDS) or indexer.make_searchable(PART_SECONDS, whole=False)
                news = news or more
                if not more:
                    if news:
                        indexer.diagnose()
                        indexer.describe()
                    time.sleep(LOOK_SECONDS)
                    news = indexer.look_again()


if __name__ == "__main__":
    try:
        os.nice(5)
        follow(Path(sys.argv[1]), int(sys.argv[2]))
    except (DumpError, OSError, sqlite3.Error, KeyboardInterrupt):
        sys.exit(1)
