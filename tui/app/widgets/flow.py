"""Lines that are laid out when they come into view: of a rollout of megabytes only what is on screen is rendered.

A flow is a sequence of parts. Of a part that was not looked at only about how many lines it has is known, so the flow's
length is an estimate until all of it was seen, and laying out a part moves what comes after it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import overload

from .line import Line

Make = Callable[[], Sequence[Line]]


class Part:
    """Some lines that are laid out together. `key` says what they are of."""

    __slots__ = ("key", "lines", "make", "rows")

    def __init__(self, make: Make | Sequence[Line], rows: int = 1, key: tuple[int, ...] = ()) -> None:
        self.lines: Sequence[Line] | None = None if callable(make) else make
        self.make = make if callable(make) else None
        self.rows = rows if self.lines is None else len(self.lines)
        self.key = key


class Flow(Sequence[Line]):
    """The lines of parts under each other."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self.parts = list(parts)
        self._starts: list[int] | None = None

    @property
    def starts(self) -> list[int]:
        """The first line of each part, as far as it is known, and the number of all."""
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
        """The part that holds a line, as far as it is known."""
        return bisect_right(self.starts, index) - 1

    def laid_out(self, at: int) -> int:
        """Lay out a part; by how many lines it is longer than was thought."""
        part = self.parts[at]
        if part.lines is not None or part.make is None:
            return 0
        part.lines = part.make()
        more = len(part.lines) - part.rows
        if more:
            part.rows += more
            self._starts = None
        return more

    def settled(self, old: int, top: int, height: int) -> int:
        """The line to put first so that what is at `top` now is seen there, once all that is then on screen is laid
        out; `old` is the line that was first."""
        to_end = top >= len(self) - height
        for _ in range(64):
            before = len(self)
            top = max(0, before - height) if to_end else top
            at = self.part_at(max(0, min(top, before - 1)))
            offset = top - self.starts[at]
            more = self.laid_out(at)
            if more and top < old:  # coming from below: the part's last lines come first
                top += more
            elif more and offset >= self.parts[at].rows:
                top = self.starts[at]
            for index in range(top, min(top + height, len(self))):
                if index < len(self):
                    self[index]
            top = max(0, min(top, len(self) - height))
            if len(self) == before and not more:
                break
        return top
