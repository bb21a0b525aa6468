"""The served weights: a thread reads and checks snapshots, which are swapped in between two requests.

With rollout servers, the weights are loaded twice: by the servers, which answer, and here, where answers are scored.
For each version: 1. The follower's thread reads and checks a snapshot. 2. Between two requests, the model here computes
the version's log-probs of a fixed text. 3. A thread writes the adapters to a folder, and every available server must
load them and prove it. 4. Between two requests, the servers' version and the weights here change together. 5. The
thread unloads the previous version, and deletes its folder when the next one comes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass

from peft import PeftModel
from torch import Tensor, nn

from ...agents.remote.adapters import Adapter, AdapterError
from ...agents.remote.agent import RemoteAgent
from ...agents.remote.protocol import ServerRefusal
from ...agents.remote.server import NOT_ASKED, Standing
from ...policy.unwrap import device_of
from ..store.snapshots import Manifest, Snapshot, SnapshotError, SnapshotReader, check_fit, weights_in_place

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""Pause before another attempt to write a version to the rollout servers."""


class WeightFollower:
    """Follows the snapshot pointer on its own thread. `swap` exchanges references between two requests.

    All methods except `look` are for the engine's thread. on_problem: receives a message about a damaged or unsuitable
    snapshot; the current version then stays.
    """

    def __init__(
        self,
        model: nn.Module,
        reader: SnapshotReader,
        *,
        poll_s: float,
        on_problem: Callable[[str], None] = log.warning,
    ) -> None:
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._start = {n: p.data for n, p in self._parameters.items()}
        """Version 0: the policy as loaded. Swaps replace data by reference, so these tensors never change."""
        self._served: Mapping[str, Tensor] = self._start
        self._device = str(device_of(model))
        self._reader = reader
        self._poll_s = poll_s
        self._on_problem = on_problem
        self._ready: tuple[Manifest, dict[str, Tensor]] | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._seen = 0
        self.version = 0
        """The served version. 0 is the policy as loaded."""
        self._thread = threading.Thread(target=self._follow, name="snapshots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> None:
        """Read the newest snapshot if it is new. `swap` puts it in place."""
        snapshot = self._reader.newer_than(self._seen)
        if snapshot is None:
            return
        with snapshot:
            try:
                ready = self._fitting(snapshot)
                with self._lock:
                    self._ready = snapshot.manifest, ready
            except SnapshotError as error:
                self._on_problem(f"{error}.")
            self._seen = snapshot.version

    @property
    def waits(self) -> bool:
        return self._ready is not None

    def weights(self, version: int) -> dict[str, Tensor]:
        """Return a version's weights, by reference for the served version. Raises SnapshotError."""
        return dict(self._served) if version == self.version else self._tensors(version)

    def swap(self) -> Manifest | None:
        """Put the last snapshot in place and return its manifest; None if there is none. No session may be open."""
        ready = self._take_ready()
        if ready is None:
            return None
        manifest, tensors = ready
        self._put(tensors)
        self.version = manifest.version
        return manifest

    def away(self) -> str:
        """Return the reason why the policy is unavailable; empty if it is available."""
        return ""

    def servers(self) -> Standing | None:
        """Return the availability of the rollout servers; None without servers. Usable from any thread."""
        return None

    @contextlib.contextmanager
    def scoring(self, version: int | None) -> Iterator[int]:
        """Put another version's weights into the model here, inside the block. None means the served version.

        Yields the version. Raises SnapshotError if it is missing or does not fit. No session may be open.
        """
        if version is None or version == self.version:
            yield self.version
            return
        with self.holding(self._tensors(version)):
            yield version

    serving = scoring
    """Use another version for answers. With rollout servers, this also involves the servers (`PooledWeights`)."""

    def _take_ready(self) -> tuple[Manifest, dict[str, Tensor]] | None:
        with self._lock:
            ready, self._ready = self._ready, None
        return ready

    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        self._served = tensors
        for name, parameter in self._parameters.items():
            parameter.data = tensors[name]

    def holding(self, tensors: Mapping[str, Tensor]) -> contextlib.AbstractContextManager[None]:
        return weights_in_place(self._parameters, tensors)

    def _tensors(self, version: int) -> dict[str, Tensor]:
        """Load a version's weights. Raises SnapshotError if it is missing or does not fit."""
        if version == 0:
            return self._start
        try:
            with self._reader.open(version) as snapshot:
                return self._fitting(snapshot)
        except OSError as error:
            raise SnapshotError(f"Snapshot {version} no longer exists") from error

    def _fitting(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """Return a snapshot's weights in the model's dtypes. Raises SnapshotError if they do not fit."""
        tensors = snapshot.tensors(self._device)
        try:
            check_fit(self._parameters, tensors)
        except ValueError as error:
            raise SnapshotError(f"Snapshot {snapshot.version} cannot be served: {error}") from error
        return {n: t.to(self._parameters[n].dtype) for n, t in tensors.items()}

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)

    def _follow(self) -> None:
        while not self._stop.wait(self._poll_s):
            try:
                self.look()
            except Exception:
                log.exception("looking for snapshots failed. Retrying.")


@dataclass(frozen=True)
class _Offered:
    """A version that servers are loading. manifest: None for the policy as loaded."""

    version: int
    manifest: Manifest | None
    tensors: dict[str, Tensor]
    adapter: Future[Adapter]


class PooledWeights(WeightFollower):
    """Follows the snapshot pointer for the servers of `agent` and for its model here."""

    def __init__(
        self,
        agent: RemoteAgent,
        reader: SnapshotReader,
        *,
        poll_s: float,
        on_problem: Callable[[str], None] = log.warning,
    ) -> None:
        super().__init__(agent.model, reader, poll_s=poll_s, on_problem=on_problem)
        self._model: PeftModel = agent.model
        self._agent = agent
        self._publisher = agent.publisher
        self._work = ThreadPoolExecutor(1, thread_name_prefix="versions")
        self._offered: _Offered | None = None
        self._not_before = 0.0
        self._last_message = ""

    @property
    def waits(self) -> bool:
        """Always True, because `swap` also manages the servers."""
        return True

    def swap(self) -> Manifest | None:
        """Change to the next version once every available server has it; return None until then.

        Raises ServerRefusal if no server accepts the first version.
        """
        changed = self._change()
        if self._offered is None and time.monotonic() >= self._not_before:
            ready = self._take_ready()
            if ready is not None:
                self._offer(ready[0].version, *ready)
            elif self._publisher.current is None:
                self._offer(self.version, None, self._start)
        return changed

    def away(self) -> str:
        standing = self.servers()
        if not standing.up and set(standing.out.values()) != {NOT_ASKED}:
            return f"no rollout server is available ({standing.reasons})"
        if self._publisher.current is None:
            return "the rollout servers are loading the first version"
        return ""

    def servers(self) -> Standing:
        return self._agent.pool.standing()

    @contextlib.contextmanager
    def serving(self, version: int | None) -> Iterator[int]:
        """Use another version for answers inside the block, on the servers and here."""
        with self.scoring(version) as chosen:
            if chosen == self.version:
                yield chosen
                return
            adapter = self._publisher.hold(chosen) or self._load_now(chosen)
            try:
                with self._agent.acting_as(adapter):
                    yield chosen
            finally:
                self._publisher.release(adapter)

    def stop(self) -> None:
        """Stop the threads and unload all versions."""
        super().stop()
        self._work.shutdown(wait=False, cancel_futures=True)
        self._publisher.end()
        self._work.shutdown()
        self._agent.close()

    # ---------------------------------------------------------------------------------------------- a change of version

    def _offer(self, version: int, manifest: Manifest | None, tensors: dict[str, Tensor]) -> None:
        with self.holding(tensors):
            probe = self._publisher.probe(self._model)
        adapter = self._work.submit(self._publisher.offer, self._model, version, probe, tensors, patient=True)
        self._offered = _Offered(version, manifest, tensors, adapter)

    def _change(self) -> Manifest | None:
        """Change to the offered version if all available servers have it."""
        offered = self._offered
        if offered is None or not offered.adapter.done():
            return None
        self._offered = None
        try:
            adapter = offered.adapter.result()
        except AdapterError as problem:
            self._tell(f"{problem}. Retrying.")
            with self._lock:
                if self._ready is None and offered.manifest is not None:
                    self._ready = offered.manifest, offered.tensors
            self._not_before = time.monotonic() + AGAIN_S
            return None
        except ServerRefusal as problem:
            if self._publisher.current is None:
                raise
            self._tell(f"Version {offered.version} is not served: {problem}. Version {self.version} keeps answering.")
            return None
        self._put(offered.tensors)
        self.version = offered.version
        self._publisher.current = adapter
        self._publisher.release(adapter)
        self._work.submit(self._retire)
        return offered.manifest

    def _load_now(self, version: int) -> Adapter:
        """Offer an older version, whose weights are in the model here, while the caller waits.

        Raises SnapshotError if the servers do not load it in time.
        """
        tensors = {name: parameter.data for name, parameter in self._parameters.items()}
        probe = self._publisher.probe(self._model)
        offer = self._work.submit(self._publisher.offer, self._model, version, probe, tensors)
        try:
            return offer.result(timeout=self._agent.pool.request_timeout_s)
        except TimeoutError:
            if not offer.cancel():
                offer.add_done_callback(self._give_up)
            raise SnapshotError("the rollout servers are loading another one. Try again later.") from None
        except (AdapterError, ServerRefusal) as problem:
            raise SnapshotError(str(problem)) from problem
        finally:
            self._work.submit(self._retire)

    def _give_up(self, offer: Future[Adapter]) -> None:
        """Release a version that was loaded too late."""
        if not offer.cancelled() and offer.exception() is None:
            self._publisher.release(offer.result())

    def _retire(self) -> None:
        try:
            self._publisher.retire()
        except CancelledError:
            return
        except Exception:
            log.exception("an older version could not be removed from the servers. Retrying.")

    def _tell(self, sentence: str) -> None:
        """Report a message unless it repeats the last one."""
        if sentence != self._last_message:
            self._last_message = sentence
            self._on_problem(sentence)
