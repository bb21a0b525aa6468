"""Cache results of the tools by picture content, operation and arguments.

The rollouts of a task mostly make the same calls. Each result is computed once, even if two threads need it
concurrently.
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

    It counts `asked`, `misses` and `seconds` (of the misses) by operation.
    """

    def __init__(self, max_bytes: int) -> None:
        self.asked: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)
        entries: LRUCache[Hashable, object] = LRUCache(max_bytes, getsizeof=size_of)
        self._kept = cached(entries, key=lambda *names: names[:3], condition=threading.Condition())(self._computed)

    @property
    def hits(self) -> Counter[str]:
        """How often a result was already available or being computed."""
        return self.asked - self.misses

    def get(self, content: str, operation: str, arguments: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `operation`, from the cache or by `compute`. Exceptions propagate and are not cached."""
        self.asked[operation] += 1
        return self._kept(content, operation, arguments, compute)

    def _computed(self, content: str, operation: str, arguments: Hashable, compute: Callable[[], T]) -> T:
        self.misses[operation] += 1
        started = time.perf_counter()
        value = compute()
        self.seconds[operation] += time.perf_counter() - started
        return value


def size_of(value: object) -> int:
    """Estimate the size of a result in bytes."""
    return int(getattr(value, "nbytes", 0)) + sys.getsizeof(value) + 200
