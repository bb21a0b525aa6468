"""What a format is, and where a document came from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from .containers.base import loads
from .rollout import Item

_STEP = re.compile(r"(?:\A|[^a-z])(?:global_step|step|iteration|iter)[_=-]?(\d{1,12})(?!\d)", re.I)
_EVALS = ("eval", "evals", "val", "validation", "test", "dumped_evals")
_OF_EVALS = re.compile(r"\A(?:eval|val|validation)[_.-]|[_-]evals?\Z", re.I)
MAX_SIDE_FILE = 16 << 20


class Format(Protocol):
    """What a writer means by a document.

    `unknown` says in a sentence each what this format does not carry (`reward`, `weight`, `advantage`, `group`,
    `step`, …): it is shown where a number would stand.
    """

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def unknown(self) -> Mapping[str, str]:
        """What it does not carry, and why."""
        ...

    def detect(self, document: Any, origin: Origin) -> bool:
        """Whether a document is of this format, by its keys."""
        ...

    def open(self, document: Any, origin: Origin) -> Iterable[Item]:
        """What a document of this format holds. May raise KeyError, TypeError or ValueError for a damaged one."""
        ...


@dataclass(frozen=True)
class Origin:
    """The file of a document: its path, and the dump that it belongs to."""

    path: Path
    root: Path

    @cached_property
    def relative(self) -> str:
        """The path inside the dump, or the file's name."""
        try:
            return self.path.relative_to(self.root).as_posix() or self.path.name
        except ValueError:
            return self.path.name

    @cached_property
    def step(self) -> int | None:
        """The step that the file's folders or name state (`step_3`, `global_step_20_evals`), or None."""
        found = _STEP.findall(f"{self.root.name}/{self.relative}")
        return int(found[-1]) if found else None

    @cached_property
    def split(self) -> str:
        """`eval` where a folder or the file's name says so (`validation_trajectories.jsonl`); else empty."""
        *folders, name = Path(self.relative).parts or (self.path.name,)
        if any(f.lower() in _EVALS for f in (self.root.name, *folders)):
            return "eval"
        return "eval" if any(_OF_EVALS.search(f) for f in (*folders, Path(name).stem)) else ""

    def beside(self, name: str) -> Mapping[str, Any]:
        """A small JSON file beside this one (or at `../name`); empty when it is missing or damaged."""
        return _side_file(self.path.parent / name)

    def text_beside(self, name: str) -> str:
        """The text of a small file beside this one; empty when it is missing."""
        return _side_bytes(self.path.parent / name).decode("utf-8", "replace").strip()


@lru_cache(maxsize=256)
def _side_file(path: Path) -> Mapping[str, Any]:
    try:
        data = loads(_side_bytes(path))
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}


def _side_bytes(path: Path) -> bytes:
    """The bytes of a small file; none for what is missing, large, or no file (a pipe would be waited for)."""
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= MAX_SIDE_FILE else b""
    except OSError:
        return b""
