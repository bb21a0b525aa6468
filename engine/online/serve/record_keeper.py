"""What the engine and the worker did, into the run's record (and wandb): one writer, the engine's process.

The worker's part comes from the queue's journal, which the worker committed together with its updates: each row is
copied once over restarts of either, as far as the record itself could be written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ....configs import metric_names as metric
from ....configs.sections.online import KLConfig
from ...record.step_recorder import MetricSink
from ...runs.paths import DATABASE
from ...runs.position import JOURNAL_POSITION, recorded_position
from ...runs.types import EventKind, Use, UseKind
from ...runs.write.writer import RunWriter
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
"""Keys of an update's journal row, and the metrics that they are."""

USE_FACTS = (
    "update", "kl", "kl_before", "beta", "learning_rate", "learning_rate_kind", "grad_norm", "clipped_grad_norm",
    "step_norm", "clip_fraction", "baseline", "published_version",
)  # fmt: skip
"""What the record keeps of an update beside each rollout that it used."""

VALIDATION_METRICS = {
    "live": metric.VALIDATION_LIVE,
    "ema": metric.VALIDATION_EMA,
    "delta": metric.VALIDATION_DELTA,
    "label_accuracy": metric.CANARY_LABEL_ACCURACY,
    "label_flips": metric.CANARY_FLIP_RATE,
}


class RecordKeeper:
    """Writes requests and journal rows; the step of everything is the number of the request it belongs to.

    engine: the name that marks its own requests in a journal that several engines read; what the worker learnt from
    another's is recorded where this engine stands. sinks: further places for numbers, such as wandb. Nothing here
    raises into serving. heard: is given each row of the journal.
    """

    def __init__(
        self,
        writer: RunWriter,
        queue: UpdateQueue,
        kl: KLConfig,
        *,
        sinks: Iterable[MetricSink] = (),
        tokens: bool = True,
        engine: str = "",
        heard: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.writer = writer
        self.queue = queue
        self.kl = kl
        self.sinks = list(sinks)
        self.tokens = tokens
        self.engine = engine
        self.heard = heard
        self.step = 0
        position = recorded_position(writer.run_dir, JOURNAL_POSITION)
        if position is None:  # of an older version: it was kept with the queue, or the record was lost
            position = int(queue.get("recorded", 0)) if (writer.run_dir / DATABASE).exists() else 0
        self.copied = self._told = position
        self._complained: set[str] = set()

    def requests(self, learned: Iterable[Learned], extra: Mapping[str, Any], **positions: int) -> None:
        """Trajectories and metrics of answered requests; `extra` goes with the last of them. With them is stored how
        many requests and rows were answered (`positions`)."""
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

    def metrics(self, step: int, values: Mapping[str, Any], axis: tuple[str, int] | None = None) -> None:
        """Numbers of a step, to the record and the sinks; `axis`: the name and value that they stand at in the sinks,
        when that is not the request."""
        self._guard("metrics", lambda: self.writer.metrics(step, values))
        name, value = axis or (metric.REQUEST, step)
        for sink in self.sinks:
            self._guard(type(sink).__name__, lambda s=sink: s.log(value, values, axis=name))

    def event(self, kind: EventKind, message: str, **data: Any) -> None:
        """Something that happened now."""
        self._guard("event", lambda: self.writer.event(kind, message, step=self.step, **data))

    def copy_journal(self) -> int:
        """Copy what the worker has done since the last call; returns how many rows."""
        try:
            rows = self.queue.journal(self.copied)
        except QueueError as error:
            log.warning("%s", error)
            return 0
        for row in rows:
            with self.writer.together(journal=row.n):
                self._copy(row)
            if self.heard is not None:
                self.heard(row.row)
            self.copied = row.n
        return len(rows)

    def settled(self) -> int | None:
        """The journal number up to which everything is in the record; None when it has not moved."""
        sure = self.writer.positions.get(JOURNAL_POSITION, 0)
        if sure <= self._told:
            return None
        self._told = sure
        return sure

    def finish(self) -> None:
        """At the end: wait for the record, and note how far the journal is in it."""
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
            "back": self._back,
            "stale": self._set_aside,
        }.get(str(kind))
        if handler is not None:
            self._guard(str(kind), lambda: handler(step, row))

    def _is_own(self, values: Mapping[str, Any]) -> bool:
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
        if values.get("rejected"):
            self.writer.event(
                "alert",
                f"Update {values['update']} was taken back: {values['rejected']}.",
                step=step,
                detector="kl_limit",
                value=values.get("kl"),
                threshold=self.kl.limit,
                trajectories=values.get("trajectories", []),
                journal=row.n,
            )

    def _uses(self, step: int, values: Mapping[str, Any]) -> None:
        """What became of the rollouts of one task, beside each of them; another engine's are in its record."""
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
        self.writer.event(
            "beta",
            f"beta {values['from']:.4g} → {values['to']:.4g}: {values['message']}",
            step=step,
            **{
                "from": values["from"],
                "to": values["to"],
                "reason": values["message"],
                "mean_kl": values["mean_kl"],
                "target_kl": self.kl.target_kl,
                "tolerance": self.kl.kl_tolerance,
                "update": values["update"],
                "journal": row.n,
            },
        )

    def _snapshot(self, step: int, row: JournalRow) -> None:
        values = row.row
        action, version = values.get("action"), values.get("version")
        message = str(values.get("message") or f"Version {version} {action}, with {values.get('update')} updates.")
        if version is not None and action in ("published", "rolled_back"):
            self.metrics(step, {metric.SNAPSHOT_VERSION: float(version)})
        if action in ("held", "released"):
            self.metrics(step, {metric.PUBLISHING_HELD: float(action == "held")})
        self.writer.event(
            "snapshot",
            message,
            step=step,
            version=version,
            action=action,
            path=values.get("path"),
            update=values.get("update"),
            time=values.get("time"),
            journal=row.n,
        )

    def _validation(self, step: int, row: JournalRow) -> None:
        values = row.row
        self.metrics(step, {m: values[k] for k, m in VALIDATION_METRICS.items() if values.get(k) is not None})
        self.writer.event(
            "eval",
            f"After {values.get('update')} updates: live {values['live']:.0%}, smoothed {values['ema']:.0%} of "
            f"{values.get('n')} held-out tasks.",
            step=step,
            split="validation",
            greedy=values["ema"],
            live=values["live"],
            n=values.get("n"),
            update=values.get("update"),
            journal=row.n,
        )

    def _back(self, step: int, row: JournalRow) -> None:
        values = row.row
        self.writer.event(
            "alert",
            f"Learning went back after update {values.get('update')} was judged: {values.get('message')}.",
            step=step,
            detector="validation",
            update=values.get("update"),
            journal=row.n,
        )

    def _set_aside(self, step: int, row: JournalRow) -> None:
        values = row.row
        self._uses(step, values)
        self.writer.event(
            "alert",
            f"Task {values.get('experience')} {values['kind']}: {values.get('message')}.",
            step=step,
            detector=f"task_{values['kind']}",
            experience=values.get("experience"),
            journal=row.n,
        )

    def _guard(self, what: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception:
            if what not in self._complained:
                self._complained.add(what)
                log.exception("the record could not take %s; serving goes on", what)
