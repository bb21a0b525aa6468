"""The interface of a format, and the origin of a document."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Protocol

from .rollout import Item
from .values import Document, mapping, parsed

NOT_WRITTEN = {
    "reward": "rewards are not written",
    "advantage": "advantages are not written",
    "weight": "weights are not written",
    "step": "training steps are not written",
    "group": "no group is written: rollouts of one prompt in one step are shown as one group",
}
"""Default reasons for missing values, for formats and rollouts that give none."""

_STEP = re.compile(r"(?:\A|[^a-z])(?:global_step|step|iteration|iter)[_=-]?(\d{1,12})(?!\d)", re.I)
_EVALS = ("eval", "evals", "val", "validation", "test", "dumped_evals")
_OF_EVALS = re.compile(r"\A(?:eval|val|validation)[_.-]|[_-]evals?\Z", re.I)


class Format(Protocol):
    """Reads the rollouts of one writer. `unknown` extends or overrides the reasons in `NOT_WRITTEN`."""

    @property
    def name(self) -> str: ...

    @property
    def unknown(self) -> Mapping[str, str]: ...

    def detect(self, document: object, origin: Origin) -> bool:
        """Return whether a document has this format, judging by its keys."""
        ...

    def open(self, document: object, origin: Origin) -> Iterable[Item]:
        """Yield the items of a document. May raise KeyError, TypeError or ValueError for a damaged one."""
        ...


@dataclass(frozen=True)
class Documents:
    """A format read by a function. Its documents are objects that have all `keys` and `lists` and satisfy `when`.

    of_lists: a document may also be a list.
    """

    name: str
    read: Callable[[Any, Origin], Iterable[Item]]
    keys: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    when: Callable[[Any, Origin], object] | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)
    of_lists: bool = False

    def detect(self, document: object, origin: Origin) -> bool:
        return (
            (isinstance(document, Mapping) or (self.of_lists and isinstance(document, list)))
            and all(key in document for key in self.keys)
            and all(isinstance(mapping(document).get(key), list) for key in self.lists)
            and (self.when is None or bool(self.when(document, origin)))
        )

    def open(self, document: object, origin: Origin) -> Iterable[Item]:
        return self.read(document, origin)


@dataclass(frozen=True)
class Origin:
    """The file of a document: its path and its dump."""

    path: Path
    root: Path

    @classmethod
    def of(cls, path: Path, dump: Path) -> Origin:
        """Return the origin of a file. The dump is a folder or this file itself."""
        return cls(path, dump if dump.is_dir() else dump.parent)

    @cached_property
    def relative(self) -> str:
        try:
            relative = self.path.relative_to(self.root).as_posix()
        except ValueError:
            relative = "."
        return self.path.name if relative == "." else relative

    @cached_property
    def step(self) -> int | None:
        """The step named by the file or its folders (`step_3`, `global_step_20_evals`), or None."""
        found = _STEP.findall(f"{self.root.name}/{self.relative}")
        return int(found[-1]) if found else None

    @cached_property
    def split(self) -> str:
        """`eval` if the file or a folder is named like an evaluation, else empty."""
        *folders, name = Path(self.relative).parts or (self.path.name,)
        if any(f.lower() in _EVALS for f in (self.root.name, *folders)):
            return "eval"
        return "eval" if any(_OF_EVALS.search(f) for f in (*folders, Path(name).stem)) else ""


@lru_cache(maxsize=16)  # one file may have megabytes
def side_file(path: Path) -> Document:
    """Return a small JSON file, or an empty object."""
    return mapping(parsed(side_text(path)))


def side_text(path: Path) -> str:
    """Return the text of a small file, and an empty text for a large file, a missing file, or a pipe."""
    try:
        small = path.is_file() and path.stat().st_size <= 16 << 20
        return path.read_bytes().decode("utf-8", "replace") if small else ""
    except OSError:
        return ""
