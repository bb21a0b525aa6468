"""Weights that are served twice: by rollout servers, which answer, and here, where answers are scored.

For each version: 1. The follower's thread reads and checks a snapshot (`weights.py`). 2. Between two requests, the
model here computes the version's log-probs of a fixed text. 3. A thread writes the adapters into a folder, and every
available server has to load and prove them. 4. Between two requests, the servers' version and the weights here change
together. 5. The thread unloads the previous version, and deletes its folder when the next one comes.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass

from peft import PeftModel
from torch import Tensor

from ...agents.remote.adapters import Adapter, AdapterError
from ...agents.remote.agent import RemoteAgent
from ...agents.remote.pool import NOT_ASKED, Standing
from ...agents.remote.protocol import ServerRefusal
from ..store.snapshots import Manifest, SnapshotError, SnapshotReader
from .weights import WeightFollower

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""Pause before another attempt to write a version."""


@dataclass(frozen=True)
class _Offered:
    """A version that servers are loading. manifest: None for the policy as it was loaded."""

    version: int
    manifest: Manifest | None
    tensors: dict[str, Tensor]
    adapter: Future[Adapter]


class PooledWeights(WeightFollower):
    """Follows the pointer for the servers of `agent` and for its model here."""

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
        self._told = ""

    @property
    def waits(self) -> bool:
        """Always True: `swap` also manages the servers."""
        return True

    def swap(self) -> Manifest | None:
        """Change to a version once every available server has it; None when there is none yet.

        Raises ServerRefusal where no server takes the first version.
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
            return f"no rollout server is in ({standing.reasons})"
        if self._publisher.current is None:
            return "the rollout servers are taking in the first version"
        return ""

    def servers(self) -> Standing:
        return self._agent.pool.standing()

    @contextlib.contextmanager
    def serving(self, version: int | None) -> Iterator[int]:
        """Use another version for an answer, on the servers and here."""
        with self.scoring(version) as chosen:
            if chosen == self.version:
                yield chosen
                return
            adapter = self._publisher.hold(chosen) or self._given_now(chosen)
            try:
                with self._agent.acting_as(adapter):
                    yield chosen
            finally:
                self._publisher.release(adapter)

    def stop(self) -> None:
        """End the thread, and unload all versions."""
        super().stop()
        self._work.shutdown(wait=False, cancel_futures=True)
        self._publisher.end()
        self._work.shutdown()
        self._agent.close()

    # ------------------------------------------------------------------------------------------------ in this order

    def _offer(self, version: int, manifest: Manifest | None, tensors: dict[str, Tensor]) -> None:
        with self.holding(tensors):
            said = self._publisher.probe(self._model)
        adapter = self._work.submit(self._publisher.offer, self._model, version, said, tensors, patient=True)
        self._offered = _Offered(version, manifest, tensors, adapter)

    def _change(self) -> Manifest | None:
        """Change to the offered version if all servers have it."""
        offered = self._offered
        if offered is None or not offered.adapter.done():
            return None
        self._offered = None
        try:
            adapter = offered.adapter.result()
        except AdapterError as problem:
            self._tell(f"{problem}. It is tried again.")
            with self._lock:
                if self._ready is None and offered.manifest is not None:
                    self._ready = offered.manifest, offered.tensors
            self._not_before = time.monotonic() + AGAIN_S
            return None
        except ServerRefusal as problem:
            if self._publisher.current is None:
                raise
            self._tell(f"Version {offered.version} is not served: {problem}. Version {self.version} goes on answering.")
            return None
        self._put(offered.tensors)
        self.version = offered.version
        self._publisher.current = adapter
        self._publisher.release(adapter)
        self._work.submit(self._retire)
        return offered.manifest

    def _given_now(self, version: int) -> Adapter:
        """Offer an older version, whose weights are in the model here, while the caller waits.

        Raises SnapshotError when the servers do not take it in time.
        """
        tensors = {name: parameter.data for name, parameter in self._parameters.items()}
        said = self._publisher.probe(self._model)
        given = self._work.submit(self._publisher.offer, self._model, version, said, tensors)
        try:
            return given.result(timeout=self._agent.pool.request_timeout_s)
        except TimeoutError:
            if not given.cancel():
                given.add_done_callback(self._give_up)
            raise SnapshotError("the rollout servers are taking in another one. Try again later.") from None
        except (AdapterError, ServerRefusal) as problem:
            raise SnapshotError(str(problem)) from problem
        finally:
            self._work.submit(self._retire)

    def _give_up(self, given: Future[Adapter]) -> None:
        """Release a version that came too late."""
        if not given.cancelled() and given.exception() is None:
            self._publisher.release(given.result())

    def _retire(self) -> None:
        try:
            self._publisher.retire()
        except CancelledError:
            return
        except Exception:
            log.exception("an older version could not be taken away from the servers. It is tried again.")

    def _tell(self, sentence: str) -> None:
        """Report a message unless it repeats the last one."""
        if sentence != self._told:
            self._told = sentence
            self._on_problem(sentence)
