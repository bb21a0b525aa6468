"""Which queue a run's processes open, as `online.queue` says."""

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
    """What an engine is called among those that share a queue; empty for one that has its own."""
    return f"{socket.gethostname()}/{folder.run_dir.name}" if config.is_shared else ""


def open_queue(
    folder: OnlineFolder, config: OnlineConfig, *, check: bool = False, tell: Tell | None = None
) -> UpdateQueue:
    """The queue that worker and validation use. Raises QueueError."""
    if config.is_shared:
        return _redis(config, tell)
    return SqliteQueue(folder.queue, limit=config.queue_limit, check=check)


def open_engine_queue(folder: OnlineFolder, config: OnlineConfig, tell: Tell) -> SqliteQueue:
    """The queue that an engine reads and writes: always on its own disk. Raises QueueError."""
    kind = Outbox if config.is_shared else SqliteQueue
    return kind(folder.queue, limit=config.queue_limit, on_mended=tell)


def link_engine(folder: OnlineFolder, config: OnlineConfig, shown: SqliteQueue, tell: Tell) -> QueueLink | None:
    """What keeps the engine's queue and the shared one in step, started; None without one. Raises QueueError."""
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
    """What policies were shown, on this machine or on any that shares the queue."""
    exchange = Exchange(config.shared_files) if config.is_shared and config.shared_files is not None else None
    return ImageFolder(folder.images, exchange)


def shared_files(folder: OnlineFolder, config: OnlineConfig, queue: UpdateQueue) -> SharedFiles | None:
    """What machines that share a queue exchange beside it; None for a run that is alone."""
    if not config.is_shared or config.shared_files is None:
        return None
    return SharedFiles(Exchange(config.shared_files), queue, folder, keep=config.keep_snapshots)


def snapshot_reader(folder: OnlineFolder, config: OnlineConfig, tell: Tell) -> SnapshotReader:
    """Finds the newest version, of this machine or of all. Raises QueueError."""
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
