"""Cache results of the tools by picture content, operation and arguments.

The rollouts of a task mostly make the same calls. Each result is computed once, even if two threads need it
concurrently.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable
from typing import TypeVar

from cachetools import LRUCache, cached

T = TypeVar("T")


class ResultCache:
    """A least-recently-used cache of at most `max_bytes`, safe for threads."""

    def __init__(self, max_bytes: int) -> None:
        entries: LRUCache[Hashable, object] = LRUCache(max_bytes, getsizeof=size_of)
        remember = cached(entries, key=lambda *names: names[:3], condition=threading.Condition())
        self._kept = remember(lambda content, operation, arguments, compute: compute())

    def get(self, content: str, operation: str, arguments: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `operation`, from the cache or by `compute`. Exceptions propagate and are not cached."""
        return self._kept(content, operation, arguments, compute)


def size_of(value: object) -> int:
    """Estimate the size of a result in bytes."""
    return int(getattr(value, "nbytes", 0)) + sys.getsizeof(value) + 200
