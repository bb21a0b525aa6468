"""Opens the queue that `online.queue` names."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ....configs.sections.online import OnlineConfig
from ...launch.redis_server import queue_url
from ...runs.position import JOURNAL_POSITION, recorded_position
from .exchange import Exchange
from .folder import OnlineFolder
from .images import ImageFolder
from .outbox import Outbox, QueueLink
from .redis_queue import RedisQueue
from .shared_files import SharedFiles, SharedReader
from .snapshots import SnapshotReader
from .sqlite_queue import SqliteQueue
from .update_queue import QueueError, UpdateQueue
from .update_task import UpdateTask

Tell = Callable[[str], None]


def engine_name(folder: OnlineFolder, config: OnlineConfig) -> str:
    """Return the engine's name among those that share a queue; empty for an engine with its own."""
    return f"{socket.gethostname()}/{folder.run_dir.name}" if config.is_shared else ""


def open_queue(
    folder: OnlineFolder, config: OnlineConfig, *, check: bool = False, tell: Tell | None = None
) -> UpdateQueue:
    """Open the queue for the worker or validation. Raises QueueError."""
    if config.is_shared:
        return _redis(config, tell)
    return SqliteQueue(folder.queue, limit=config.queue_limit, check=check)


def open_engine_queue(folder: OnlineFolder, config: OnlineConfig, tell: Tell) -> SqliteQueue:
    """Open the engine's queue, which is always on its own disk. Raises QueueError."""
    kind = Outbox if config.is_shared else SqliteQueue
    return kind(folder.queue, limit=config.queue_limit, on_mended=tell)


def link_engine(folder: OnlineFolder, config: OnlineConfig, shown: SqliteQueue, tell: Tell) -> QueueLink | None:
    """Start the link between the engine's queue and the shared one; None without one. Raises QueueError."""
    if not config.is_shared or not isinstance(shown, Outbox):
        return None
    outbox = Outbox(folder.queue, limit=config.queue_limit, on_mended=tell)
    name = engine_name(folder, config)
    images = image_folder(folder, config)
    link = QueueLink(
        outbox,
        _redis(config, tell),
        name,
        poll_s=config.poll_interval_s,
        start=recorded_position(folder.run_dir, JOURNAL_POSITION),
        shown=shown,
        before=lambda task: images.share(UpdateTask.images(task.payload)),
        tell=tell,
    )
    link.start()
    return link


def image_folder(folder: OnlineFolder, config: OnlineConfig) -> ImageFolder:
    """Return the folder of the images that the policy was shown."""
    exchange = Exchange(config.shared_files) if config.is_shared and config.shared_files is not None else None
    return ImageFolder(folder.images, exchange)


def shared_files(folder: OnlineFolder, config: OnlineConfig, queue: UpdateQueue) -> SharedFiles | None:
    """Return the files that machines with a shared queue exchange; None for any other run."""
    if not config.is_shared or config.shared_files is None:
        return None
    return SharedFiles(Exchange(config.shared_files), queue, folder, keep=config.keep_snapshots)


def snapshot_reader(folder: OnlineFolder, config: OnlineConfig, tell: Tell) -> SnapshotReader:
    """Return the reader of the newest version, of this machine or of all. Raises QueueError."""
    if not config.is_shared:
        return SnapshotReader(folder.snapshots, tell)
    shared = shared_files(folder, config, _redis(config, None))
    assert shared is not None  # `configs.checks` sees to it
    return SharedReader(shared, tell)


def _redis(config: OnlineConfig, tell: Tell | None) -> RedisQueue:
    try:
        url = queue_url(config)
    except ValueError as error:
        raise QueueError(f"{error}.") from error
    return RedisQueue(url, config.queue_name, limit=config.queue_limit, lease_s=config.lease_s, tell=tell)
