"""The update worker's loop: take a task, update, commit, publish. Each task takes effect once, even after a kill.

In the order of a life: 1. The worker takes the lock of the snapshot folder, and the lease of a shared queue. 2. Tasks
that a dead worker had taken are queued again, and its last committed state is loaded (model, EMA, optimiser, beta,
baseline, update number). 3. The logs are brought up to the journal. 4. Updates happen in memory. After `commit_every`
of them the state goes to a new file, and one transaction names that file, settles its tasks and adds their journal
rows. 5. Only committed updates are published.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import asdict

from ....configs.sections.online import OnlineConfig
from ..store.folder import OnlineFolder
from ..store.opening import open_store
from ..store.snapshots import SnapshotWriter
from ..store.update_queue import LeaseLost, Outcome, QueuedTask, QueueError, Settled
from ..store.update_task import TaskError, UpdateTask
from .ledger import Ledger
from .policy_update import PolicyUpdater
from .publisher import Publisher
from .worker_state import recover

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
"""A task is set aside after the worker died this often while it applied the task."""
IDLE_S = 2.0
"""When no task waits, feedback is published this long after it was learnt from, because its author waits for the
effect.
"""


class UpdateWorker:
    """The single writer of a run's model.

    tell: receives messages for the user. check_queue: check the queue for damage although others have it open. Raises
    SnapshotError when another worker of this run is active, LeaseHeld when a worker of another machine is, and
    QueueError when the queue cannot be used.
    """

    def __init__(
        self,
        updater: PolicyUpdater,
        folder: OnlineFolder,
        config: OnlineConfig,
        *,
        base_model: str,
        tell: Callable[[str], None] = log.info,
        check_queue: bool = False,
    ) -> None:
        self.updater = updater
        self.folder = folder
        self.config = config
        self.tell = tell
        self.writer = SnapshotWriter(folder.snapshots, base_model=base_model, keep=config.keep_snapshots)
        self.store = open_store(folder, config, tell)
        if config.is_shared:
            self.writer.offer = self.store.offer_snapshot
        try:
            self.queue = self.store.open_queue(check=check_queue)
        except QueueError:
            self.writer.close()
            raise
        try:
            self._begin()
        except BaseException:
            self.abandon()
            raise

    # ---------------------------------------------------------------------------------------------------- starting

    def _begin(self) -> None:
        if self.queue.repaired is not None:
            self.tell(self.queue.repaired)
        self.store.lead(self.updater.parameters, self.queue)
        self._since_snapshot = 0
        self._feedback_at: float | None = None
        """When feedback was last learnt from that no published or offered version contains."""
        self.ledger = ledger = Ledger(self.updater, self.store, self.queue, self.tell)
        self.publisher = Publisher(ledger, self.writer, self.config)
        logged = ledger.logs.last()
        used = self.store.fetch(self.queue.get("state"), ledger.kept)
        self.writer.version = max(self.writer.version, used)
        ledger.state, lost = recover(self.updater, self.folder, self.queue, logged)
        if lost is not None:
            self.tell(lost)
        self._settle_what_is_logged(logged["update"])
        if ledger.state == self.queue.get("state"):
            ledger.prune_states()
        if self.queue.get("update") is None:
            self.queue.set(update=self.updater.update, state=ledger.state)
        ledger.catch_up(logged["n"])
        self.publisher.recover(max(int(self.queue.get("published", 0)), logged["version"]))

    def _settle_what_is_logged(self, logged: int) -> None:
        """Settle tasks that the logs name but that a queue with lost commits still holds."""
        counted = int(self.queue.get("update", 0))
        if counted >= logged:
            return
        known = self.ledger.logs.experiences(after=counted)
        waiting = [name for name, _ in self.queue.tasks("queued") if name in known]
        reason = "it is in the update logs"
        settled = [Settled(name, "applied" if known[name] else "rejected", reason) for name in waiting]
        self.queue.settle(settled, meta={"update": logged, "state": self.ledger.state})

    # ---------------------------------------------------------------------------------------------------- the loop

    def step(self) -> bool:
        """Process one task. Returns False when none waits; then all work is committed."""
        task = self.queue.take()
        if task is None:
            if self.ledger.waiting:
                self.commit()
            if self._feedback_at is not None and time.monotonic() - self._feedback_at > IDLE_S:
                self.publish(at_once=True)
            return False
        suspicious = task.attempts > 1
        if suspicious and self.ledger.waiting:
            self.commit()  # should it kill this worker too, only it is done over
        self._work_on(task)
        if suspicious or self.ledger.waiting >= self.config.commit_every:
            self.commit()
        if self._since_snapshot >= self.config.snapshot_every:
            self.publish()
        return True

    def _work_on(self, queued: QueuedTask) -> None:
        age = self.writer.version - queued.policy_version
        if queued.attempts > MAX_ATTEMPTS:
            self._refuse(queued, f"the worker ended {queued.attempts - 1} times while it was being applied")
        elif not queued.whole:
            self._refuse(queued, "its bytes in the queue are damaged")
        elif age > self.config.staleness_limit:
            self._settle(queued, "stale", f"{age} versions old, the limit is {self.config.staleness_limit}")
        else:
            try:
                self._apply(UpdateTask.from_bytes(queued.payload))
            except QueueError as error:  # what another machine's policy was shown cannot be had now
                raise LeaseLost(str(error)) from error
            except TaskError as error:
                self._refuse(queued, str(error))
            except RuntimeError as error:  # of torch: memory, kernels
                log.exception("task %s", queued.id)
                self.updater.optimizer.zero_grad(set_to_none=True)
                self._refuse(queued, f"{type(error).__name__}: {str(error).splitlines()[0]}")

    def _apply(self, task: UpdateTask) -> None:
        began = time.perf_counter()
        report, change = self.updater.apply(task)
        outcome = "applied" if report.rejected is None else "rejected"
        self.ledger.settle(Settled(task.id, outcome, report.rejected or ""))
        self.ledger.changed = True
        named = {"engine": task.engine} if task.engine else {}
        if not named:  # engines that share a queue count their requests each for itself
            self.publisher.request = max(self.publisher.request, task.request)
        self._since_snapshot += 1
        if "feedback" in task.facts:
            self._feedback_at = time.monotonic()
        self.ledger.add(
            {
                "kind": "update",
                "time": time.time(),
                "experience": task.id,
                "request": task.request,
                **named,
                "policy_version": task.policy_version,
                "published_version": self.writer.version,
                **asdict(report),
                "learning_rate_kind": task.learning_rate_kind,
                "original_logits": task.original_logits.kind,
                "seconds": time.perf_counter() - began,
                "components": list(task.components),
                "reward_tensor": task.reward_tensor.tolist(),
                "trajectories": list(task.experience.trajectories),
            }
        )
        if change is not None:
            self.ledger.add(
                {
                    "kind": "beta",
                    "time": time.time(),
                    "request": task.request,
                    **named,
                    "update": change.step,
                    "from": change.old,
                    "to": change.new,
                    "mean_kl": change.mean_kl,
                    "message": change.reason,
                }
            )

    def _refuse(self, task: QueuedTask, reason: str) -> None:
        self.tell(f"Task {task.id} is set aside: {reason}.")
        self._settle(task, "refused", reason)

    def _settle(self, task: QueuedTask, outcome: Outcome, reason: str) -> None:
        row = {"kind": outcome, "time": time.time(), "experience": task.id, "message": reason}
        self.ledger.settle(Settled(task.id, outcome, reason), row | UpdateTask.origin(task.payload))

    # ------------------------------------------------------------------------------------------------------ ending

    def commit(self) -> bool:
        return self.ledger.commit()

    def publish(self, *, at_once: bool = False) -> bool:
        if not self.commit():
            return False
        self._since_snapshot, self._feedback_at = 0, None
        return self.publisher.publish(at_once=at_once)

    def close(self) -> None:
        """Commit and publish the rest, and release the run."""
        if self.commit() and self._since_snapshot:
            self.publish()
        self.abandon()

    def abandon(self) -> None:
        """Release the run without a commit. Uncommitted work is repeated."""
        self.writer.close()
        self.queue.close()
