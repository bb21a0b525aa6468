"""The indexes of dumps in the user's cache. The least recently opened one is deleted first."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from ...configs.location import user_folder
from ..runs.durable import read_json, try_lock, write_json
from ..runs.paths import RUN_FILE
from .errors import DumpError, reason_of
from .options import Options
from .values import number

KEPT = 200
"""The maximum number of indexes."""


def home_dir() -> Path:
    """Return `$XDG_CACHE_HOME/grpo-tui/dumps`, else `~/.cache/grpo-tui/dumps`."""
    return user_folder("XDG_CACHE_HOME", ".cache") / "dumps"


def cache_dir() -> Path:
    """Return `home_dir`, or a private temporary folder if `home_dir` is not writable."""
    return _writable(home_dir(), Path(tempfile.gettempdir()))


@cache
def _writable(home: Path, temporary: Path) -> Path:
    try:
        home.mkdir(parents=True, exist_ok=True)
        if os.access(home, os.W_OK):
            return home
    except OSError:
        pass
    user = temporary / f"grpo-tui-{os.getuid() if hasattr(os, 'getuid') else 'dumps'}"
    try:
        user.mkdir(mode=0o700, exist_ok=True)
        # Another user may have created this folder first, so trust it only if we own it.
        owned = os.name != "posix" or user.lstat().st_uid == os.getuid()
    except OSError:
        owned = False
    return user / "dumps" if owned else home


def note() -> str:
    """Return a sentence if indexes are not kept, else an empty string."""
    home, folder = home_dir(), cache_dir()
    return "" if folder == home else f"{home} cannot be written: the index is in {folder} and will not be kept"


@contextmanager
def readable_errors() -> Iterator[None]:
    """Turn errors of the cache itself, such as a full disk, into DumpError."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        home = str(cache_dir())
        if isinstance(error, OSError) and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            where = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else ""
            if not where or not (where.startswith(home) or home.startswith(where)):
                raise
        reason = reason_of(error)
        if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.OperationalError):
            raise DumpError(f"the index of a dump in {home} is damaged ({reason}): delete that folder") from error
        raise DumpError(
            f"the index of a dump cannot be written to {home} ({reason}): make room there, or name another place with "
            "XDG_CACHE_HOME"
        ) from error


def folder_of(dump: Path, options: Options) -> Path:
    """Return the folder of a dump's index. It is named after the dump, and screens show it as the run's name."""
    identity = json.dumps([str(dump), options.to_json()], sort_keys=True)
    key = hashlib.blake2b(identity.encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
    return cache_dir() / key / (dump.name or "dump")


def describe(
    folder: Path, dump: Path, options: Options, environment: str, facts: dict[str, object], *, opened: bool
) -> None:
    """Write the description of a dump into its index. opened: whether a person just opened it."""
    before = None if opened else read_json(folder / RUN_FILE).get("created")
    means = facts.get("means")
    means = means if isinstance(means, dict) and facts.get("last_step") is None else {}  # else each step has a mean
    write_json(
        folder / RUN_FILE,
        {
            "id": dump.name or str(dump),
            "mode": "dump",
            "created": before or time.time(),
            "environment": environment,
            "step": facts.get("last_step"),
            "facts": {
                **facts,
                "summary": {k: {"last": v, "curve": [], "steps": []} for k, v in means.items()},
                "dump": str(dump),
                "options": options.to_json(),
            },
        },
    )


def dump_of(folder: Path) -> tuple[Path, Options] | None:
    """Return the dump of an index, or None for one of our own runs."""
    run = read_json(folder / RUN_FILE)
    facts = run.get("facts")
    if run.get("mode") != "dump" or not isinstance(facts, dict) or not facts.get("dump"):
        return None
    return Path(str(facts["dump"])), Options.from_json(facts.get("options") or {})


def recent() -> list[Path]:
    """Return the index folders of dumps that still exist, most recently opened first."""
    found = []
    for run in cache_dir().glob(f"*/*/{RUN_FILE}"):
        known = dump_of(run.parent)
        if known is not None and os.path.exists(known[0]):
            found.append((number(read_json(run).get("created")) or 0.0, run.parent))
    return [folder for _, folder in sorted(found, reverse=True)]


def forget(folder: Path) -> None:
    """Delete an index."""
    shutil.rmtree(folder.parent if folder.parent.parent == cache_dir() else folder, ignore_errors=True)


def tidy() -> None:
    """Delete the indexes of missing dumps, and all but the `KEPT` most recently opened."""
    kept = {folder.parent for folder in recent()[:KEPT]}
    for folder in cache_dir().glob("*"):
        if folder not in kept and not any(map(_is_held, folder.glob("*/.lock"))):
            shutil.rmtree(folder, ignore_errors=True)


def _is_held(lock: Path) -> bool:
    """Return whether another process is building the index with this lock. It writes the description last."""
    with try_lock(lock) as free:
        return not free
