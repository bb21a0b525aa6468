"""Which parameters answer: versions are offered as candidates, validated, and published or taken back.

Only what is committed is published, so that no reader ever serves something that is done over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ....configs.sections.online import OnlineConfig
from ..store.snapshots import SnapshotError, SnapshotReader, SnapshotWriter, check_fit, pointed_version
from ..store.update_queue import QueueError
from .ledger import Ledger
from .publishing_guard import PublishingGuard
from .worker_state import StateError, read_state


class Publisher:
    """Publishes what `ledger` has committed, by `writer`."""

    def __init__(self, ledger: Ledger, writer: SnapshotWriter, config: OnlineConfig) -> None:
        self.ledger = ledger
        self.writer = writer
        self.config = config
        self.updater = ledger.updater
        self.queue = ledger.queue
        self.folder = ledger.folder.snapshots
        self.guard = PublishingGuard(
            config.validation.max_drop, config.validation.max_text_loss, config.validation.max_text_kl
        )
        self.request = int(self.queue.get("request", 0))
        """The request of the last update: where on the record's axis the worker stands."""
        self.candidate: dict[str, Any] | None = self.queue.get("candidate")
        ledger.kept = self._candidate_state()
        self._published_update = 0
        self._overdue = False
        """Whether a candidate is due that had to wait for the one before it."""

    def recover(self, used: int) -> None:
        """See that a whole version is published whose number is not below `used`, the highest that was."""
        guard = self.queue.get("guard")
        if guard is not None:
            self.guard.load_state_dict(guard)
        self._recover_snapshots(used)
        try:
            self._published_update = SnapshotReader(self.folder).manifest(self.writer.version).update
        except SnapshotError:
            self._published_update = 0
        if self.config.updates and self.config.validation.enabled:
            self.offer()

    def _recover_snapshots(self, used: int) -> None:
        fresh = self.writer.version == 0 and used == 0
        newest = SnapshotReader(self.folder, self.ledger.tell).newer_than(0)
        version = 0
        if newest is not None:
            with newest:
                version = newest.version
        self.writer.version = max(self.writer.version, used)
        if fresh:
            self._publish(self.updater.ema, self.updater.update)
        elif version < used or pointed_version(self.folder) != self.writer.version:
            lost = f"Version {self.writer.version} is gone or nothing points to it"
            if self.config.validation.enabled:
                self.ledger.tell(f"{lost}: the parameters that were last validated are published again.")
                self._publish(self.updater.validated, self.guard.good_update)
            else:
                self.ledger.tell(f"{lost}: the smoothed parameters are published again.")
                self._publish(self.updater.ema, self.updater.update)
        elif int(self.queue.get("published", 0)) < self.writer.version:  # killed between publishing and saying so
            row = self._row("published", self.writer.version, message="found after a restart")
            self.ledger.note(row, published=self.writer.version)

    def publish(self, *, at_once: bool = False) -> bool:
        """Publish the smoothed model as it was just committed; False when it does not answer yet.

        With validation it is offered as a candidate instead, and published once it was validated as good; directly only
        while it is at most `updates_ahead` updates ahead of the last validated one.
        """
        settings = self.config.validation
        if not settings.enabled:
            return self._publish(self.updater.ema, self.updater.update)
        self.offer(at_once=at_once)
        ahead = self.updater.update - self.guard.good_update
        if ahead <= settings.updates_ahead and self.updater.update > self._published_update:
            return self._publish(self.updater.ema, self.updater.update)
        return False

    def finish(self) -> None:
        """Nothing waits. When no further request can come, what was learnt last is validated, too."""
        if self.candidate is None and self.queue.get("ending") and self.ledger.commit():
            self.offer(at_once=True)
            self.queue.set(ending=False)

    def offer(self, *, at_once: bool = False) -> bool:
        """Let the committed state be validated, unless one waits for that or the last one was a moment ago.

        at_once: also a moment later, if anything was learnt since.
        """
        ledger = self.ledger
        last = int(self.queue.get("offered", -1))
        wait = 1 if at_once else self.config.validation.every_updates
        due = last < 0 or self.updater.update >= last + wait
        self._overdue = self._overdue or (due and self.candidate is not None)
        if not due or self.candidate is not None or not ledger.commit():
            return False
        self._overdue = False
        try:
            if ledger.state is None:  # the policy that the run starts from is what all others are measured by
                ledger.state = ledger.write_state()
            candidate = {"state": ledger.state, "update": self.updater.update, "request": self.request}
            self.queue.set(candidate=candidate, offered=self.updater.update, state=ledger.state)
        except (OSError, QueueError) as error:
            ledger.tell_once(f"No version can be validated: {error}")
            return False
        self._set_candidate(candidate)
        return True

    def validate(self) -> None:
        """Take in the validation of the candidate: publish it, or go back to the last one that was good.

        What comes of it is recorded under the request of the update that was judged.
        """
        ledger, candidate = self.ledger, self.candidate
        try:
            result = self.queue.get("validation")
        except QueueError as error:
            ledger.tell_once(str(error))
            return
        if candidate is None:
            return
        state = str(candidate["state"])
        if not isinstance(result, dict) or result.get("state") != state:
            if not (ledger.folder.state / state).exists():
                self._offer_anew(state, f"The worker's state {state} is missing.")
            return
        if "missing" in result:
            ledger.tell_once(f"No version is published: {result['missing']}")
            return
        if "unreadable" in result:
            self._offer_anew(state, str(result["unreadable"]))
            return
        try:
            smoothed = self._smoothed(state)
        except (StateError, KeyError, ValueError) as error:
            self._offer_anew(state, str(error))
            return
        where = {"request": candidate["request"]}
        rows = [{"kind": "validation", "time": time.time(), **where, **result}]
        verdict = self.guard.judge(result)
        update = int(candidate["update"])
        if verdict.message is not None:
            ledger.tell(verdict.message)
            action = "released" if verdict.good else "held"
            rows.append(self._row(action, self.writer.version, update=update, message=verdict.message, **where))
        if verdict.good:
            self._accept(smoothed, update, where)
        else:
            self._go_back(update, where)
        self._set_candidate(None)
        ledger.note(*rows, guard=self.guard.state_dict(), candidate=None, validation=None)
        if self._overdue:
            self.offer()

    def release(self) -> str:
        """The user's word that the present level is good enough; returns what came of it."""
        if not self.guard.release():
            return "publishing was not held"
        row = self._row("released", self.writer.version, message="by the user")
        self.ledger.note(row, guard=self.guard.state_dict())
        return "the next validation sets a new measure"

    def _set_candidate(self, candidate: dict[str, Any] | None) -> None:
        self.candidate = candidate
        self.ledger.kept = self._candidate_state()

    def _candidate_state(self) -> str | None:
        return None if self.candidate is None else str(self.candidate["state"])

    def _smoothed(self, state: str) -> dict[str, Tensor]:
        """The EMA model of a state. Raises StateError, KeyError, ValueError when it is none of this model."""
        tensors = read_state(self.ledger.folder.state / state)[0]
        smoothed = {n: tensors[f"ema/{n}"] for n in self.updater.parameters}
        check_fit(self.updater.parameters, smoothed)
        return smoothed

    def _offer_anew(self, state: str, why: str) -> None:
        """A candidate that cannot be read is none: what is committed now takes its place."""
        if not self.ledger.commit():
            return
        self.ledger.tell(f"{why} It was to be validated; what is learnt by now takes its place.")
        if self.ledger.state == state:
            self.ledger.state = None  # to be written again
        self._set_candidate(None)
        self.ledger.note(candidate=None, validation=None, offered=-1)
        self.offer()

    def _accept(self, smoothed: Mapping[str, Tensor], update: int, where: Mapping[str, Any]) -> None:
        self.updater.mark_validated(smoothed)
        self.ledger.changed = True
        if update > self._published_update:
            self._publish(smoothed, update, **where)
        else:
            self.ledger.note(validated=self.writer.version)

    def _go_back(self, update: int, where: Mapping[str, Any]) -> None:
        """Learn and answer from the last validated parameters: what was learnt since is given up."""
        given_up = f"updates {self.guard.good_update + 1} to {self.updater.update} are taken back"
        self.updater.go_back()
        self.ledger.changed = True
        self.ledger.add({"kind": "back", "time": time.time(), "update": update, **where, "message": given_up})
        self.ledger.commit()
        if self._published_update > self.guard.good_update:
            self._publish(self.updater.validated, self.guard.good_update, "rolled_back", message=given_up, **where)

    def _publish(self, tensors: Mapping[str, Tensor], update: int, action: str = "published", **facts: Any) -> bool:
        try:
            manifest = self.writer.publish(tensors, update=update)
        except SnapshotError as error:
            self.ledger.tell_once(str(error))
            self.ledger.note({"kind": "snapshot", "action": "failed", "time": time.time(), "message": str(error)})
            return False
        self._published_update = update
        kept = {"published": manifest.version}
        if update <= self.guard.good_update:
            kept["validated"] = manifest.version
        self.ledger.note(self._row(action, manifest.version, update=update, **facts), **kept)
        protect = [int(self.queue.get("validated", 0))]
        self.writer.prune(protect)
        if self.ledger.shared is not None:
            self.ledger.shared.prune_snapshots(protect)
        return True

    def _row(self, action: str, version: int, *, update: int | None = None, **facts: Any) -> dict[str, Any]:
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
