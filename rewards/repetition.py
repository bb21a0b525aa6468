"""Which steps repeat an earlier one. No torch here."""

from __future__ import annotations

from collections.abc import Sequence


def repeated(keys: Sequence[str], window: int) -> list[bool]:
    """Whether each step of a trajectory repeats an action of the last `window` steps (of all, when that is 0).

    keys: the canonical action of each step.
    """
    if window:
        return [key in keys[max(0, i - window) : i] for i, key in enumerate(keys)]
    seen: set[str] = set()
    flags = []
    for key in keys:
        flags.append(key in seen)
        seen.add(key)
    return flags
