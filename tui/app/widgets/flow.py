"""Lines that are laid out when they come into view: a rollout may hold megabytes, and only visible lines are rendered.

A flow is a sequence of parts. An unseen part has an estimated number of lines, so its layout moves later parts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import overload

from .line import Line

Make = Callable[[], "Sequence[Line] | Sequence[Part]"]


class Part:
    """Lines laid out together, or parts that replace it on first view. `key` identifies their text."""

    __slots__ = ("key", "lines", "make", "rows")

    def __init__(self, make: Make | Sequence[Line], rows: int = 1, key: tuple[int, ...] = ()) -> None:
        self.lines: Sequence[Line] | None = None if callable(make) else make
        self.make = make if callable(make) else None
        self.rows = rows if self.lines is None else len(self.lines)
        self.key = key


class Flow(Sequence[Line]):
    """Parts below each other. Unseen parts have an estimated height."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = list(parts)
        self._starts: list[int] | None = None

    @property
    def starts(self) -> list[int]:
        if self._starts is None:
            self._starts = list(accumulate((part.rows for part in self.parts), initial=0))
        return self._starts

    def __len__(self) -> int:
        return self.starts[-1]

    @overload
    def __getitem__(self, index: int) -> Line: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Line]: ...
    def __getitem__(self, index: int | slice) -> Line | Sequence[Line]:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            return [self[i] for i in range(start, stop, step) if i < len(self)]
        while True:
            at = self.part_at(index)
            if at >= len(self.parts):
                raise IndexError(index)
            self.laid_out(at)
            offset = index - self.starts[at]
            lines = self.parts[at].lines
            if lines is not None and offset < len(lines):
                return lines[offset]

    def part_at(self, index: int) -> int:
        return bisect_right(self.starts, index) - 1

    def laid_out(self, at: int) -> bool:
        """Lay out a part. Returns whether later parts moved."""
        part = self.parts[at]
        if part.lines is not None or part.make is None:
            return False
        made, before = part.make(), part.rows
        if made and isinstance(made[0], Part):
            self.parts[at : at + 1] = made  # type: ignore[assignment]
            self._starts = None
            return True
        part.lines = made  # type: ignore[assignment]
        part.rows = len(made)
        if part.rows != before:
            self._starts = None
        return part.rows != before

    def start(self, part: Part) -> int:
        return self.starts[self.parts.index(part)]

    def settled(self, old: int, top: int, height: int) -> int:
        """Return the first line that keeps the text at `top` in place once the visible parts are laid out. `old` is the
        present first line."""
        to_end = top >= len(self) - height
        for _ in range(200):
            size = len(self)
            top = max(0, min(size - height, 10**9 if to_end else top))
            at = self.part_at(top)
            before = self.starts[at] if at < len(self.parts) else 0
            if at < len(self.parts) and self.laid_out(at):
                if top < old:  # coming from below: the part's last lines come first
                    top += len(self) - size
                elif at < len(self.parts):
                    top = min(top, before + max(0, len(self) - size + self.parts[at].rows - 1))
                continue
            if not any(self.laid_out(i) for i in range(at, self.part_at(min(top + height, len(self)) - 1) + 1)):
                break
        return max(0, min(top, len(self) - height))
