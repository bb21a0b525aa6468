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
from concurrent.futures import Future
from typing import Any, TypeVar

from cachetools import LRUCache

T = TypeVar("T")


class ResultCache:
    """A least-recently-used cache of at most `max_bytes`, safe for threads.

    hits, misses and seconds (of the misses) are counted by operation.
    """

    def __init__(self, max_bytes: int) -> None:
        self._entries: LRUCache[Hashable, Any] = LRUCache(max_bytes, getsizeof=size_of)
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()
        self.hits: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def get(self, content: str, operation: str, arguments: Hashable, compute: Callable[[], T]) -> T:
        """Return the result of `operation`, from the cache or by `compute`. Its exceptions propagate and are not
        kept."""
        key = (content, operation, arguments)
        with self._lock:
            if key in self._entries:
                self.hits[operation] += 1
                return self._entries[key]
            future = self._under_way.get(key)
            mine = future is None
            if future is None:
                future = self._under_way[key] = Future()
                self.misses[operation] += 1
            else:
                self.hits[operation] += 1
        if not mine:
            return future.result()
        began = time.perf_counter()
        try:
            value = compute()
        except BaseException as problem:
            with self._lock:
                del self._under_way[key]
            future.set_exception(problem)
            raise
        with self._lock:
            self.seconds[operation] += time.perf_counter() - began
            del self._under_way[key]
            if size_of(value) <= self._entries.maxsize:
                self._entries[key] = value
        future.set_result(value)
        return value


def size_of(value: object) -> int:
    """Return about how many bytes a result has."""
    return int(getattr(value, "nbytes", 0)) + sys.getsizeof(value) + 200
