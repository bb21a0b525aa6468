"""Weights that are served twice: by rollout servers, which answer, and here, where that version scores what they wrote.

One version after the other, in this order:

1. the follower's thread reads a snapshot and checks it (`weights.py`)
2. between two requests, the model here says of a fixed text what that version says of it
3. a thread writes the version's adapters into a folder of their own, and every server that is in has to load and prove
   them; requests go on with the version before
4. between two requests, both change together: what servers are asked for, and the weights here
5. the thread has the version before unloaded, and its folder deleted when the next one comes
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
"""The pause before a version that could not be written is tried again."""


@dataclass(frozen=True)
class _Offered:
    """A version that servers are taking in. manifest: None for the policy as it was loaded."""

    version: int
    manifest: Manifest | None
    tensors: dict[str, Tensor]
    adapter: Future[Adapter]


class PooledWeights(WeightFollower):
    """Follows the pointer for the servers of `agent`, and for the model here, which is the agent's."""

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
        """Whether `swap` has something to do: it also looks after the servers."""
        return True

    def swap(self) -> Manifest | None:
        """Change to a version once every server which is in has it; None when there is none, or it is not so far.

        Raises ServerRefusal where no server takes the first version.
        """
        changed = self._change()
        if self._offered is None and time.monotonic() >= self._not_before:
            self._offer_next()
        return changed

    def away(self) -> str:
        """Why nothing can be answered now; empty while it can."""
        standing = self.servers()
        if not standing.up and set(standing.out.values()) != {NOT_ASKED}:
            return f"no rollout server is in ({standing.reasons})"
        if self._publisher.current is None:
            return "the rollout servers are taking in the first version"
        return ""

    def servers(self) -> Standing:
        """How many rollout servers can answer; on any thread."""
        return self._agent.pool.standing()

    @contextlib.contextmanager
    def serving(self, version: int | None) -> Iterator[int]:
        """Another version while something is answered, on the servers and here; see `WeightFollower.serving`."""
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
        """End the thread, and take all versions away from the servers."""
        super().stop()
        self._work.shutdown(wait=False, cancel_futures=True)
        self._publisher.end()
        self._work.shutdown()
        self._agent.close()

    # ------------------------------------------------------------------------------------------------ in this order

    def _offer_next(self) -> None:
        """Begin to give servers what was read; at first, where nothing was, the policy as it was loaded."""
        ready = self._take_ready()
        if ready is not None:
            self._offer(ready[0].version, *ready)
        elif self._publisher.current is None:
            self._offer(self.version, None, self._start)

    def _offer(self, version: int, manifest: Manifest | None, tensors: dict[str, Tensor]) -> None:
        with self.holding(tensors):
            said = self._publisher.probe(self._model)
        adapter = self._work.submit(self._publisher.offer, self._model, version, said, tensors, patient=True)
        self._offered = _Offered(version, manifest, tensors, adapter)

    def _change(self) -> Manifest | None:
        """Change to the version that servers were taking in, if all have it."""
        offered = self._offered
        if offered is None or not offered.adapter.done():
            return None
        self._offered = None
        try:
            adapter = offered.adapter.result()
        except AdapterError as problem:
            self._tell(f"{problem}; it is tried again.")
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
        """An older version, whose weights are in the model here, for the servers: the caller waits, and with it all.

        Raises SnapshotError where they do not take it in time.
        """
        tensors = {name: parameter.data for name, parameter in self._parameters.items()}
        said = self._publisher.probe(self._model)
        given = self._work.submit(self._publisher.offer, self._model, version, said, tensors)
        try:
            return given.result(timeout=self._agent.pool.request_timeout_s)
        except TimeoutError:
            if not given.cancel():
                given.add_done_callback(self._give_up)
            raise SnapshotError("the rollout servers are taking in another one; try again later") from None
        except (AdapterError, ServerRefusal) as problem:
            raise SnapshotError(str(problem)) from problem
        finally:
            self._work.submit(self._retire)

    def _give_up(self, given: Future[Adapter]) -> None:
        """What came too late is needed by nobody."""
        if not given.cancelled() and given.exception() is None:
            self._publisher.release(given.result())

    def _retire(self) -> None:
        try:
            self._publisher.retire()
        except CancelledError:
            return
        except Exception:
            log.exception("an older version could not be taken away from the servers; it is tried again")

    def _tell(self, sentence: str) -> None:
        """Once, until it is another one."""
        if sentence != self._told:
            self._told = sentence
            self._on_problem(sentence)
