"""The files of a dump, and the formats of its documents."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ..runs.paths import DATABASE, RUN_FILE
from .containers import BY_NAME
from .errors import DumpError
from .format import Format, Origin
from .formats import FORMATS
from .formats.tables import GENERIC
from .options import Options
from .rollout import Item

ENTRY_POINTS = "grpo_tui.importers"
MAX_FILES = 200_000
_DIGITS = re.compile(r"(\d+)")


def formats_of(options: Options) -> tuple[Format, ...]:
    """Return the formats in their order: the user's own, a mapping of `--map`, then all others.

    Raises DumpError if a file of the user cannot be used.
    """
    own = [_from_file(Path(p)) for p in options.importers]
    own += [_from_entry_point(e) for e in entry_points(group=ENTRY_POINTS)]
    if options.keys:
        own.append(GENERIC.with_keys(options.keys))
    return (*own, *FORMATS)


def format_of(document: object, origin: Origin, formats: Sequence[Format]) -> Format | None:
    """Return the first format that knows a document."""
    for each in formats:
        try:
            if each.detect(document, origin):
                return each
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            continue
    return None


def items_at(dump: Path, place: tuple[str, str, int, int], formats: Sequence[Format]) -> tuple[list[Item], Format]:
    """Read the document at a place of the index (path, container, offset, length) again. Return its items and format.

    Raises DumpError or OSError.
    """
    path, container, at, length = place
    origin = Origin.of(Path(path), dump)
    try:
        document = BY_NAME[container].read(origin.path, at, length)
        if (reader := format_of(document, origin, formats)) is not None:
            return list(reader.open(document, origin)), reader
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        raise DumpError(f"{path}: this rollout cannot be read ({error})") from error
    raise DumpError(f"{path} has changed since it was indexed; leave and open it again")


def files_of(dump: Path) -> list[Path]:
    """Return the files of a dump without hidden files and records, sorted by name, numbers as numbers."""
    if dump.is_file():
        return [dump]
    found: list[Path] = []
    for folder, folders, names in os.walk(dump):
        if RUN_FILE in names or DATABASE in names:
            folders.clear()
            continue
        folders[:] = sorted((f for f in folders if not f.startswith(".")), key=natural)
        found.extend(Path(folder, name) for name in names if not name.startswith("."))
        if len(found) > MAX_FILES:
            raise DumpError(f"{dump} holds more than {MAX_FILES:,} files; name a folder inside it")
    return sorted(found, key=lambda p: natural(p.relative_to(dump).as_posix()))


def natural(name: str) -> tuple[tuple[int, str | int], ...]:
    """Return a key that sorts `2.jsonl` before `10.jsonl`."""
    return tuple((0, int(p)) if p.isdecimal() and p.isascii() else (1, p) for p in _DIGITS.split(name) if p)


def _from_file(path: Path) -> Format:
    spec = importlib.util.spec_from_file_location(f"grpo_tui_importer_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DumpError(f"{path} is no Python file")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code
        raise DumpError(f"the importer {path} cannot be loaded ({type(error).__name__}: {error})") from error
    return _checked(module, str(path))


def _from_entry_point(entry: Any) -> Format:
    try:
        found = entry.load()
    except Exception as error:  # the user's code
        raise DumpError(f"the importer {entry.value} cannot be loaded ({type(error).__name__}: {error})") from error
    return _checked(found() if isinstance(found, type) else found, entry.value)


def _checked(found: Any, where: str) -> Format:
    """Check a module or object that is a format. It may lack `name` and `unknown`."""
    for name in ("detect", "open"):
        if not callable(getattr(found, name, None)):
            raise DumpError(f"the importer {where} has no function {name!r}: see docs/importing.md")
    for name, default in (("name", Path(where).stem), ("unknown", {})):
        if not hasattr(found, name):
            setattr(found, name, default)
    return found
