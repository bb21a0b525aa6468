"""The update worker's loop: take a task, update, commit, publish; exactly once in effect, whenever it is killed.

What makes it so, in the order of a life:

1. one worker a run: the snapshot folder's lock is taken first; then one worker a queue, where machines share it;
2. tasks that a dead worker had taken are queued again, and its last committed state is loaded: model, EMA,
   optimiser, beta, baseline and update number are as if the uncommitted updates had never begun;
3. the logs are brought up to the journal, which was committed together with that state;
4. each update happens in memory; after `commit_every` of them the state goes to a new file, and then one
   transaction of the queue names that file, settles the tasks in it and adds their journal rows;
5. only committed updates are published, so that no reader ever serves something that is done over.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ....configs.sections.online import OnlineConfig
from ...runs.position import JOURNAL_POSITION, recorded_position
from ..store.folder import OnlineFolder
from ..store.opening import open_queue, shared_files
from ..store.snapshots import SnapshotError, SnapshotReader, SnapshotWriter, pointed_version
from ..store.update_log import UpdateLogs
from ..store.update_queue import JournalRow, LeaseLost, Outcome, QueuedTask, QueueError, Settled
from ..store.update_task import TaskError, UpdateTask
from .policy_update import PolicyUpdater
from .publishing_guard import PublishingGuard
from .recovery import recover
from .worker_state import StateError, prune_states, read_state, write_state

log = logging.getLogger(__name__)

JOURNAL_KEPT = 2000
"""Rows kept for the engine, which copies them into the run's record, once they are in the logs."""


class UpdateWorker:
    """The single writer of a run's model. `tell` gets one sentence for whatever a person should know.

    `check_queue`: look for damage in the queue although others have it open.

    Raises SnapshotError when another worker of this run is at work, LeaseHeld when one of another machine is, and
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
        try:
            self.queue = open_queue(folder, config, check=check_queue, tell=tell)
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
        if self.queue.mended is not None:
            self.tell(self.queue.mended)
        config, folder = self.config, self.folder
        self.shared = shared_files(folder, config, self.queue)
        if self.shared is None:
            self.queue.lead()
        else:
            self.shared.lead(self.updater.parameters)
            self.writer.offer = self.shared.offer_snapshot
        self._published_update = 0
        self.logs = UpdateLogs(folder.run_dir)
        self.guard = PublishingGuard(config.validation.max_drop)
        self._settled: list[Settled] = []
        self._journal: list[dict[str, Any]] = []
        self._unlogged: list[JournalRow] = []
        self._dirty = False
        self._since_snapshot = 0
        self._overdue = False
        """Whether a candidate is due that had to wait for the one before it."""
        self._told: set[str] = set()
        self._request = int(self.queue.get("request", 0))
        """The request of the last update: where on the record's axis the worker stands."""
        self._candidate: dict[str, Any] | None = self.queue.get("candidate")
        self._state_name: str | None = None
        self._recover()
        self._published_update = self._newest_published_update()
        if config.updates and config.validation.enabled:
            self.offer()

    def _recover(self) -> None:
        logged = self.logs.last()
        if self.shared is not None:
            self.shared.fetch_states(self.queue.get("state"), (self._candidate or {}).get("state"))
            self.writer.version = max(self.writer.version, self.shared.newest_snapshot(self.tell))
        found = recover(self.updater, self.folder, self.queue, logged)
        self._state_name = found.state
        if found.message is not None:
            self.tell(found.message)
        self._settle_what_is_logged(logged["update"])
        if found.state is not None and found.state == self.queue.get("state"):
            self._prune_states(found.state)
        guard = self.queue.get("guard")
        if guard is not None:
            self.guard.load_state_dict(guard)
        copied = recorded_position(self.folder.run_dir, JOURNAL_POSITION) or 0
        self.queue.continue_after(max(logged["n"], copied))
        self._unlogged = self.queue.journal(limit=1_000_000)
        self._write_logs()
        self._recover_snapshots(max(int(self.queue.get("published", 0)), logged["version"]))

    def _settle_what_is_logged(self, logged: int) -> None:
        """A queue that has lost its last commits holds tasks that were learnt from: the logs name them."""
        counted = int(self.queue.get("update", 0))
        if counted >= logged:
            return
        known = self.logs.experiences(after=counted)
        waiting = [name for name, _ in self.queue.tasks("queued") if name in known]
        reason = "it is in the update logs"
        settled = [Settled(name, "applied" if known[name] else "rejected", reason) for name in waiting]
        self.queue.settle(settled, meta={"update": logged, "state": self._state_name})

    def _recover_snapshots(self, used: int) -> None:
        """See that a whole version is published whose number is not below any that was used."""
        fresh = self.writer.version == 0 and used == 0
        newest = SnapshotReader(self.folder.snapshots, self.tell).newer_than(0)
        version = 0
        if newest is not None:
            with newest:
                version = newest.version
        self.writer.version = max(self.writer.version, used)
        if fresh:
            self._publish(self.updater.ema, self.updater.update)
        elif version < used or pointed_version(self.folder.snapshots) != self.writer.version:
            lost = f"Version {self.writer.version} is gone or nothing points to it"
            if self.config.validation.enabled:
                self.tell(f"{lost}: the parameters that were last validated are published again.")
                self._publish(self.updater.validated, self.guard.good_update)
            else:
                self.tell(f"{lost}: the smoothed parameters are published again.")
                self._publish(self.updater.ema, self.updater.update)
        elif int(self.queue.get("published", 0)) < self.writer.version:  # killed between publishing and saying so
            row = self._snapshot_row("published", self.writer.version, message="found after a restart")
            self._note([row], published=self.writer.version)

    def _newest_published_update(self) -> int:
        try:
            return SnapshotReader(self.folder.snapshots).manifest(self.writer.version).update
        except SnapshotError:
            return 0

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
        self._settled.append(Settled(task.id, outcome, report.rejected or ""))
        self._dirty = True
        named = {"engine": task.engine} if task.engine else {}
        if not named:  # engines that share a queue count their requests each for itself
            self._request = max(self._request, task.request)
        self._since_snapshot += 1
        self._journal.append(
            {
                "kind": "update",
                "time": time.time(),
                "experience": task.id,
                "request": task.request,
                **named,
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
                name = self._write_state()
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
        if name is not None:
            self._prune_states(name)
        self._unlogged += rows
        self._write_logs()
        return True

    def _write_state(self) -> str:
        """The name of a new file with the state as it is now. Raises OSError, QueueError."""
        tensors, values = self.updater.state()
        name = write_state(self.folder.state, self.updater.update, tensors, values)
        if self.shared is not None:
            self.shared.put_state(name)
        return name

    def _prune_states(self, counts: str) -> None:
        prune_states(self.folder.state, counts, keep=self._candidate_state())
        if self.shared is not None:
            self.shared.prune_states(counts, keep=self._candidate_state())

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
            with contextlib.suppress(QueueError):
                copied = int(self.queue.get("recorded", 0))  # by the engine, into the run's record
                self.queue.prune_journal(min(last, copied) - JOURNAL_KEPT)

    def _tell_once(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            self.tell(message)

    # ------------------------------------------------------------------------------------------------- publishing

    def publish(self) -> bool:
        """Commit, then publish the smoothed model; False when it does not answer yet.

        With validation it is offered as a candidate instead, and published once it was validated as good; directly only
        while it is at most `updates_ahead` updates ahead of the last validated one.
        """
        if not self.commit():
            return False
        self._since_snapshot = 0
        settings = self.config.validation
        if not settings.enabled:
            return self._publish(self.updater.ema, self.updater.update)
        self.offer()
        ahead = self.updater.update - self.guard.good_update
        if ahead <= settings.updates_ahead and self.updater.update > self._published_update:
            return self._publish(self.updater.ema, self.updater.update)
        return False

    def finish(self) -> None:
        """Nothing waits. When no further request can come, what was learnt last is validated, too."""
        if self._candidate is None and self.queue.get("ending") and self.commit():
            self.offer(at_once=True)
            self.queue.set(ending=False)

    def offer(self, *, at_once: bool = False) -> bool:
        """Let the committed state be validated, unless one waits for that or the last one was a moment ago.

        at_once: also a moment later, if anything was learnt since.
        """
        last = int(self.queue.get("offered", -1))
        wait = 1 if at_once else self.config.validation.every_updates
        due = last < 0 or self.updater.update >= last + wait
        self._overdue = self._overdue or (due and self._candidate is not None)
        if not due or self._candidate is not None or not self.commit():
            return False
        self._overdue = False
        try:
            if self._state_name is None:  # the policy that the run starts from is what all others are measured by
                self._state_name = self._write_state()
            candidate = {"state": self._state_name, "update": self.updater.update, "request": self._request}
            self.queue.set(candidate=candidate, offered=self.updater.update, state=self._state_name)
        except (OSError, QueueError) as error:
            self._tell_once(f"No version can be validated: {error}")
            return False
        self._candidate = candidate
        return True

    def _publish(self, tensors: Mapping[str, Tensor], update: int, action: str = "published", **facts: Any) -> bool:
        try:
            manifest = self.writer.publish(tensors, update=update)
        except SnapshotError as error:
            self._tell_once(str(error))
            self._note([{"kind": "snapshot", "action": "failed", "time": time.time(), "message": str(error)}])
            return False
        self._published_update = update
        kept = {"published": manifest.version}
        if update <= self.guard.good_update:
            kept["validated"] = manifest.version
        self._note([self._snapshot_row(action, manifest.version, update=update, **facts)], **kept)
        protect = [int(self.queue.get("validated", 0))]
        self.writer.prune(protect)
        if self.shared is not None:
            self.shared.prune_snapshots(protect)
        return True

    def _snapshot_row(self, action: str, version: int, *, update: int | None = None, **facts: Any) -> dict[str, Any]:
        return {
            "kind": "snapshot",
            "action": action,
            "time": time.time(),
            "version": version,
            "update": self.updater.update if update is None else update,
            "path": f"snapshots/ema_model_snapshot.v{version}.safetensors",
            "message": "",
            **facts,
        }

    def _candidate_state(self) -> str | None:
        return None if self._candidate is None else str(self._candidate["state"])

    def validate(self) -> None:
        """Take in the validation of the candidate: publish it, or go back to the last one that was good.

        What comes of it is recorded under the request of the update that was judged.
        """
        try:
            result = self.queue.get("validation")
        except QueueError as error:
            self._tell_once(str(error))
            return
        candidate = self._candidate
        if candidate is None or not isinstance(result, dict) or result.get("state") != candidate["state"]:
            return
        if "missing" in result:
            self._tell_once(f"No version is published: {result['missing']}")
            return
        where = {"request": candidate["request"]}
        rows = [{"kind": "validation", "time": time.time(), **where, **result}]
        verdict = self.guard.judge(result)
        update = int(candidate["update"])
        if verdict.message is not None:
            self.tell(verdict.message)
            action = "released" if verdict.good else "held"
            rows.append(
                self._snapshot_row(action, self.writer.version, update=update, message=verdict.message, **where)
            )
        if verdict.good:
            self._accept(str(candidate["state"]), update, where)
        else:
            self._go_back(update, where)
        self._candidate = None
        self._note(rows, guard=self.guard.state_dict(), candidate=None, validation=None)
        if self._overdue:
            self.offer()

    def _accept(self, state: str, update: int, where: Mapping[str, Any]) -> None:
        try:
            tensors = read_state(self.folder.state / state)[0]
            smoothed = {n: tensors[f"ema/{n}"] for n in self.updater.parameters}
            self.updater.mark_validated(smoothed)
        except (StateError, KeyError, ValueError) as error:
            self._tell_once(f"The version of update {update} was validated but is not published: {error}")
            return
        self._dirty = True
        if update > self._published_update:
            self._publish(smoothed, update, **where)
        else:
            self._note([], validated=self.writer.version)

    def _go_back(self, update: int, where: Mapping[str, Any]) -> None:
        """Learn and answer from the last validated parameters: what was learnt since is given up."""
        given_up = f"updates {self.guard.good_update + 1} to {self.updater.update} are taken back"
        self.updater.go_back()
        self._dirty = True
        self._journal.append({"kind": "back", "time": time.time(), "update": update, **where, "message": given_up})
        self.commit()
        if self._published_update > self.guard.good_update:
            self._publish(self.updater.validated, self.guard.good_update, "rolled_back", message=given_up, **where)

    def release(self) -> str:
        """The user's word that the present level is good enough; returns what came of it."""
        if not self.guard.release():
            return "publishing was not held"
        row = self._snapshot_row("released", self.writer.version, message="by the user")
        self._note([row], guard=self.guard.state_dict())
        return "the next validation sets a new measure"

    def close(self) -> None:
        """Commit and publish what is left, and let go of the run."""
        if self.commit() and self._since_snapshot:
            self.publish()
        self.abandon()

    def abandon(self) -> None:
        """Let go of the run as a worker that was killed would: what was not committed is done again."""
        self.writer.close()
        self.queue.close()
