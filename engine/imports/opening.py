"""Open a dump by creating or updating its index in the cache."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import Any

from ..runs.durable import try_lock
from ..runs.paths import RUN_FILE
from . import cache
from .background import OpenedDump
from .containers import container_of, kind_of
from .copies import local, tidy
from .dump import files_of
from .errors import DumpError
from .index import Indexer
from .options import Options
from .part import UNKNOWN

FIRST_SECONDS = 0.05
"""Indexing time before the first paint, in seconds."""


def open_dump(
    path: Path | str, options: Options | None = None, *, whole: bool = False, searchable: bool = False
) -> OpenedDump:
    """Index the first part of a dump, or (`whole`) all rows, and (`searchable`) all texts.

    Raises DumpError if nothing in it can be read.
    """
    options = options or Options()
    with cache.readable_errors():
        dump = local(path)
        folder = cache.folder_of(dump, options)
        with try_lock(folder / ".lock") as locked:
            if not locked and not whole:  # another process indexes it already
                return OpenedDump(folder, {}, True)
            with Indexer(dump, folder, options) as indexer:
                opened = first_look(indexer, whole=whole, searchable=searchable)
    tidy()
    return opened


def first_look(indexer: Indexer, *, whole: bool = False, searchable: bool = False) -> OpenedDump:
    """Index the first part, or all; see `open_dump`. Rows of an earlier index are visible at once."""
    until = time.monotonic() + FIRST_SECONDS
    if indexer.unfinished() and indexer.store.last_n() and not whole:
        more = True
    else:
        more = indexer.advance(None if whole else FIRST_SECONDS)
    if searchable:
        indexer.make_searchable()
    elif not more and not whole:
        more = indexer.make_searchable(until - time.monotonic(), whole=False)
    if not more and whole:  # otherwise it happens after the first paint
        indexer.diagnose()
    summary = indexer.summary()
    if not indexer.store.last_n() and not more and not summary["metrics"]:
        nothing = _nothing_found(indexer.dump, summary, indexer.tables.torn())
        indexer.close()
        cache.forget(indexer.folder)
        raise DumpError(nothing)
    indexer.describe(opened=True)
    return OpenedDump(indexer.folder, summary, more)


def _nothing_found(dump: Path, summary: dict[str, Any], torn: str | None) -> str:
    if skipped := summary["skipped"]:
        first = skipped[0]
        where = f"{first['file']}" + (f", line {first['line']}" if first["line"] else "")
        others = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        return f"nothing in {dump} can be opened: {where}: {first['why']}{others}"
    if not summary["files"]:
        runs = next(dump.glob(f"**/{RUN_FILE}"), None)
        hint = f" of other frameworks: to see its runs, write grpo-tui --runs-dir {quote(str(dump))}" if runs else ""
        return f"{dump} contains no files{hint}"
    if torn is not None:
        return f"nothing in {dump} can be opened: the last line of {torn} is not JSON, or is still being written"
    if known := [name for name in summary["formats"] if name != UNKNOWN]:
        return f"{dump} was recognised as {', '.join(known)}, but contains no rollout"
    return _strange(dump)


def _strange(dump: Path) -> str:
    """Return a sentence about a dump in which no document is recognised: the kind of a file, or the first keys."""
    documents: list[object] = []
    for path in files_of(dump)[:16]:
        with suppress(DumpError, OSError):
            container = container_of(path)
            found = None if container is None else next(iter(container.open(path)), None)
            if found is not None:
                is_member = isinstance(found.document, dict) and found.document.keys() == {"member", "document"}
                documents.append(found.document["document"] if is_member else found.document)
            elif kind := kind_of(path):
                return f"nothing in {dump} can be opened: {path.name} is {kind}"
    keys = next(([str(key)[:30] for key in list(each)[:8]] for each in documents if isinstance(each, dict)), [])
    if not documents:
        kinds = "JSON, JSON lines, CSV with a header row, parquet, zip or SQLite"
        return f"nothing in {dump} is a rollout: it is not {kinds}; write one of them, see docs/importing.md"
    named = f" (the first keys are {', '.join(keys)})" if keys else ""
    return f"nothing in {dump} is a rollout in a known format{named}: see docs/importing.md, or name keys with --map"
