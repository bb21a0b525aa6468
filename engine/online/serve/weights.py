"""The served weights: snapshots are read and checked on a thread, and swapped in between two requests."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from ...agents.remote.pool import Standing
from ...policy.forward import device_of
from ..store.snapshots import Manifest, Snapshot, SnapshotError, SnapshotReader, check_fit, weights_in_place

log = logging.getLogger(__name__)


class WeightFollower:
    """Follows the pointer on its own thread. `swap` exchanges references between two requests.

    All methods but `look` are for the engine's thread. `on_problem` receives a message for a damaged or unsuitable
    snapshot; the present version then stays.
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
        """Version 0: the policy as it was loaded. Swaps replace data by reference, so these tensors stay unchanged."""
        self._device = str(device_of(model))
        self._reader = reader
        self._poll_s = poll_s
        self._on_problem = on_problem
        self._ready: tuple[Manifest, dict[str, Tensor]] | None = None
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._seen = 0
        self.version = 0
        """The served version; 0 is the policy as it was loaded."""
        self._thread = threading.Thread(target=self._follow, name="snapshots", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def look(self) -> None:
        """Read the newest snapshot, if it is new; `swap` puts it in place."""
        snapshot = self._reader.newer_than(self._seen)
        if snapshot is None:
            return
        with snapshot:
            self._seen = snapshot.version
            try:
                ready = self._fitting(snapshot)
            except SnapshotError as error:
                self._on_problem(f"{error}.")
                return
            with self._lock:
                self._ready = snapshot.manifest, ready

    @property
    def waits(self) -> bool:
        return self._ready is not None

    def weights(self, version: int) -> dict[str, Tensor]:
        """Return a version's weights, by reference for the served one. Raises SnapshotError."""
        if version == self.version:
            return {name: parameter.data for name, parameter in self._parameters.items()}
        return self._tensors(version)

    def swap(self) -> Manifest | None:
        """Put the last snapshot in place; None when there is none. No session may be open."""
        ready = self._take_ready()
        if ready is None:
            return None
        manifest, tensors = ready
        self._put(tensors)
        self.version = manifest.version
        return manifest

    def away(self) -> str:
        """Return the reason why the policy is unavailable; empty when it is available."""
        return ""

    def servers(self) -> Standing | None:
        """Return the availability of the rollout servers, on any thread; None without them."""
        return None

    @contextlib.contextmanager
    def scoring(self, version: int | None) -> Iterator[int]:
        """Put another version's weights into the model here. None and the served version change nothing.

        Yields the version. Raises SnapshotError when it is missing or does not fit. No session may be open.
        """
        if version is None or version == self.version:
            yield self.version
            return
        with self.holding(self._tensors(version)):
            yield version

    serving = scoring
    """Use another version for an answer. Rollout servers need more than the weights here (`PooledWeights`)."""

    def _take_ready(self) -> tuple[Manifest, dict[str, Tensor]] | None:
        with self._lock:
            ready, self._ready = self._ready, None
        return ready

    def _put(self, tensors: Mapping[str, Tensor]) -> None:
        for name, parameter in self._parameters.items():
            parameter.data = tensors[name]

    def holding(self, tensors: Mapping[str, Tensor]) -> contextlib.AbstractContextManager[None]:
        return weights_in_place(self._parameters, tensors)

    def _tensors(self, version: int) -> dict[str, Tensor]:
        """Return a version's weights. Raises SnapshotError when it is missing or does not fit."""
        if version == 0:
            return self._start
        try:
            with self._reader.open(version) as snapshot:
                return self._fitting(snapshot)
        except OSError as error:
            raise SnapshotError(f"Snapshot {version} is not there any more") from error

    def _fitting(self, snapshot: Snapshot) -> dict[str, Tensor]:
        """Return a snapshot's weights in the model's formats. Raises SnapshotError when they do not fit."""
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
                log.exception("looking for snapshots failed. It is tried again.")
