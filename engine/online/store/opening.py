"""Open the queue and the files of a run, on this machine or shared with others."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torch import Tensor

from ....configs.sections.online import OnlineConfig
from ...runs.paths import OnlineFolder
from .images import ImageFolder
from .snapshots import Manifest, SnapshotReader, prune
from .sqlite_queue import SqliteQueue
from .update_queue import UpdateQueue

log = logging.getLogger(__name__)

SHARED = "grpo_tui.engine.online.shared.store"
"""The plugin for runs with a shared queue. Its class `SharedStore` subclasses `RunStore`."""


class RunStore:
    """The queue and the files of a run on a single machine. Methods raise QueueError.

    tell: receives messages for the user.
    """

    name = ""
    """The engine's name among the engines that share a queue."""

    def __init__(self, folder: OnlineFolder, config: OnlineConfig, tell: Callable[[str], None] = log.warning) -> None:
        self.folder = folder
        self.config = config
        self.tell = tell
        self.images = ImageFolder(folder.images)

    # The engine's side.

    def open_engine_queue(self) -> SqliteQueue:
        """Open the engine's queue, which is always on its own disk."""
        return SqliteQueue(self.folder.queue, limit=self.config.queue_limit, on_repaired=self.tell)

    def link(self, queue: SqliteQueue) -> Callable[[], None]:
        """Synchronise the engine's queue with a shared one. Returns a function that stops this."""
        return lambda: None

    def reader(self) -> SnapshotReader:
        return SnapshotReader(self.folder.snapshots, self.tell)

    # The worker's side.

    def open_queue(self, *, check: bool = False) -> UpdateQueue:
        """Open the queue for the worker or validation. check: check for damage even if others have it open."""
        return SqliteQueue(self.folder.queue, limit=self.config.queue_limit, check=check)

    def lead(self, parameters: Mapping[str, Tensor], queue: UpdateQueue) -> None:
        """Become the active worker of a policy with these parameters."""
        queue.lead()

    def fetch(self, state: str | None, candidate: str | None) -> int:
        """Fetch the worker's states and the newest version. Returns the highest version number used so far."""
        return 0

    def put_state(self, name: str) -> None:
        """Share a state. Call this before the queue names it."""

    def offer_snapshot(self, tensors: Path, manifest: Manifest) -> None:
        """Share a version. Called before it gets its final name (`SnapshotWriter.offer`)."""

    def prune_states(self, counts: str, keep: str | None) -> None:
        """Delete shared states older than `counts` and its predecessor."""

    def prune_snapshots(self, protect: Iterable[int]) -> None:
        """Delete versions except the newest `keep_snapshots` and `protect`."""
        prune(self.folder.snapshots, self.config.keep_snapshots, protect)


def open_store(folder: OnlineFolder, config: OnlineConfig, tell: Callable[[str], None] = log.warning) -> RunStore:
    """Return the store for `online.queue`."""
    if not config.is_shared:
        return RunStore(folder, config, tell)
    return importlib.import_module(SHARED).SharedStore(folder, config, tell)
