"""Snapshots and states that several machines share, through the exchange and the queue's facts.

A snapshot is published when the fact `snapshot` names it, a state counts when the fact `state` does. A replaced worker
can set neither, and its files have names that are never read.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import xxhash
from torch import Tensor

from ...runs.durable import make_folder
from .exchange import Exchange, ExchangeError
from .folder import OnlineFolder
from .snapshots import Manifest, Snapshot, SnapshotError, SnapshotReader, install, pointed_version, prune
from .update_queue import QueueError, UpdateQueue

_OFFERED = re.compile(r"v(\d+)\.[0-9a-f]{32}\.json")
_STATE = re.compile(r"state\.(\d+)-(\d+)\.[0-9a-f]{32}\.safetensors")


class SharedFiles:
    """One process's view of them. Methods raise QueueError when they or the queue are unavailable."""

    def __init__(self, exchange: Exchange, queue: UpdateQueue, folder: OnlineFolder, *, keep: int) -> None:
        self.exchange = exchange
        self.queue = queue
        self.folder = folder
        self.keep = keep

    def lead(self, parameters: Mapping[str, Tensor]) -> None:
        """Become the active worker. Raises QueueError when the queue belongs to a policy with other `parameters`."""
        shapes = "\n".join(f"{name} {tuple(tensor.shape)}" for name, tensor in sorted(parameters.items()))
        policy = xxhash.xxh3_128_hexdigest(shapes.encode())
        if self.queue.get("policy", policy) != policy:
            raise QueueError(
                "The shared queue is of another policy, whose adapters have other names or shapes: give this one a "
                "name of its own (online.queue_name)."
            )
        self.queue.lead()
        self.queue.set(policy=policy)

    # --------------------------------------------------------------------------------------------------- snapshots

    def offer_snapshot(self, tensors: Path, manifest: Manifest) -> None:
        """Publish a version: first its files, then the fact. Raises SnapshotError, and the version is not published."""
        name = f"v{manifest.version}.{manifest.checksum}"
        try:
            self.exchange.put(tensors, f"snapshots/{name}.safetensors")
            self.exchange.write(f"snapshots/{name}.json", manifest.to_bytes())
            self.queue.set(snapshot={"version": manifest.version, "name": name})
        except QueueError as error:
            raise SnapshotError(f"Version {manifest.version} could not be published. {error}") from error

    def fetch_snapshot(self) -> bool:
        """Fetch the published version and check it. Returns False when there is nothing new. Raises SnapshotError when
        it is damaged.
        """
        published = self.queue.get("snapshot")
        here = pointed_version(self.folder.snapshots) or 0
        if not isinstance(published, dict) or int(published["version"]) <= here:
            return False
        self._fetch(str(published["name"]))
        protected = int(self.queue.get("validated", 0))
        prune(self.folder.snapshots, self.keep, [protected])
        return True

    def newest_snapshot(self, tell: Callable[[str], None]) -> int:
        """Fetch the published version for a new worker, or the newest whole one. Returns the highest number that was
        used.
        """
        published = self.queue.get("snapshot")
        used = int(published["version"]) if isinstance(published, dict) else 0
        try:
            self.fetch_snapshot()
        except SnapshotError as error:
            tell(str(error))
        offered = sorted(self._offered(), reverse=True)
        for version, name in offered:
            if version <= (pointed_version(self.folder.snapshots) or 0):
                break
            if published is None or version < used:
                with contextlib.suppress(SnapshotError):
                    self._fetch(name)
        return max([used, *(version for version, _ in offered)])

    def prune_snapshots(self, protect: Iterable[int]) -> None:
        """Delete versions older than the newest `keep`. A replaced worker deletes none of its successor's."""
        try:
            found = sorted(self._offered())
        except ExchangeError:
            return
        for version, name in found[: -self.keep]:
            if version not in protect:
                self.exchange.remove(f"snapshots/{name}.json")
                self.exchange.remove(f"snapshots/{name}.safetensors")

    def _offered(self) -> list[tuple[int, str]]:
        names = self.exchange.names("snapshots")
        return [(int(m[1]), n.removesuffix(".json")) for n in names if (m := _OFFERED.fullmatch(n))]

    def _fetch(self, name: str) -> None:
        try:
            offered = _OFFERED.fullmatch(f"{name}.json")
            manifest = Manifest.from_bytes(self.exchange.read(f"snapshots/{name}.json") or b"")
            if offered is None or int(offered[1]) != manifest.version:
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

    def put_state(self, name: str) -> None:
        self.exchange.put(self.folder.state / name, f"states/{name}")

    def fetch_states(self, counts: str | None, candidate: str | None) -> None:
        """Fetch the committed state and the candidate's. If the former is lost, fetch the newest ones."""
        wanted = [name for name in (counts, candidate) if name]
        if counts is None or not self._fetch_state(counts):
            wanted += _by_age(self.exchange.names("states"))[:2]
        for name in wanted:
            self._fetch_state(name)

    def _fetch_state(self, name: str) -> bool:
        """Return whether the state exists here now."""
        path = self.folder.state / name
        if not _STATE.fullmatch(name):  # it comes out of a queue: it must not lead elsewhere
            return False
        return path.exists() or self.exchange.get(f"states/{name}", path)

    def prune_states(self, counts: str, keep: str | None) -> None:
        """Delete states older than `counts` and its predecessor."""
        try:
            names = _by_age(self.exchange.names("states"))
        except ExchangeError:
            return
        if counts in names:
            for name in names[names.index(counts) + 2 :]:
                if name != keep:
                    self.exchange.remove(f"states/{name}")


class SharedReader(SnapshotReader):
    """Reads the copies in the run's folder, after fetching new ones."""

    def __init__(self, shared: SharedFiles, on_problem: Callable[[str], None] | None = None) -> None:
        super().__init__(shared.folder.snapshots, on_problem)
        self._shared = shared

    def newer_than(self, version: int) -> Snapshot | None:
        try:
            self._shared.fetch_snapshot()
        except (ExchangeError, SnapshotError) as error:
            self._report(str(error).rstrip("."))
        except QueueError:
            pass  # the link to the queue says so
        return super().newer_than(version)


def _by_age(names: Iterable[str]) -> list[str]:
    """Sort states, newest first."""
    found = [(int(m[1]), int(m[2]), n) for n in names if (m := _STATE.fullmatch(n))]
    return [name for *_, name in sorted(found, reverse=True)]
