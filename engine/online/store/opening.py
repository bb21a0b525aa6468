"""The queue and the files of a run, on this machine or shared with others."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torch import Tensor

from ....configs.sections.online import OnlineConfig
from .folder import OnlineFolder
from .images import ImageFolder
from .snapshots import Manifest, SnapshotReader
from .sqlite_queue import SqliteQueue
from .update_queue import UpdateQueue

log = logging.getLogger(__name__)

SHARED = "grpo_tui.engine.online.shared.store"
"""The plugin that loads for a run with a shared queue. Its class `SharedStore` has the methods of `RunStore`."""


class RunStore:
    """The queue and the files of a run that no other machine uses. Methods raise QueueError.

    tell: receives messages for the user.
    """

    name = ""
    """The engine's name among those that share a queue."""

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
        """Keep the engine's queue in step with a shared one. Returns a function that ends that."""
        return lambda: None

    def reader(self) -> SnapshotReader:
        return SnapshotReader(self.folder.snapshots, self.tell)

    # The worker's side.

    def open_queue(self, *, check: bool = False) -> UpdateQueue:
        """Open the queue for the worker or validation. check: look for damage although others have it open."""
        return SqliteQueue(self.folder.queue, limit=self.config.queue_limit, check=check)

    def lead(self, parameters: Mapping[str, Tensor], queue: UpdateQueue) -> None:
        """Become the active worker of a policy with these parameters."""
        queue.lead()

    def fetch(self, state: str | None, candidate: str | None) -> int:
        """Bring the worker's states and the newest version here. Returns the highest version that was used."""
        return 0

    def put_state(self, name: str) -> None:
        """Share a state before the queue names it."""

    def offer_snapshot(self, tensors: Path, manifest: Manifest) -> None:
        """Share a version before it gets its name (`SnapshotWriter.offer`)."""

    def prune_states(self, counts: str, keep: str | None) -> None:
        """Delete shared states older than `counts` and its predecessor."""

    def prune_snapshots(self, protect: Iterable[int]) -> None:
        """Delete shared versions older than the newest ones that are kept."""


def open_store(folder: OnlineFolder, config: OnlineConfig, tell: Callable[[str], None] = log.warning) -> RunStore:
    """Return the store that `online.queue` names."""
    if not config.is_shared:
        return RunStore(folder, config, tell)
    return importlib.import_module(SHARED).SharedStore(folder, config, tell)
