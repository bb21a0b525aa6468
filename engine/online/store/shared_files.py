"""Snapshots and states of a policy that several machines serve and teach, through the exchange and the queue's facts.

The queue decides: a snapshot is published when the fact `snapshot` names it, a state counts when the fact `state` does,
and a worker that was replaced can set neither. Whatever it left in the exchange has a name that nobody reads.
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
    """One process's view of them. Raises QueueError where they or the queue cannot be reached."""

    def __init__(self, exchange: Exchange, queue: UpdateQueue, folder: OnlineFolder, *, keep: int) -> None:
        self.exchange = exchange
        self.queue = queue
        self.folder = folder
        self.keep = keep

    def lead(self, parameters: Mapping[str, Tensor]) -> None:
        """Become the one worker, unless the queue is of a policy with other `parameters`. Raises QueueError."""
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
        """Publish a version: its files first, then the fact. Raises SnapshotError, and the version is not published."""
        name = f"v{manifest.version}.{manifest.checksum}"
        try:
            self.exchange.put(tensors, f"snapshots/{name}.safetensors")
            self.exchange.write(f"snapshots/{name}.json", manifest.to_bytes())
            self.queue.set(snapshot={"version": manifest.version, "name": name})
        except QueueError as error:
            raise SnapshotError(f"Version {manifest.version} could not be published. {error}") from error

    def fetch_snapshot(self) -> bool:
        """Bring the published version here, checked; False when it is here already, or nothing is published.

        Raises SnapshotError when it is damaged.
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
        """For a worker that begins: bring the published version here or, if that is lost or damaged, the newest whole
        one; returns the highest number that was used."""
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
        """Delete what the newest versions have outlived. Only older ones go, so a worker that was replaced and does not
        know it takes nothing from the one that works now."""
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
        """Let other machines have a state of this one."""
        self.exchange.put(self.folder.state / name, f"states/{name}")

    def fetch_states(self, counts: str | None, candidate: str | None) -> None:
        """Bring the state that counts here, and the one that waits for validation. Where the former is lost, the newest
        ones that are there."""
        wanted = [name for name in (counts, candidate) if name]
        if counts is None or not self._fetch_state(counts):
            wanted += _by_age(self.exchange.names("states"))[:2]
        for name in wanted:
            self._fetch_state(name)

    def _fetch_state(self, name: str) -> bool:
        """Whether the state is here now."""
        path = self.folder.state / name
        if not _STATE.fullmatch(name):  # it comes out of a queue: it must not lead elsewhere
            return False
        return path.exists() or self.exchange.get(f"states/{name}", path)

    def prune_states(self, counts: str, keep: str | None) -> None:
        """Delete the states before the one that `counts` and its predecessor; never a later one (`prune_snapshots`)."""
        try:
            names = _by_age(self.exchange.names("states"))
        except ExchangeError:
            return
        if counts in names:
            for name in names[names.index(counts) + 2 :]:
                if name != keep:
                    self.exchange.remove(f"states/{name}")


class SharedReader(SnapshotReader):
    """Reads the copies in the run's folder, after bringing there what was published."""

    def __init__(self, shared: SharedFiles, on_problem: Callable[[str], None] | None = None) -> None:
        super().__init__(shared.folder.snapshots, on_problem)
        self._shared = shared

    def newer_than(self, version: int) -> Snapshot | None:
        """See `SnapshotReader.newer_than`."""
        try:
            self._shared.fetch_snapshot()
        except (ExchangeError, SnapshotError) as error:
            self._report(str(error).rstrip("."))
        except QueueError:
            pass  # the link to the queue says so
        return super().newer_than(version)


def _by_age(names: Iterable[str]) -> list[str]:
    """States, newest first: by update, then by time."""
    found = [(int(m[1]), int(m[2]), n) for n in names if (m := _STATE.fullmatch(n))]
    return [name for *_, name in sorted(found, reverse=True)]
