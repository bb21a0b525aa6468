"""The store of a run whose queue is on a Redis server: snapshots and states shared by several machines.

A snapshot is published once the fact `snapshot` names it, and a state is valid once the fact `state` does. A replaced
worker can set neither, and the files that it writes are never read.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import xxhash
from torch import Tensor

from ....configs.sections.online import OnlineConfig
from ...launch.redis_server import queue_url
from ...runs.durable import make_folder
from ...runs.paths import OnlineFolder
from ...runs.schema import JOURNAL_POSITION, recorded_position
from ..learn.worker_state import STATE_NAME, newest_first
from ..store.images import ImageFolder
from ..store.opening import RunStore
from ..store.snapshots import Manifest, Snapshot, SnapshotError, SnapshotReader, install, pointed_version, prune
from ..store.sqlite_queue import SqliteQueue
from ..store.update_queue import QueueError, UpdateQueue
from ..store.update_task import UpdateTask
from .exchange import Exchange, ExchangeError
from .outbox import Outbox, QueueLink
from .redis_queue import RedisQueue

log = logging.getLogger(__name__)

_OFFERED = re.compile(r"v(\d+)\.[0-9a-f]{32}\.json")


class SharedStore(RunStore):
    """The store of one process. Methods raise QueueError while the exchange or the queue is unavailable."""

    def __init__(self, folder: OnlineFolder, config: OnlineConfig, tell: Callable[[str], None] = log.warning) -> None:
        super().__init__(folder, config, tell)
        self.name = f"{socket.gethostname()}/{folder.run_dir.name}"
        self.exchange = Exchange(config.shared_files or "")  # `configs.checks` requires one
        self.images = ImageFolder(folder.images, self.exchange.get)
        self.queue: UpdateQueue
        """Opened by `reader` or given to `lead`."""

    def open_engine_queue(self) -> Outbox:
        return Outbox(self.folder.queue, limit=self.config.queue_limit, on_repaired=self.tell)

    def link(self, queue: SqliteQueue) -> Callable[[], None]:
        assert isinstance(queue, Outbox)

        def share_images(payload: bytes) -> None:
            for name in UpdateTask.images(payload):
                if (path := self.images.path(name)).exists():
                    self.exchange.put(path, f"images/{path.name}")

        link = QueueLink(
            self.open_engine_queue(),
            self.open_queue(),
            self.name,
            poll_s=self.config.poll_interval_s,
            recorded=recorded_position(self.folder.run_dir, JOURNAL_POSITION),
            shown=queue,
            before=lambda task: share_images(task.payload),
            tell=self.tell,
        )
        link.start()
        return link.close

    def reader(self) -> SnapshotReader:
        self.queue = self.open_queue()
        return SharedReader(self)

    def open_queue(self, *, check: bool = False) -> RedisQueue:
        config = self.config
        try:
            url = queue_url(config)
        except ValueError as error:
            raise QueueError(f"{error}.") from error
        return RedisQueue(url, config.queue_name, limit=config.queue_limit, lease_s=config.lease_s, tell=self.tell)

    def lead(self, parameters: Mapping[str, Tensor], queue: UpdateQueue) -> None:
        shapes = "\n".join(f"{name} {tuple(tensor.shape)}" for name, tensor in sorted(parameters.items()))
        policy = xxhash.xxh3_128_hexdigest(shapes.encode())
        if queue.get("policy", policy) != policy:
            raise QueueError(
                "The shared queue belongs to another policy, whose adapters have other names or shapes: set another "
                "online.queue_name."
            )
        queue.lead()
        queue.set(policy=policy)
        self.queue = queue

    def prune_states(self, counts: str, keep: str | None) -> None:
        with contextlib.suppress(ExchangeError):
            names = self._states()
            for name in names[names.index(counts) + 2 :] if counts in names else []:
                if name != keep:
                    self.exchange.remove(f"states/{name}")

    def prune_snapshots(self, protect: Iterable[int]) -> None:
        super().prune_snapshots(protect)
        with contextlib.suppress(ExchangeError):
            for version, name in sorted(self._offered())[: -self.config.keep_snapshots]:
                if version not in protect:
                    self.exchange.remove(f"snapshots/{name}.json")
                    self.exchange.remove(f"snapshots/{name}.safetensors")

    # --------------------------------------------------------------------------------------------------- snapshots

    def offer_snapshot(self, tensors: Path, manifest: Manifest) -> None:
        """Publish a version: first its files, then the fact. Raises SnapshotError if it could not be published."""
        name = f"v{manifest.version}.{manifest.checksum}"
        try:
            self.exchange.put(tensors, f"snapshots/{name}.safetensors")
            self.exchange.write(f"snapshots/{name}.json", manifest.to_bytes())
            self.queue.set(snapshot={"version": manifest.version, "name": name})
        except QueueError as error:
            raise SnapshotError(f"Version {manifest.version} could not be published. {error}") from error

    def _published(self) -> tuple[int, str]:
        """Return the published version and the name of its files; (0, "") if there is none."""
        published = self.queue.get("snapshot")
        return (int(published["version"]), str(published["name"])) if isinstance(published, dict) else (0, "")

    def fetch_snapshot(self) -> None:
        """Fetch and check the published version if it is new. Raises SnapshotError if it is damaged."""
        version, name = self._published()
        if version > (pointed_version(self.folder.snapshots) or 0):
            self._fetch(name)
            prune(self.folder.snapshots, self.config.keep_snapshots, [int(self.queue.get("validated", 0))])

    def fetch(self, state: str | None, candidate: str | None) -> int:
        names = [name for name in (state, candidate) if name]
        if state is None or not self._fetch_state(state):
            names += self._states()[:2]
        for name in names:
            self._fetch_state(name)
        used, _ = self._published()
        try:
            self.fetch_snapshot()
        except SnapshotError as error:
            self.tell(str(error))
        snapshots = sorted(self._offered(), reverse=True)
        for version, name in snapshots:
            if version <= (pointed_version(self.folder.snapshots) or 0):
                break
            if not used or version < used:
                with contextlib.suppress(SnapshotError):
                    self._fetch(name)
        return max([used, *(version for version, _ in snapshots)])

    def _offered(self) -> list[tuple[int, str]]:
        names = self.exchange.names("snapshots")
        return [(int(m[1]), n.removesuffix(".json")) for n in names if (m := _OFFERED.fullmatch(n))]

    def _fetch(self, name: str) -> None:
        try:
            match = _OFFERED.fullmatch(f"{name}.json")
            manifest = Manifest.from_bytes(self.exchange.read(f"snapshots/{name}.json") or b"")
            if match is None or int(match[1]) != manifest.version:
                raise ValueError("it is of another version")
        except ValueError as error:
            raise SnapshotError(f"Snapshot {name} has no readable manifest in {self.exchange.place}.") from error
        folder = self.folder.snapshots
        temporary = folder / f".ema_model_snapshot.v{manifest.version}.{os.getpid()}.fetched"
        try:
            make_folder(folder)
            if not self.exchange.get(f"snapshots/{name}.safetensors", temporary):
                raise SnapshotError(f"Snapshot {name} is not in {self.exchange.place}.")
            install(folder, temporary, manifest)
        except OSError as error:
            raise SnapshotError(f"Snapshot {name} cannot be kept in {folder}: {error.strerror}.") from error
        finally:
            temporary.unlink(missing_ok=True)

    # ------------------------------------------------------------------------------------------------------ states

    def _states(self) -> list[str]:
        return [name for _, name in newest_first(self.exchange.names("states"))]

    def put_state(self, name: str) -> None:
        self.exchange.put(self.folder.state / name, f"states/{name}")

    def _fetch_state(self, name: str) -> bool:
        """Fetch a state if it is not here yet. Returns whether it is here now."""
        path = self.folder.state / name
        if not STATE_NAME.fullmatch(name):  # the name comes from a queue and must not lead to another path
            return False
        return path.exists() or self.exchange.get(f"states/{name}", path)


class SharedReader(SnapshotReader):
    """Fetches new snapshots, and reads the copies in the run's folder."""

    def __init__(self, store: SharedStore) -> None:
        super().__init__(store.folder.snapshots, store.tell)
        self._store = store

    def newer_than(self, version: int) -> Snapshot | None:
        try:
            self._store.fetch_snapshot()
        except (ExchangeError, SnapshotError) as error:
            self._report(str(error).rstrip("."))
        except QueueError:
            pass  # the link to the queue reports it
        return super().newer_than(version)
