"""Results of the tools by their inputs: the picture's content, the operation, its arguments.

The rollouts of a task mostly make the same calls. Each result is computed once, also when two threads need it at
once.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from typing import TypeVar

from cachetools import LRUCache, cached

T = TypeVar("T")


class ResultCache:
    """A least-recently-used cache of at most `max_bytes`, safe for threads.

    asked, misses and seconds (of the misses) are counted by operation.
    """

    def __init__(self, max_bytes: int) -> None:
        self.asked: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        entries: LRUCache[Hashable, object] = LRUCache(max_bytes, getsizeof=size_of)
        self._kept = cached(entries, key=lambda *names: names[:3], condition=threading.Condition())(self._computed)

    @property
    def hits(self) -> Counter[str]:
        """How often a result was there already, or under way."""
        return self.asked - self.misses

    def get(self, content: str, operation: str, arguments: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `operation`, from the cache or by `compute`. Its exceptions propagate and are not
        kept."""
        self.asked[operation] += 1
        return self._kept(content, operation, arguments, compute)

    def _computed(self, content: str, operation: str, arguments: Hashable, compute: Callable[[], T]) -> T:
        self.misses[operation] += 1
        began = time.perf_counter()
        value = compute()
        self.seconds[operation] += time.perf_counter() - began
        return value


def size_of(value: object) -> int:
    """Return about how many bytes a result has."""
    return int(getattr(value, "nbytes", 0)) + sys.getsizeof(value) + 200
