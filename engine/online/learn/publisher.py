"""Publish versions: a committed state is offered as a candidate, validated, and published or discarded.

Only committed states are published, so no reader serves an update that is later repeated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ....configs.sections.online import OnlineConfig, ValidationConfig
from ..store.snapshots import SnapshotError, SnapshotReader, SnapshotWriter, check_fit, pointed_version
from ..store.update_queue import QueueError
from .worker_state import Ledger, StateError, read_state


@dataclass
class Publisher:
    """Publishes the commits of `ledger` through `writer`."""

    ledger: Ledger
    writer: SnapshotWriter
    config: OnlineConfig

    def __post_init__(self) -> None:
        self.updater = self.ledger.updater
        self.queue = self.ledger.queue
        self.folder = self.writer.folder
        self.guard = PublishingGuard(self.config.validation, **(self.queue.get("guard") or {}))
        self.request = int(self.queue.get("request", 0))
        """The request number of the last update: the worker's position on the record's axis."""
        self._published_update = 0
        self._offered = int(self.queue.get("offered", -1))
        """The last update offered for validation, -1 before the first."""

    @property
    def feedback_waits(self) -> bool:
        """Whether the last update from feedback can be offered now, or published if validation is off."""
        if self.config.validation.enabled:
            return self.ledger.candidate is None and self.ledger.feedback > self._offered
        return self.ledger.feedback > self._published_update

    def recover(self, used: int) -> None:
        """Ensure that an intact version is published, numbered no lower than `used`, the highest number used."""
        fresh = self.writer.version == 0 and used == 0
        newest = SnapshotReader(self.folder, self.ledger.tell).newer_than(0)
        version = 0
        if newest is not None:
            with newest:
                version, self._published_update = newest.version, newest.manifest.update
        self.writer.version = max(self.writer.version, used)
        if fresh:
            self._publish(self.updater.ema, self.updater.update)
        elif version < used or pointed_version(self.folder) != self.writer.version:
            lost = f"Version {self.writer.version} is missing, or no pointer names it"
            if self.config.validation.enabled:
                self.ledger.tell(f"{lost}: the parameters that were last validated are published again.")
                self._publish(self.updater.validated, self.guard.good_update)
            else:
                self.ledger.tell(f"{lost}: the smoothed parameters are published again.")
                self._publish(self.updater.ema, self.updater.update)
        elif int(self.queue.get("published", 0)) < self.writer.version:  # killed between publishing and recording it
            found = f"Version {self.writer.version} was found after a restart."
            row = self._row("published", self.writer.version, update=self._published_update, message=found)
            self.ledger.note(row, published=self.writer.version)
        if self.config.updates and self.config.validation.enabled:
            self.offer()

    def publish(self, *, at_once: bool = False) -> bool:
        """Publish the smoothed model of the last commit, or offer it for validation. Returns whether it serves."""
        if not self.config.validation.enabled:
            return self._publish(self.updater.ema, self.updater.update)
        self.offer(at_once=at_once)
        return False

    def finish(self) -> None:
        """Offer the last updates for validation once no more requests can come."""
        if self.ledger.candidate is None and self.queue.get("ending") and self.ledger.commit():
            self.offer(at_once=True)
            self.queue.set(ending=False)

    def offer(self, *, at_once: bool = False) -> None:
        """Offer the committed state for validation, unless a candidate is waiting or was offered recently.

        at_once: offer any new update, however recent the last offer.
        """
        ledger = self.ledger
        wait = 1 if at_once else self.config.validation.every_updates
        due = self._offered < 0 or self.updater.update >= self._offered + wait
        if not due or ledger.candidate is not None or not ledger.commit():
            return
        try:
            if ledger.state is None:  # later versions are compared with the policy that the run started from
                ledger.state = ledger.write_state()
            candidate = {"state": ledger.state, "update": self.updater.update, "request": self.request}
            self.queue.set(candidate=candidate, offered=self.updater.update, state=ledger.state)
        except (OSError, QueueError) as error:
            ledger.tell_once(f"No version can be validated: {error}")
            return
        ledger.candidate, self._offered = candidate, self.updater.update

    def validate(self) -> None:
        """Process the candidate's validation result: publish it, or return to the last good version.

        The result is recorded at the request of the judged update.
        """
        ledger, candidate = self.ledger, self.ledger.candidate
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
                self._validate_last_state(state, f"The worker's state {state} is missing.")
            return
        if "missing" in result:
            ledger.tell_once(f"No version is published: {result['missing']}")
            return
        try:
            if "unreadable" in result:
                raise StateError(str(result["unreadable"]))
            tensors = read_state(ledger.folder.state / state)[0]
            smoothed = {n: tensors[f"ema/{n}"] for n in self.updater.parameters}
            check_fit(self.updater.parameters, smoothed)
        except (StateError, KeyError, ValueError) as error:
            self._validate_last_state(state, str(error))
            return
        origin = {"request": candidate["request"]}
        rows = [{"kind": "validation", "time": time.time(), **origin, **result}]
        update, before = int(candidate["update"]), replace(self.guard)
        good, message = self.guard.judge(result)
        if good and not self._accept(smoothed, update, origin):  # a full disk: the candidate waits for another attempt
            self.guard = before
            return
        if message is not None:
            ledger.tell(message)
            action = "released" if good else "held"
            rows.append(self._row(action, self.writer.version, update=update, message=message, **origin))
        if not good:
            self._go_back(update, origin)
        self.ledger.candidate = None
        ledger.note(*rows, guard=self.guard.state_dict(), candidate=None, validation=None)
        self.offer()  # another candidate may be due by now

    def release(self) -> str:
        """Accept the current success rate at the user's request. Returns a message."""
        was_held, self.guard.held, self.guard.best = self.guard.held, False, None
        if not was_held:
            return "publishing was not on hold"
        row = self._row("released", self.writer.version, message="by the user")
        self.ledger.note(row, guard=self.guard.state_dict())
        return "the next validation sets a new baseline"

    def _validate_last_state(self, state: str, reason: str) -> None:
        if not self.ledger.commit():
            return
        self.ledger.tell(f"{reason} The last committed state is validated instead.")
        if self.ledger.state == state:
            self.ledger.state = None  # write it again
        self.ledger.candidate, self._offered = None, -1
        self.ledger.note(candidate=None, validation=None, offered=-1)
        self.offer()

    def _accept(self, smoothed: Mapping[str, Tensor], update: int, origin: Mapping[str, Any]) -> bool:
        """Publish a candidate and commit it as the version to return to. Returns False if writing fails."""
        if update <= self._published_update:
            self.ledger.note(validated=self.writer.version)
        elif not self._publish(smoothed, update, **origin):
            return False
        self.updater.mark_validated(smoothed)
        self.ledger.changed = True
        return self.ledger.commit()

    def _go_back(self, update: int, origin: Mapping[str, object]) -> None:
        """Return to the last validated parameters for learning and serving, and discard later updates."""
        message = f"updates {self.guard.good_update + 1} to {self.updater.update} are reverted"
        self.updater.go_back()
        self.ledger.changed, self.ledger.feedback = True, 0
        self.ledger.add({"kind": "back", "time": time.time(), "update": update, **origin, "message": message})
        self.ledger.commit()
        if self._published_update > self.guard.good_update:
            self._publish(self.updater.validated, self.guard.good_update, "rolled_back", message=message, **origin)

    def _publish(self, tensors: Mapping[str, Tensor], update: int, action: str = "published", **facts: object) -> bool:
        try:
            manifest = self.writer.publish(tensors, update=update)
        except SnapshotError as error:
            if self.ledger.tell_once(str(error)):
                self.ledger.note({"kind": "snapshot", "action": "failed", "time": time.time(), "message": str(error)})
            return False
        self._published_update = update
        kept = {"published": manifest.version}
        if update <= self.guard.good_update:
            kept["validated"] = manifest.version
        self.ledger.note(self._row(action, manifest.version, update=update, **facts), **kept)
        self.ledger.store.prune_snapshots([int(self.queue.get("validated", 0))])
        return True

    def _row(self, action: str, version: int, *, update: int | None = None, **facts: object) -> dict[str, object]:
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


@dataclass
class PublishingGuard:
    """Decides whether the smoothed (EMA) model of an update may serve.

    Its success rate may be at most `max_drop` below the best so far on the same held-out tasks. On unrelated texts, its
    log-likelihood may fall by at most the fraction `max_text_loss` of that of the first policy, and its KL from the
    first policy may be at most `max_text_kl` nats per token. Missing measurements are not judged.
    """

    limits: ValidationConfig
    best: float | None = None
    """The best success rate so far. If None, the next one sets it."""
    held: bool = False
    """Whether the last judged version was not good."""
    good_update: int = 0
    """The last update whose smoothed model was judged good."""

    def judge(self, result: Mapping[str, Any]) -> tuple[bool, str | None]:
        """Judge one validation: `update`, `ema` (success in [0, 1]), and the fields of `TextGuard.measure`.

        Returns whether the version is good, and a message for the user if that has changed.
        """
        update, was = int(result["update"]), self.held
        reason = self._success_problem(result) or self._text_problem(result)
        if reason is None:
            if "ema" in result:
                ema = float(result["ema"])
                self.best = ema if self.best is None else max(self.best, ema)
            self.good_update = max(self.good_update, update)
            self.held = False
            level = f"the smoothed model is at {float(result['ema']):.0%} success" if "ema" in result else "it is good"
            return True, f"Publishing continues: {level}." if was else None
        self.held = True
        back = f"learning returns to update {self.good_update}"
        return False, f"The smoothed model of update {update} {reason}: it is not served, and {back}."

    def _success_problem(self, result: Mapping[str, Any]) -> str | None:
        if "ema" not in result or self.best is None:
            return None
        ema = float(result["ema"])
        if ema >= self.best - self.limits.max_drop - 1e-9:
            return None
        return f"is at {ema:.0%} success, {self.best - ema:.0%} below the best validated {self.best:.0%}"

    def _text_problem(self, result: Mapping[str, Any]) -> str | None:
        if "text_now" not in result:
            return None
        before, now, kl = (float(result[name]) for name in ("text_before", "text_now", "text_kl"))
        loss = (before - now) / abs(before)
        if not loss <= self.limits.max_text_loss:  # also true for NaN
            return (
                f"assigns unrelated texts {loss:.1%} less log-likelihood than at the start ({before:.3f}, now "
                f"{now:.3f})"
            )
        if kl > self.limits.max_text_kl:
            limit = f"the limit is {self.limits.max_text_kl:g}"
            return f"is {kl:.3f} nats per token from the start on unrelated texts; {limit}"
        return None

    def state_dict(self) -> dict[str, object]:
        return {"best": self.best, "held": self.held, "good_update": self.good_update}
