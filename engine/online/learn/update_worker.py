"""The update worker: take a task, update, commit, publish. Each task takes effect once, even after a kill.

Updates happen in memory. After `commit_every` of them, the state goes to a new file, and one transaction of the queue
names that file, settles its tasks and adds their journal rows. Only committed updates are published.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from ....configs.schema import RunConfig
from ....configs.sections.online import OnlineConfig
from ...runs.control.requests import ControlChannel, RunRequest
from ...runs.control.status import process_state
from ...runs.paths import OnlineFolder
from ...runs.write.writer import RunWriter
from ..process import load_serving_policy
from ..store.opening import open_store
from ..store.snapshots import SnapshotWriter
from ..store.update_queue import LeaseHeld, LeaseLost, Outcome, QueueDamaged, QueuedTask, QueueError, Settled, Trouble
from ..store.update_task import TaskError, UpdateTask
from .policy_update import PolicyUpdater
from .publisher import Publisher
from .worker_state import Ledger, recover

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 5
"""A task is refused once the worker has died this often while applying it."""
IDLE_S = 2.0
"""If no task waits, feedback is published this long after its update, because its author waits for the effect."""
TRY_AGAIN_S = 1.0
"""Pause before another attempt after a disk error."""
DAMAGED_TRIES, DAMAGED_AGAIN_S = 3, 60.0
"""The worker gives up after the queue was damaged this many times, each within so many seconds of the last restart."""


class UpdateWorker:
    """The single writer of a run's model.

    tell: receives messages for the user. check_queue: check the queue for damage even if other processes have it open.
    Raises SnapshotError if another worker of this run is active, LeaseHeld if a worker on another machine is active,
    and QueueError if the queue cannot be used.
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
        self.writer = SnapshotWriter(folder.snapshots, base_model=base_model)
        self.store = open_store(folder, config, tell)
        if config.is_shared:
            self.writer.offer = self.store.offer_snapshot
        with contextlib.ExitStack() as opened:
            opened.callback(self.writer.close)
            self.queue = self.store.open_queue(check=check_queue)
            opened.callback(self.queue.close)
            self._begin()
            self._opened = opened.pop_all()

    # ---------------------------------------------------------------------------------------------------- starting

    def _begin(self) -> None:
        if self.queue.repaired is not None:
            self.tell(self.queue.repaired)
        self.store.lead(self.updater.parameters, self.queue)
        self._since_snapshot = 0
        self._feedback_at = 0.0
        """When the last update from feedback happened, or a version was last offered or published."""
        self.ledger = ledger = Ledger(self.updater, self.store, self.queue, self.tell)
        self.publisher = Publisher(ledger, self.writer, self.config)
        logged = ledger.logs.last()
        used = self.store.fetch(self.queue.get("state"), ledger.kept)
        self.writer.version = max(self.writer.version, used)
        ledger.state, lost = recover(self.updater, self.folder, self.queue, logged)
        if lost is not None:
            self.tell(lost)
        self._settle_logged(logged["update"])
        if ledger.state == self.queue.get("state"):
            ledger.prune_states()
        if self.queue.get("update") is None:
            self.queue.set(update=self.updater.update, state=ledger.state)
        ledger.catch_up(logged["n"])
        self.publisher.recover(max(int(self.queue.get("published", 0)), logged["version"]))

    def _settle_logged(self, logged: int) -> None:
        """Settle tasks that are in the logs but still wait in a queue that has lost commits."""
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
        """Process one task. If none waits, commit all work and return False."""
        task = self.queue.take()
        if task is None:
            if self.ledger.waiting:
                self.ledger.commit()
            if self.publisher.feedback_waits and time.monotonic() - self._feedback_at > IDLE_S:
                self.publish(at_once=True)
            return False
        suspicious = task.attempts > 1
        if suspicious and self.ledger.waiting:
            self.ledger.commit()  # if the task also kills this worker, only the task is repeated
        self._process(task)
        if suspicious or self.ledger.waiting >= self.config.commit_every:
            self.ledger.commit()
        if self._since_snapshot >= self.config.snapshot_every:
            self.publish()
        return True

    def _process(self, queued: QueuedTask) -> None:
        age = self.writer.version - queued.policy_version
        if queued.attempts > MAX_ATTEMPTS:
            self._refuse(queued, f"the worker ended {queued.attempts - 1} times while applying it")
        elif not queued.whole:
            self._refuse(queued, "its data in the queue is damaged")
        elif age > self.config.staleness_limit:
            self._settle(queued, "stale", f"{age} versions old, the limit is {self.config.staleness_limit}")
        else:
            try:
                self._apply(UpdateTask.from_bytes(queued.payload))
            except QueueError as error:  # images from another machine cannot be fetched now
                raise LeaseLost(str(error)) from error
            except TaskError as error:
                self._refuse(queued, str(error))
            except RuntimeError as error:  # raised by torch: memory, kernels
                log.exception("task %s", queued.id)
                self.updater.optimizer.zero_grad(set_to_none=True)
                self._refuse(queued, f"{type(error).__name__}: {str(error).splitlines()[0]}")

    def _apply(self, task: UpdateTask) -> None:
        started = time.perf_counter()
        report, change = self.updater.apply(task)
        outcome = "applied" if report.rejected is None else "rejected"
        self.ledger.settle(Settled(task.id, outcome, report.rejected or ""))
        self.ledger.changed = True
        engine = {"engine": task.engine} if task.engine else {}
        if not engine:  # each engine of a shared queue numbers its own requests
            self.publisher.request = max(self.publisher.request, task.request)
        self._since_snapshot += 1
        if "feedback" in task.facts:
            self.ledger.feedback, self._feedback_at = self.updater.update, time.monotonic()
        self.ledger.add(
            {
                "kind": "update",
                "time": time.time(),
                "experience": task.id,
                "request": task.request,
                **engine,
                "policy_version": task.policy_version,
                "published_version": self.writer.version,
                **asdict(report),
                "learning_rate_kind": task.learning_rate_kind,
                "original_logits": task.original_logits.kind,
                "seconds": time.perf_counter() - started,
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
                    **engine,
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

    def publish(self, *, at_once: bool = False) -> bool:
        if not self.ledger.commit():
            return False
        self._since_snapshot, self._feedback_at = 0, time.monotonic()
        return self.publisher.publish(at_once=at_once)

    def close(self) -> None:
        """Commit and publish the rest, then release the run."""
        if self.ledger.commit() and self._since_snapshot:
            self.publish()
        self.abandon()

    def abandon(self) -> None:
        """Release the run without a commit. Uncommitted work will be repeated."""
        self._opened.close()


def work(config: RunConfig, run_dir: Path, writer: RunWriter, control: ControlChannel, resume: bool) -> bool:
    """Learn until stopped. Always returns False, because learning never finishes by itself."""
    torch.set_num_threads(1)  # leave the other cores to the engine
    torch.manual_seed(config.seed)
    model, _ = load_serving_policy(config)
    return Working(config, OnlineFolder(run_dir), model, writer, control).run()


@dataclass
class Working:
    """Runs workers one after another. After damage, the next one continues from the last commit."""

    config: RunConfig
    folder: OnlineFolder
    model: nn.Module
    writer: RunWriter
    control: ControlChannel

    def __post_init__(self) -> None:
        self.online = self.config.online
        self._paused = False
        self._checked, self._missed = time.monotonic(), 0

    def tell(self, message: str) -> None:
        self.writer.event("alert", message, detector="update_worker")
        print(message, file=sys.stderr)

    def _engine_gone(self) -> bool:
        """Return True once two checks in a row, a second apart, found the engine dead. Always False if the run never
        had an engine.
        """
        if time.monotonic() - self._checked >= 1.0:
            self._checked = time.monotonic()
            state = process_state(self.folder.run_dir, "engine")
            dead = bool(state.get("pid")) and not state["alive"] and not state["launcher_alive"]
            self._missed = self._missed + 1 if dead else 0
        return self._missed > 1

    def run(self) -> bool:
        started = {n: p.detach().clone() for n, p in self.model.named_parameters() if p.requires_grad}
        damaged = 0
        while (worker := self._begin(check_queue=damaged > 0)) is not None:
            self.writer.status("running", step=worker.updater.update)
            started_at, ended = time.monotonic(), False
            try:
                self._learn(worker)
                ended = True
                worker.close()
                return False
            except QueueDamaged as error:
                worker.abandon()
                if ended:
                    return False
                if isinstance(error, LeaseLost):
                    self.tell(f"{error} Learning continues from the last commit, here or on another machine.")
                else:
                    damaged = damaged + 1 if time.monotonic() - started_at < DAMAGED_AGAIN_S else 1
                    if damaged > DAMAGED_TRIES:
                        raise
                    self.tell(f"{error} Learning restarts from the last whole state.")
                with torch.no_grad():
                    for name, parameter in self.model.named_parameters():
                        if name in started:
                            parameter.copy_(started[name])
            except BaseException:
                worker.close()
                raise
        return False

    def _begin(self, *, check_queue: bool) -> UpdateWorker | None:
        """Create a worker once the disk and the lease allow it. Returns None if the run ends first."""
        standby, trouble = Trouble(self.tell), Trouble(self.tell)
        updater: PolicyUpdater | None = None
        images = open_store(self.folder, self.online).images
        while True:
            try:
                updater = updater or PolicyUpdater(self.model, self.online, images=images)
                worker = UpdateWorker(
                    updater,
                    self.folder,
                    self.online,
                    base_model=self.config.model.base,
                    tell=self.tell,
                    check_queue=check_queue,
                )
                standby.ends(f"This worker has taken over: learning continues from update {updater.update}.")
                return worker
            except LeaseHeld as error:  # nothing was loaded into the updater
                self.writer.status("running")
                standby.begins(
                    f"{error} This worker is a standby. It takes over when the other one exits or stops responding."
                )
            except QueueError as error:
                updater = None
                check_queue = check_queue or (isinstance(error, QueueDamaged) and not isinstance(error, LeaseLost))
                if not standby.lasts:
                    trouble.begins(f"{error} Learning waits until this is fixed.")
            if self._engine_gone() or any(r.command == "stop" for r in self.control.poll()):
                return None
            time.sleep(TRY_AGAIN_S)

    def _learn(self, worker: UpdateWorker) -> None:
        self._paused = False
        trouble = Trouble(self.tell)
        looked = 0.0
        while True:
            if self._engine_gone():
                print("the engine has exited: updates stop, and the state is saved", file=sys.stderr)
                return
            for command in self.control.poll():
                self._handle(command, worker)
                if command.command == "stop":
                    return
            try:
                if time.monotonic() - looked >= self.online.poll_interval_s:
                    looked = time.monotonic()
                    worker.publisher.validate()
                worked = not self._paused and worker.step()
                if not worked and not self._paused and self.online.validation.enabled:
                    worker.publisher.finish()
                trouble.ends("The update queue can be used again: learning continues.")
            except QueueDamaged:
                raise
            except QueueError as error:
                worked = False
                trouble.begins(f"{error} Learning waits until this is fixed.")
                time.sleep(TRY_AGAIN_S)
            if worked:
                self.writer.status("running", step=worker.updater.update)
            else:
                time.sleep(self.online.poll_interval_s)

    def _handle(self, request: RunRequest, worker: UpdateWorker) -> None:
        outcome = "updates end, state saved"
        if request.command == "pause":
            self._paused = True
            worker.ledger.commit()
            outcome = "learning paused: tasks wait in the queue, answers continue"
        elif request.command == "resume":
            self._paused = False
            outcome = f"learning continues; {worker.publisher.release()}"
        elif request.command == "checkpoint":
            done = worker.publish()
            outcome = f"version {worker.writer.version} published" if done else "not published"
        elif not worker.ledger.commit():
            outcome = "updates end. The last ones could not be saved: a resumed run repeats them"
        self.control.acknowledge(request, outcome)
        self.writer.event("control", f"{request.command}: {outcome}", command=request.command, outcome=outcome)
        if request.command != "stop":
            self.writer.status("paused" if self._paused else "running")
