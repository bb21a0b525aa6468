"""How much of a dump its index holds so far, and who asked for its texts.

Rows come first; texts are made searchable behind them. Text search costs many times what rows cost, in time and on
the disk, so of a large dump only the first texts are done unasked: a search asks for the others (`ask_for_text`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

UNASKED_TEXT = 256 << 20
"""Bytes of rollouts that are made searchable before anybody searches."""
_ASKED = "search.asked"

SOURCES = "SELECT position, ends, done, size FROM sources"
"""What `Coverage.of` works on."""


@dataclass(frozen=True)
class Coverage:
    """`done` of `size` bytes of the files are in the index; texts up to rollout `searchable` of `rollouts`."""

    done: int
    size: int
    searchable: int
    rollouts: int

    @classmethod
    def of(cls, sources: Iterable[tuple[int, int, int, int]], searchable: int, rollouts: int) -> Coverage:
        """From the rows of `SOURCES`."""
        done = size = 0
        for position, ends, finished, known in sources:
            size += known
            share = 1.0 if finished else min(1.0, position / ends) if ends > 0 else 0.0
            done += int(known * share)
        return cls(done, size, searchable, rollouts)

    @property
    def share(self) -> float:
        """0 to 1, of the files."""
        return 1.0 if self.size <= 0 else min(1.0, self.done / self.size)


def ask_for_text(folder: Path) -> None:
    """Somebody searches: all texts are wanted."""
    try:
        (folder / _ASKED).touch()
    except OSError:
        return  # a cache that cannot be written has no index to go on with either


def text_is_asked_for(folder: Path) -> bool:
    """Whether somebody has searched this dump."""
    return (folder / _ASKED).exists()
