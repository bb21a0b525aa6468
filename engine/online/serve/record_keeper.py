"""Write the work of engine and worker to the run's record (and wandb).

The worker's part comes from the queue's journal. Each row is copied once, even across restarts of either process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ....configs import metric_names as metric
from ....configs.errors import count
from ....configs.sections.online import KLConfig
from ...record.step_recorder import MetricSink
from ...runs.schema import JOURNAL_POSITION, recorded_position
from ...runs.types import EventKind, Use, UseKind
from ...runs.write.writer import RunWriter, Values
from ..store.update_log import UpdateLogs
from ..store.update_queue import JournalRow, QueueError, UpdateQueue
from .inference_engine import Learned

log = logging.getLogger(__name__)

UPDATE_METRICS = {
    "beta": (metric.ONLINE_BETA, metric.BETA),
    "mean_kl": (metric.ONLINE_KL, metric.KL_MEAN),
    "kl": (metric.KL_REVERSE,),
    "kl_forward": (metric.KL_FORWARD,),
    "kl_before": (metric.KL_BEFORE,),
    "loss": (metric.LOSS,),
    "rl_loss": (metric.RL_LOSS,),
    "grad_norm": (metric.GRAD_NORM,),
    "clipped_grad_norm": (metric.CLIPPED_GRAD_NORM,),
    "learning_rate": (metric.LEARNING_RATE,),
    "clip_fraction": (metric.CLIP_FRACTION,),
    "step_norm": (metric.UPDATE_NORM,),
    "weight": (metric.UPDATE_WEIGHT,),
    "kl_start": (metric.KL_START,),
    "baseline": (metric.BASELINE,),
    "mean_return": (metric.RETURN_MEAN,),
    "update": (metric.UPDATES,),
    "seconds": (metric.UPDATE_SECONDS,),
}
"""Maps keys of an update's journal row to metrics."""

USE_FACTS = (
    "update", "kl", "kl_before", "beta", "learning_rate", "learning_rate_kind", "grad_norm", "clipped_grad_norm",
    "step_norm", "clip_fraction", "baseline", "published_version",
)  # fmt: skip
"""Facts of an update that are recorded for each rollout that it used."""

VALIDATION_METRICS = {
    "live": metric.VALIDATION_LIVE,
    "ema": metric.VALIDATION_EMA,
    "delta": metric.VALIDATION_DELTA,
    "label_accuracy": metric.CANARY_LABEL_ACCURACY,
    "label_flips": metric.CANARY_FLIP_RATE,
}


@dataclass(eq=False)
class RecordKeeper:
    """Writes requests and journal rows. The step is the request number. No method raises into serving.

    engine: identifies this engine's requests in a journal shared by several engines. Updates for other engines are
    recorded at the current step. sinks: other destinations for metrics, such as wandb. logs: the update logs of a
    worker on this machine. Rows are copied only once they are logged, because the logs keep the row numbers if the
    queue is lost.
    """

    writer: RunWriter
    queue: UpdateQueue
    kl: KLConfig
    sinks: Sequence[MetricSink] = ()
    tokens: bool = True
    engine: str = ""
    logs: UpdateLogs | None = None
    heard: Callable[[Mapping[str, object]], None] = lambda row: None
    """Called with each row of the journal."""

    def __post_init__(self) -> None:
        self.step = self._logged = 0
        self.copied = self._reported_position = recorded_position(self.writer.run_dir, JOURNAL_POSITION) or 0
        self._failed: set[str] = set()

    def requests(self, learned: Iterable[Learned], extra: Values, **positions: int) -> None:
        """Write trajectories and metrics of answered requests. extra: metrics for the last one, too. positions: how
        many requests and rows have been answered, stored with them.
        """
        items = list(learned)
        with self.writer.together(**positions):
            for item in items:
                number = item.answer.request.number
                self.step = max(self.step, number)
                records = item.records
                if not self.tokens:
                    records = [replace(r, tokens=None) for r in records]
                self._guard("trajectories", lambda n=number, r=records: self.writer.trajectories(n, r))
                self.metrics(number, {**item.metrics, **(extra if item is items[-1] else {})})

    def metrics(self, step: int, values: Values, axis: tuple[str, int] | None = None) -> None:
        """Write the metrics of a step. axis: name and value of the axis in the sinks, if it is not the request."""
        self._guard("metrics", lambda: self.writer.metrics(step, values))
        name, value = axis or (metric.REQUEST, step)
        for sink in self.sinks:
            self._guard(type(sink).__name__, lambda s=sink: s.log(value, values, axis=name))

    def event(self, kind: EventKind, message: str, **data: object) -> None:
        self._guard("event", lambda: self.writer.event(kind, message, step=self.step, **data))

    def copy_journal(self) -> int:
        """Copy new journal rows, and return their number."""
        try:
            rows = self.queue.journal(self.copied)
        except QueueError as error:
            log.warning("%s", error)
            return 0
        if self.logs is not None and rows and rows[-1].n > self._logged:
            self._logged = self.logs.last()["n"]
            rows = [row for row in rows if row.n <= self._logged]
        for row in rows:
            with self.writer.together(journal=row.n):
                self._copy(row)
            self.heard(row.row)
            self.copied = row.n
        return len(rows)

    def settled(self) -> int | None:
        """Return the journal number up to which the record is complete; None if it has not changed."""
        durable = self.writer.positions.get(JOURNAL_POSITION, 0)
        if durable <= self._reported_position:
            return None
        self._reported_position = durable
        return durable

    def finish(self) -> None:
        """Copy the last journal rows, wait until the record is written, and store its journal position."""
        while self.copy_journal():
            continue
        if self.writer.flush(timeout=5.0):
            try:
                self.queue.set(recorded=self.writer.positions.get(JOURNAL_POSITION, self.copied))
            except QueueError as error:
                log.warning("%s", error)

    def _copy(self, row: JournalRow) -> None:
        values = row.row
        kind = values.get("kind")
        step = int(values.get("request") or self.step) if self._is_own(values) else self.step
        handler: Callable[[int, JournalRow], None] | None = {
            "update": self._update,
            "beta": self._beta,
            "snapshot": self._snapshot,
            "validation": self._validation,
            "refused": self._set_aside,
            "back": self._rollback,
            "stale": self._set_aside,
        }.get(str(kind))
        if handler is not None:
            self._guard(str(kind), lambda: handler(step, row))

    def _is_own(self, values: Mapping[str, object]) -> bool:
        return values.get("engine", self.engine) == self.engine

    def _update(self, step: int, row: JournalRow) -> None:
        values = row.row
        found = {name: values[key] for key, names in UPDATE_METRICS.items() if key in values for name in names}
        found |= {
            metric.KL_TARGET: self.kl.target_kl,
            metric.KL_TOLERANCE: self.kl.kl_tolerance,
            metric.REJECTED: float(values.get("rejected") is not None),
        }
        self.metrics(step, found, (metric.UPDATES, int(values["update"])))
        self._uses(step, values)
        reason = values.get("rejected")
        if reason:
            self._event(
                "alert",
                f"Update {values['update']} was reverted: {reason}.",
                step,
                row,
                detector="kl_limit",
                value=values.get("kl"),
                threshold=self.kl.limit,
                trajectories=values.get("trajectories", []),
            )

    def _uses(self, step: int, values: Mapping[str, Any]) -> None:
        """Record a task's outcome for each of its rollouts, if they belong to this engine."""
        if not self._is_own(values):
            return
        ids = values.get("trajectories") or []
        advantages = values.get("advantages") or [None] * len(ids)
        reason = values.get("rejected") or values.get("message")
        facts = {name: values[name] for name in USE_FACTS if name in values} | ({"message": reason} if reason else {})
        done = UseKind.TAKEN_BACK if values.get("rejected") else UseKind.APPLIED
        kind = UseKind(values["kind"]) if values["kind"] != "update" else done
        uses = [
            (id_, Use(kind, step, advantage=advantage, clipped=bool(values.get("clipped")), facts=facts))
            for id_, advantage in zip(ids, advantages, strict=True)
        ]
        self.writer.uses(uses)

    def _beta(self, step: int, row: JournalRow) -> None:
        values = row.row
        limits = {"target_kl": self.kl.target_kl, "tolerance": self.kl.kl_tolerance, "reason": values["message"]}
        message = f"beta {values['from']:.4g} → {values['to']:.4g}: {values['message']}"
        self._event("beta", message, step, row, "from", "to", "mean_kl", "update", **limits)

    def _snapshot(self, step: int, row: JournalRow) -> None:
        values = row.row
        action, version = values.get("action"), values.get("version")
        updates = count(int(values.get("update") or 0), "update")
        message = str(values.get("message") or f"Version {version} {action}, with {updates}.")
        if version is not None and action in ("published", "rolled_back"):
            self.metrics(step, {metric.SNAPSHOT_VERSION: float(version)})
        if action in ("held", "released"):
            self.metrics(step, {metric.PUBLISHING_HELD: float(action == "held")})
        self._event("snapshot", message, step, row, "version", "action", "path", "update", "time")

    def _validation(self, step: int, row: JournalRow) -> None:
        values = row.row
        self.metrics(step, {m: values[k] for k, m in VALIDATION_METRICS.items() if values.get(k) is not None})
        if "live" not in values:  # only unrelated texts were measured
            return
        updates = count(int(values.get("update") or 0), "update")
        message = (
            f"After {updates}: live {values['live']:.0%}, smoothed {values['ema']:.0%} of "
            f"{values.get('n')} held-out tasks."
        )
        self._event("eval", message, step, row, "live", "n", "update", split="validation", greedy=values["ema"])

    def _rollback(self, step: int, row: JournalRow) -> None:
        update, reason = row.row.get("update"), row.row.get("message")
        message = f"Learning was rolled back after update {update} was validated: {reason}."
        self._event("alert", message, step, row, "update", detector="validation")

    def _set_aside(self, step: int, row: JournalRow) -> None:
        values = row.row
        self._uses(step, values)
        message = f"Task {values.get('experience')} {values['kind']}: {values.get('message')}."
        self._event("alert", message, step, row, "experience", detector=f"task_{values['kind']}")

    def _event(self, kind: EventKind, message: str, step: int, row: JournalRow, *names: str, **data: object) -> None:
        values = {name: row.row.get(name) for name in names}
        self.writer.event(kind, message, step=step, journal=row.n, **values, **data)

    def _guard(self, name: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:
            if name not in self._failed:
                self._failed.add(name)
                log.exception("%s could not be recorded; serving continues", name)
