"""The update worker's loop: take a task, update, commit, publish; exactly once in effect, whenever it is killed.

What makes it so, in the order of a life:

1. one worker a run: the snapshot folder's lock is taken first;
2. tasks that a dead worker had taken are queued again, and its last committed state is loaded: model, EMA,
   optimiser, beta, baseline and update number are as if the uncommitted updates had never begun;
3. the logs are brought up to the journal, which was committed together with that state;
4. each update happens in memory; after `commit_every` of them the state goes to a new file, and then one
   transaction of the queue names that file, settles the tasks in it and adds their journal rows;
5. only committed updates are published, so that no reader ever serves something that is done over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from ....configs.sections.online import OnlineConfig
from ..store.folder import OnlineFolder
from ..store.snapshots import SnapshotError, SnapshotReader, SnapshotWriter, published_versions
from ..store.update_log import UpdateLogs
from ..store.update_queue import JournalRow, QueuedTask, QueueError, Settled, UpdateQueue
from ..store.update_task import TaskError, UpdateTask
from .policy_update import PolicyUpdater
from .publishing_guard import JsonLines, PublishingGuard
from .worker_state import StateError, read_state, remove_others, write_state

log = logging.getLogger(__name__)

JOURNAL_KEPT = 2000
"""Rows kept for the engine, which copies them into the run's record, once they are in the logs."""


class UpdateWorker:
    """The single writer of a run's model. `tell` gets one sentence for whatever a person should know.

    Raises SnapshotError when another worker is at work, QueueError when the queue cannot be used.
    """

    def __init__(
        self,
        updater: PolicyUpdater,
        folder: OnlineFolder,
        config: OnlineConfig,
        *,
        base_model: str,
        tell: Callable[[str], None] = log.info,
    ) -> None:
        self.updater = updater
        self.folder = folder
        self.config = config
        self.tell = tell
        self.writer = SnapshotWriter(folder.snapshots, base_model=base_model, keep=config.keep_snapshots)
        self.queue = UpdateQueue(folder.queue, limit=config.queue_limit)
        self.logs = UpdateLogs(folder.run_dir)
        self.guard = PublishingGuard(config.validation.max_drop)
        self._settled: list[Settled] = []
        self._journal: list[dict[str, Any]] = []
        self._unlogged: list[JournalRow] = []
        self._dirty = False
        self._since_snapshot = 0
        self._told: set[str] = set()
        self._recover()
        self._results = JsonLines(folder.validation, int(self.queue.get("validation_offset", 0)))

    # ---------------------------------------------------------------------------------------------------- starting

    def _recover(self) -> None:
        self.queue.recover()
        self._state_name: str | None = self.queue.get("state")
        if self._state_name is not None:
            try:
                self.updater.load_state(*read_state(self.folder.state / self._state_name))
            except (StateError, KeyError, ValueError) as error:
                self._start_from_snapshot(str(error))
        remove_others(self.folder.state, self._state_name)
        guard = self.queue.get("guard")
        if guard is not None:
            self.guard.load_state_dict(guard)
        self._unlogged = self.queue.journal(limit=1_000_000)
        self._write_logs()
        if self.writer.version == 0:
            self.publish()
        elif self.queue.get("published", 0) < self.writer.version:  # killed between publishing and saying so
            row = self._snapshot_row("published", self.writer.version, "found after a restart")
            self._note([row], published=self.writer.version)

    def _start_from_snapshot(self, why: str) -> None:
        """The last resort for a damaged state: the newest good snapshot, with a fresh optimiser."""
        found = SnapshotReader(self.folder.snapshots, self.tell).newer_than(0)
        if found is None:
            self.tell(f"{why} There is no snapshot either: learning starts from the base policy.")
            return
        with found:
            self.updater.load_weights(found.tensors())
            self.updater.update = int(self.queue.get("update", found.manifest.update))
            self.tell(f"{why} Learning goes on from snapshot {found.version} with a fresh optimiser.")

    # ---------------------------------------------------------------------------------------------------- the loop

    def step(self) -> bool:
        """Work on one task; False when none waits (then everything done is committed)."""
        task = self.queue.take()
        if task is None:
            if self._settled:
                self.commit()
            return False
        suspicious = task.attempts > 1
        if suspicious and self._settled:
            self.commit()  # should it kill this worker too, only it is done over
        self._work_on(task)
        if suspicious or len(self._settled) >= self.config.commit_every:
            self.commit()
        if self._since_snapshot >= self.config.snapshot_every:
            self.publish()
        return True

    def _work_on(self, queued: QueuedTask) -> None:
        age = self.writer.version - queued.policy_version
        if queued.attempts > self.config.max_attempts:
            self._refuse(queued, f"the worker ended {queued.attempts - 1} times while it was being applied")
        elif age > self.config.staleness_limit:
            self._settle(queued, "stale", f"{age} versions old, the limit is {self.config.staleness_limit}")
        else:
            try:
                self._apply(UpdateTask.from_bytes(queued.payload))
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
        self._settled.append(Settled(task.id, outcome, report.rejected or ""))
        self._dirty = True
        self._since_snapshot += 1
        self._journal.append(
            {
                "kind": "update",
                "time": time.time(),
                "experience": task.id,
                "request": task.request,
                "policy_version": task.policy_version,
                "published_version": self.writer.version,
                **report.to_json(),
                "learning_rate_kind": task.learning_rate_kind,
                "original_logits": task.original_logits.kind,
                "seconds": time.perf_counter() - began,
                "components": list(task.components),
                "reward_tensor": task.reward_tensor.tolist(),
                "trajectories": list(task.experience.trajectories),
            }
        )
        if change is not None:
            self._journal.append(
                {
                    "kind": "beta",
                    "time": time.time(),
                    "request": task.request,
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

    def _settle(self, task: QueuedTask, outcome: Any, reason: str) -> None:
        self._settled.append(Settled(task.id, outcome, reason))
        row = {"kind": outcome, "time": time.time(), "experience": task.id, "message": reason}
        self._journal.append(row | UpdateTask.origin(task.payload))

    # ------------------------------------------------------------------------------------------------- committing

    def commit(self) -> bool:
        """Make what was done count, all or nothing; False (and told) when the disk refuses: it is tried again."""
        if not self._settled and not self._journal:
            return True
        name = self._state_name
        try:
            if self._dirty:
                tensors, values = self.updater.state()
                name = f"state.{self.updater.update}-{time.time_ns()}.safetensors"
                write_state(self.folder.state, name, tensors, values)
            rows = self.queue.settle(
                self._settled,
                self._journal,
                {"state": name, "update": self.updater.update, "beta": self.updater.beta.beta},
            )
        except (OSError, QueueError) as error:
            self._tell_once(f"Updates cannot be committed and wait in memory: {error}")
            return False
        self._told.clear()
        self._state_name, self._dirty = name, False
        self._settled, self._journal = [], []
        remove_others(self.folder.state, name)
        self._unlogged += rows
        self._write_logs()
        return True

    def _note(self, rows: list[dict[str, Any]], **meta: Any) -> None:
        """Journal rows and facts that belong to no update."""
        try:
            self._unlogged += self.queue.settle([], rows, meta)
        except QueueError as error:
            self._tell_once(str(error))
        self._write_logs()

    def _write_logs(self) -> None:
        try:
            self.logs.append(self._unlogged)
        except OSError as error:
            self._tell_once(f"The update logs cannot be written ({error.strerror}); their lines wait in the queue.")
            return
        if self._unlogged:
            last = self._unlogged[-1].n
            self._unlogged = []
            copied = int(self.queue.get("recorded", 0))  # by the engine, into the run's record
            self.queue.prune_journal(min(last, copied) - JOURNAL_KEPT)

    def _tell_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self.tell(message)

    # ------------------------------------------------------------------------------------------------- publishing

    def publish(self) -> bool:
        """Commit, then publish the EMA model as the next version, unless validation holds it back."""
        if not self.commit():
            return False
        self._since_snapshot = 0
        if self.guard.held:
            return False
        try:
            manifest = self.writer.publish(self.updater.ema, update=self.updater.update)
        except SnapshotError as error:
            self._tell_once(str(error))
            self._note([{"kind": "snapshot", "action": "failed", "time": time.time(), "message": str(error)}])
            return False
        self._note([self._snapshot_row("published", manifest.version)], published=manifest.version)
        self.writer.prune(protect=[self._last_good()])
        return True

    def _snapshot_row(self, action: str, version: int, message: str = "") -> dict[str, Any]:
        return {
            "kind": "snapshot",
            "action": action,
            "time": time.time(),
            "version": version,
            "update": self.updater.update,
            "path": f"snapshots/ema_model_snapshot.v{version}.safetensors",
            "message": message,
        }

    def _last_good(self) -> int:
        """The newest published version that holds no update after the last one validated as good."""
        reader = SnapshotReader(self.folder.snapshots)
        for version in reversed(published_versions(self.folder.snapshots)):
            try:
                if reader.manifest(version).update <= self.guard.good_update:
                    return version
            except (SnapshotError, OSError):
                continue
        return 0

    def validate(self) -> None:
        """Take in new validation results: hold publishing and take bad versions back, or let it go on."""
        results = self._results.read()
        for result in results:
            verdict = self.guard.judge(result)
            rows: list[Mapping[str, Any]] = [{"kind": "validation", "time": time.time(), **result}]
            if verdict.action is not None:
                self.tell(verdict.message)
                action = "held" if verdict.action == "hold" else "released"
                rows.append(self._snapshot_row(action, self.writer.version, verdict.message))
            self._note([dict(r) for r in rows], guard=self.guard.state_dict(), validation_offset=self._results.offset)
            if verdict.action == "hold":
                self._roll_back()

    def _roll_back(self) -> None:
        """Serve the last good version again, under a new number: versions only grow."""
        good = self._last_good()
        if good in (0, self.writer.version):
            return
        try:
            manifest = self.writer.publish_again(good)
        except (SnapshotError, OSError) as error:
            self._tell_once(str(error))
            return
        message = f"Version {manifest.version} is version {good} again, the last one that was validated as good."
        self.tell(message)
        self._note([self._snapshot_row("rolled_back", manifest.version, message)], published=manifest.version)

    def release(self) -> str:
        """The user's word that publishing may go on; returns what came of it."""
        if not self.guard.release():
            return "publishing was not held"
        self._note([self._snapshot_row("released", self.writer.version, "by the user")], guard=self.guard.state_dict())
        return "publishing goes on" if self.publish() else "publishing goes on with the next snapshot"

    def close(self) -> None:
        """Commit and publish what is left, and let go of the run."""
        if self.commit() and self._since_snapshot:
            self.publish()
        self.writer.close()
        self.queue.close()
