"""Places in an order of rollouts: a value and a number, with missing values first."""

from __future__ import annotations

import bisect
import math
from array import array
from collections.abc import Sequence
from typing import Any

Key = tuple[int, float, int]
"""Position in an order: whether the value is there (missing values come first), the value, n."""


def key_of(value: Any, n: int) -> Key:
    """Return the key of rollout `n` whose value in the order is `value`."""
    return (0, 0.0, n) if value is None else (1, value, n)


class Keys:
    """Sorted keys of a small view, sixteen bytes each."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self.numbers = array("q", [n for _, _, n in keys])
        # SQLite holds no NaN, so NaN can stand for a missing value.
        self._values = array("d", [value if present else math.nan for present, value, _ in keys])

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, i: int) -> Key:
        value = self._values[i]
        return (0, 0.0, self.numbers[i]) if value != value else (1, value, self.numbers[i])

    def with_more(self, keys: Sequence[Key]) -> Keys:
        return Keys(sorted([*(self[i] for i in range(len(self))), *keys]))

    def index(self, key: Key) -> int | None:
        """Return the position of a key; None if it is missing."""
        i = bisect.bisect_left(self, key)
        return i if i < len(self) and self[i] == key else None

    def after(self, key: Key) -> int | None:
        """Return the number behind a key, which need not be one of these."""
        i = bisect.bisect_right(self, key)
        return self.numbers[i] if i < len(self) else None

    def before(self, key: Key) -> int | None:
        """Return the number in front of a key, which need not be one of these."""
        i = bisect.bisect_left(self, key) - 1
        return self.numbers[i] if i >= 0 else None


def beyond(column: str, start: Key | None, ascending: bool) -> list[tuple[str, tuple[object, ...]]]:
    """Return the conditions for rows beyond a key in an order. Each is one range of the index, ties first."""
    if start is None:
        return [("1", ())]
    present, value, n = start
    if ascending:
        if not present:
            return [(f"{column} IS NULL AND n > ?", (n,)), (f"{column} IS NOT NULL", ())]
        return [(f"{column} = ? AND n > ?", (value, n)), (f"{column} > ?", (value,))]
    if not present:
        return [(f"{column} IS NULL AND n < ?", (n,))]
    return [
        (f"{column} = ? AND n < ?", (value, n)),
        (f"{column} < ?", (value,)),
        (f"{column} IS NULL", ()),
    ]
