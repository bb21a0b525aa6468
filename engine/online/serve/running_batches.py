"""The running batches of all policy versions: which one advances, and which rows join it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ...agents.live_batch import LiveBatch, LiveRow
from .requests import BATCH_TOKENS
from .weights import WeightFollower

SAMPLE_TOKENS = BATCH_TOKENS // 2
"""Maximum total length in tokens of all running background rows, over all versions. Other rows wait."""
PROMPT_TOKENS = 2048
"""Maximum number of prompt tokens processed together."""
VISIT = 8
"""Number of tokens before another version's batch takes its turn."""


@dataclass
class RunningBatch:
    """The batch of one version."""

    version: int
    tensors: dict[str, Tensor]
    batch: LiveBatch
    waiting: list[LiveRow] = field(default_factory=list)
    background: list[LiveRow] = field(default_factory=list)
    """Background rows that wait to join."""

    @property
    def urgent(self) -> int:
        return len(self.waiting) + self.batch.foreground


class RunningBatches:
    """The batches by version. follower: gives the weights of versions. new_batch: makes an empty batch."""

    def __init__(self, follower: WeightFollower, new_batch: Callable[[], LiveBatch]) -> None:
        self._follower = follower
        self._new_batch = new_batch
        self.batches: dict[int, RunningBatch] = {}

    @property
    def urgent(self) -> int:
        return sum(r.urgent for r in self.batches.values())

    @property
    def background(self) -> int:
        """Number of background rows that wait to join."""
        return sum(len(r.background) for r in self.batches.values())

    def of(self, version: int | None) -> RunningBatch:
        """Return the batch of a version, by default the served one. Creates it if needed. Raises SnapshotError."""
        number = self._follower.version if version is None else version
        if number not in self.batches:
            self.batches[number] = RunningBatch(number, self._follower.weights(number), self._new_batch())
            for old in [r for r in self.batches.values() if r.version != number]:
                self.forget(old)
        return self.batches[number]

    def forget(self, running: RunningBatch) -> None:
        """Delete a batch without rows, unless its version is served."""
        empty = not running.waiting and not running.background and not len(running.batch)
        if empty and running.version != self._follower.version:
            self.batches.pop(running.version, None)

    def choose(self, version: int, visit: int) -> RunningBatch | None:
        """Return the next batch to advance. Batches with callers come first; the current one keeps `VISIT` tokens.

        version: the one whose weights are in place. visit: tokens since they were put in place.
        """
        every = self.batches.values()
        runnable = [r for r in every if r.urgent] or [
            r for r in every if len(r.batch) or (r.background and self._fits(r.background[0]))
        ]
        if not runnable:
            return None
        current = next((r for r in runnable if r.version == version), None)
        if current is not None and (visit < VISIT or len(runnable) == 1):
            return current
        later = [r for r in runnable if r.version > version]
        return (later or runnable)[0]

    def joining(self, running: RunningBatch) -> list[LiveRow]:
        """Take the rows that join now: callers' texts or, if there are none, samples."""
        queue = running.waiting or ([] if running.urgent else running.background)
        rows: list[LiveRow] = []
        for row in queue:
            if (rows and sum(len(r.prompt) for r in (*rows, row)) > PROMPT_TOKENS) or not self._fits(row, rows):
                break
            rows.append(row)
        del queue[: len(rows)]
        return rows

    def _fits(self, row: LiveRow, joining: Sequence[LiveRow] = ()) -> bool:
        """Return whether a row may join a batch in addition to the `joining` rows."""
        if not row.background:
            return True
        used = sum(r.longest for r in joining) + sum(r.batch.background_tokens for r in self.batches.values())
        return not used or used + row.longest <= SAMPLE_TOKENS
