"""The files of a dump, and the formats of its documents."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from importlib.metadata import EntryPoints, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from ..runs.paths import DATABASE, RUN_FILE
from .containers import BY_NAME
from .containers.base import stat_of
from .convert import with_turns_of_prompt
from .errors import DumpError
from .format import Format, Origin
from .formats import FORMATS
from .formats.tables import GENERIC
from .options import Options
from .rollout import Expected, Item, Rollout

MAX_FILES = 200_000
_DIGITS = re.compile(r"(\d+)")


def formats_of(options: Options) -> tuple[Format, ...]:
    """Return the formats in order: the user's own, the `--map` mapping, then all others.

    Raises DumpError if a file of the user cannot be used.
    """
    custom = [_loaded(path, partial(_module, Path(path))) for path in options.importers]
    custom += [_loaded(entry.value, entry.load) for entry in _installed()]
    if options.keys:
        own = {role: (key, *GENERIC.keys.get(role, ())) for role, key in options.keys.items()}
        custom.append(replace(GENERIC, keys={**GENERIC.keys, **own}))
    return (*custom, *FORMATS)


def format_of(document: object, origin: Origin, formats: Iterable[Format]) -> Format | None:
    """Return the first format that recognises a document."""
    for format_ in formats:
        try:
            if format_.detect(document, origin):
                return format_
        except (KeyError, TypeError, ValueError, AttributeError, IndexError):
            continue
    return None


class PlacedItems:
    """Reads documents of a dump again by their places in the index (path, container, offset, length).

    The last document stays in memory, so a document with thousands of rollouts is read once for all of them.
    """

    def __init__(self, dump: Path, formats: Sequence[Format]) -> None:
        self.dump = dump
        self.formats = formats
        self._last: tuple[object, list[Item], list[Rollout], Format] | None = None

    def items(self, place: tuple[str, str, int, int]) -> list[Item]:
        """Return the items of a document. Raises DumpError or OSError."""
        return self._read(place)[1]

    def rollout(self, place: tuple[str, str, int, int], part: int) -> tuple[Rollout, Format]:
        """Return a rollout and its format by its place in the index (`FilePart.places`). Raises DumpError or
        OSError."""
        _, _, rollouts, reader = self._read(place)
        if (part if part >= 0 else ~part) >= len(rollouts):
            raise DumpError(f"{place[0]} has changed since it was indexed; close and reopen it")
        return rollouts[part] if part >= 0 else with_turns_of_prompt(rollouts[~part]), reader

    def _read(self, place: tuple[str, str, int, int]) -> tuple[object, list[Item], list[Rollout], Format]:
        path, container, offset, length = place
        key, last = (place, stat_of(path)), self._last
        if last is not None and last[0] == key:
            return last
        origin = Origin.of(Path(path), self.dump)
        try:
            document = BY_NAME[container].read(origin.path, offset, length)
            if (reader := format_of(document, origin, self.formats)) is not None:
                items = list(reader.open(document, origin))
                rollouts = [i for i in items if isinstance(i, Rollout)]
                rollouts = rollouts or [i.rollout for i in items if isinstance(i, Expected)]
                self._last = last = key, items, rollouts, reader
                return last
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
            raise DumpError(f"{path}: this rollout cannot be read ({error})") from error
        raise DumpError(f"{path} has changed since it was indexed; close and reopen it")


def files_of(dump: Path) -> list[Path]:
    """Return the files of a dump in natural order, without hidden files and records. A file with several links appears
    once. A folder that cannot be listed appears as a file.
    """
    if dump.is_file():
        return [dump]
    found: dict[str, Path] = {}
    waiting, known = [str(dump)], set[str]()
    while waiting:  # visit linked folders last, because a real folder may contain them
        for folder, folders, names in os.walk(
            waiting.pop(0), onerror=lambda e: found.update({e.filename: Path(e.filename)})
        ):
            real_path = os.path.realpath(folder)
            if RUN_FILE in names or DATABASE in names or real_path in known:
                folders.clear()
                continue
            known.add(real_path)
            folders[:] = (f for f in folders if not f.startswith("."))
            waiting += filter(os.path.islink, (os.path.join(folder, f) for f in folders))
            for path in (Path(folder, name) for name in names if not name.startswith(".")):
                if path.is_symlink():
                    found.setdefault(os.path.realpath(path), path)
                else:
                    found[os.path.join(real_path, path.name)] = path
            if len(found) > MAX_FILES:
                raise DumpError(f"{dump} contains more than {MAX_FILES:,} files; name a folder inside it")
    return sorted(found.values(), key=lambda p: natural(p.relative_to(dump).as_posix()))


def natural(name: str) -> tuple[tuple[int, str | int], ...]:
    """Return a key that sorts `2.jsonl` before `10.jsonl`."""
    return tuple((0, int(p)) if p.isdecimal() and p.isascii() else (1, p) for p in _DIGITS.split(name) if p)


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"grpo_tui_importer_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise DumpError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _installed() -> EntryPoints:
    """Return the importers of installed packages. The search reads a file of every package."""
    return entry_points(group="grpo_tui.importers")


def _loaded(where: str, load: Callable[[], Any]) -> Format:
    """Load a user's module, object or class, and check it as a format. It may lack `name` and `unknown`."""
    try:
        found = load()
    except DumpError:
        raise
    except Exception as error:  # the user's code
        raise DumpError(f"the importer {where} cannot be loaded ({type(error).__name__}: {error})") from error
    found = found() if isinstance(found, type) else found
    for name in ("detect", "open"):
        if not callable(getattr(found, name, None)):
            raise DumpError(f"the importer {where} has no function {name!r}: see docs/importing.md")
    for name, default in (("name", Path(where).stem), ("unknown", {})):
        if not hasattr(found, name):
            setattr(found, name, default)
    return found
