"""Record a run from any training script. The app shows it like a run of grpo-tui itself.

    with Recorder("my-run", environment="gsm8k", model="Qwen3-0.6B") as record:
        for step in range(100):
            ...
            record.rollouts(step, rollouts)
            record.metrics(step, {"loss": loss, "kl/mean": kl})

A background thread converts and writes the rows. Training waits only when rows arrive faster than they can be written,
and recording never makes it fail. If the disk is full or broken, rows are lost, counted, and reported once.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import os
import queue
import sys
import threading
import time
import weakref
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass, replace
from types import TracebackType
from typing import Any, Self

from grpo_tui.configs import metric_names as metric
from grpo_tui.configs.errors import count
from grpo_tui.engine.imports.convert import identity, record_of, split_of
from grpo_tui.engine.imports.format import Origin
from grpo_tui.engine.imports.formats.tables import GENERIC
from grpo_tui.engine.imports.given import checked, misspelt, step_of
from grpo_tui.engine.imports.rollout import Rollout
from grpo_tui.engine.launch.outcome import alert_sender
from grpo_tui.engine.runs.columns import SCHEMA_VERSION
from grpo_tui.engine.runs.control.status import look, process_names
from grpo_tui.engine.runs.durable import read_json, write_json
from grpo_tui.engine.runs.masking import mask, mask_command
from grpo_tui.engine.runs.paths import RUN_FILE
from grpo_tui.engine.runs.types import EventKind, Split, TrajectoryRecord
from grpo_tui.engine.runs.write.writer import PATIENCE_SECONDS, RunWriter
from grpo_tui.run_names import next_run, run_folder, runs_named

log = logging.getLogger(__name__)

WAITING_ROWS = 8192
"""Training waits while this many rollouts are queued. One step may exceed it."""

AT_ONCE = 256
"""Rollouts per write."""

LATE_STEPS = 16
"""Rollouts that come so many steps late are still numbered after the earlier ones of their group."""

NOT_GIVEN: Mapping[str, str] = {
    name: "not given to the recorder" for name in ("reward", "advantage", "weight", "components", "group", "tokens")
}

RolloutLike = Rollout | Mapping[str, Any]
"""A `Rollout`, or a mapping with the keys of the generic JSON lines (`prompt`, `completion`, `reward`, `group`, …)."""


class Recorder:
    """Records one run of your own trainer.

    run: the name of the run, or a path to its folder; by default a new name under `runs_dir`. If the name is taken, the
    new run is called `NAME-2`, `NAME-3`, …. resume: continue the newest of these runs. resume_from_step: continue the
    newest one that reached this step, and remove later rows. process: a name for each process of a distributed
    training, such as `rank1`. The first process (`training`) creates the run and reports its status; the others join.
    config: a mapping, a dataclass or argparse's arguments. Values in it and environment variables are masked if their
    names indicate a secret.

    Raises ValueError for a name that cannot be a folder, and TypeError for a step or a reward that is not a number.
    Nothing else raises into training.
    """

    def __init__(
        self,
        run: str | os.PathLike[str] | None = None,
        *,
        runs_dir: str | os.PathLike[str] | None = None,
        name: str = "",
        environment: str = "",
        model: str = "",
        total_steps: int | None = None,
        config: Mapping[str, object] | Any = None,
        process: str = "training",
        resume: bool = False,
        resume_from_step: int | None = None,
    ) -> None:
        named = run_folder(run, runs_dir)
        if resume or resume_from_step is not None:
            runs = runs_named(named)
            reached = [folder for folder in runs if look(folder).step >= (resume_from_step or 0)]
            self.run_dir = next(iter(reached or runs), named)
        else:
            self.run_dir = next_run(named, joins=process != "training")
        self.total_steps = total_steps
        self._unread = 0
        self._warned = False
        self.stored = 0
        """Number of rollouts handed to the writer."""
        self._reason = self.no_rollouts = ""
        """The reason why the run has no rollouts, shown when it ends. Empty for a run that only records metrics."""
        if process == "training":
            self._write_facts(name, environment, model, config)
        self._writer = RunWriter(
            self.run_dir, resume_from_step=resume_from_step, process=process, alerts=alert_sender(self.run_dir)
        )
        if resume_from_step is not None:
            self._writer.flush(10.0)  # before another process of the training adds a row
        self._process = process
        self._pid = os.getpid()
        self._step = resume_from_step or 0
        self._count = 0
        self._misspelt: set[str] = set()
        self._newest = self._step
        """The newest step of the recorded rollouts."""
        self._rewards: dict[int, tuple[float, int]] = {}
        """The sum and number of the rewards of each step."""
        self._unwritten: dict[int, bool] = {}
        """The steps whose mean is not written, and whether it was before, because rollouts may be late."""
        self._sizes: dict[int, Counter[str]] = {}
        """The number of rollouts of each group of the newest steps."""
        self._own_means = False
        """Whether training records the mean reward itself."""
        self._room = threading.Condition()
        self._waiting = 0
        self._work: queue.SimpleQueue[tuple[Callable[[], None], int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()
        atexit.register(_end_with_python, weakref.ref(self))
        self._writer.status("running", step=self._step, total_steps=total_steps)

    @property
    def dropped(self) -> int:
        """Number of rows that were not recorded: unreadable, too many at once, or no space on the disk."""
        return self._unread + self._writer.dropped

    @property
    def missing(self) -> str:
        """A sentence about rollouts that were not recorded, else empty. The writer reports rows lost to a full disk."""
        if not self.stored and self.no_rollouts:
            return f"0 rollouts recorded: {self.no_rollouts}"
        stored, unread = count(self.stored, "rollout"), count(self._unread, "was", "were")
        return f"{stored} recorded, {unread} not: {self._reason}" if self._unread else ""

    def rollouts(self, step: int, rollouts: Iterable[RolloutLike]) -> None:
        """Record the rollouts of a step. Missing values stay unknown.

        Raises TypeError for a step or a value that should be a number and is not.
        """
        step = step_of(step)
        if isinstance(rollouts, Mapping):
            raise TypeError(
                f"rollouts={list(rollouts)} is one mapping; expected a list with a mapping for each rollout"
            )
        checked_rollouts = [checked(rollout) for rollout in rollouts]
        self._at(step)
        if threading.current_thread() is self._thread:  # from work given to `later`
            self._store(step, checked_rollouts)
        else:
            self.later(lambda: self._store(step, checked_rollouts), len(checked_rollouts))

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Record metrics of a step. The dashboard shows the names in docs/recording.md; every name can be charted.

        Raises TypeError for a step that is not a whole number, or values without names.
        """
        at_step = step_of(step)
        if not isinstance(values, Mapping):
            raise TypeError(f"metrics={values!r}: expected a mapping such as {{{metric.LOSS!r}: 0.5}}")
        self._own_means = self._own_means or metric.REWARD_MEAN in values
        self._at(at_step)
        self._guarded(lambda: self._writer.metrics(at_step, values))

    def event(self, kind: EventKind, message: str, *, step: int | None = None, **data: object) -> None:
        """Record an event (`alert`, `note`, `eval`, `checkpoint`, …) with a one-sentence message."""
        at_step = self._step if step is None else step_of(step)
        self._guarded(lambda: self._writer.event(kind, message, step=at_step, **data))

    def vocabulary(self, tokens: Sequence[str], *, byte_level: bool = False) -> None:
        """Record the text of each token id, so that a viewer needs no tokenizer."""
        self._guarded(lambda: self._writer.vocabulary(tokens, byte_level=byte_level))

    @contextmanager
    def in_flight(self, id: str, what: str = "") -> Iterator[None]:
        """Mark a rollout as in flight. The dashboard shows their number and durations. what: for example its task."""
        self.begin(id, what)
        try:
            yield
        finally:
            self.end(id)

    def begin(self, id: str, what: str = "") -> None:
        """Mark a rollout as in flight until `end`, which any thread may call."""
        self._guarded(lambda: self._writer.begin(str(id), str(what)))

    def end(self, id: str) -> None:
        self._guarded(lambda: self._writer.end(str(id)))

    def later(self, work: Callable[[], None], rows: int = 0) -> None:
        """Call `work` on the recorder's thread. rows: the number of rollouts that it records.

        Blocks while `WAITING_ROWS` rollouts are queued. Drops these rows if none is converted in `PATIENCE_SECONDS`.
        """
        if not self._thread.is_alive():
            forked = f"process {os.getpid()} was forked from the one that records; there, open the run with process=…"
            return self._lost(rows, forked if os.getpid() != self._pid else "the recorder was closed before")
        with self._room:
            while self._waiting >= WAITING_ROWS:
                count = self._count
                has_room = self._room.wait_for(lambda: self._waiting < WAITING_ROWS, PATIENCE_SECONDS)
                if not has_room and count == self._count:
                    self._lost(rows, f"no rollout could be recorded for {PATIENCE_SECONDS:g} s")
                    return
            self._waiting += rows
        self._work.put((work, rows))

    def close(self, *, failed: str | None = None) -> None:
        """Write the queued rows and end the run. failed: one sentence; the run then ends as crashed, else as finished.

        If no rollout could be recorded, the run ends as crashed with "0 rollouts recorded" and the reason. One line on
        standard output counts the missing rollouts.
        """
        first = self._thread.is_alive()
        if first:
            self._work.put(None)
            count = -1
            while self._thread.is_alive() and count != self._count:
                count = self._count
                self._thread.join(PATIENCE_SECONDS)
        self._guarded(self._write_means)
        failed = failed or (self.missing if not self.stored else None) or None
        status = "crashed" if failed else "finished"
        self._guarded(lambda: self._writer.status(status, step=self._step, error=failed))
        self._guarded(self._writer.close)
        if first and self.missing and self._process == "training":
            print(f"grpo-tui: {self.missing}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, SystemExit) and not error.code:
            error = None  # sys.exit() is no failure
        self.close(failed=None if error is None else _message(error))

    def records(self, step: int, given: Sequence[RolloutLike]) -> list[TrajectoryRecord]:
        """Convert rollouts to rows of the record. Raises for a malformed rollout."""
        records = []
        for rollout in given:
            if isinstance(rollout, Mapping):
                self._warn_of_keys(rollout)
                rollout = GENERIC.rollout(rollout, Origin(self.run_dir, self.run_dir))
            named = rollout.group and f"{step}:{rollout.group}"  # a group belongs to one step
            if named and split_of(rollout) != Split.TRAIN:
                named = f"{split_of(rollout)}:{named}"
            rollout = replace(rollout, step=step, group=named)
            self._count += 1
            rollout_id = f"{self._process}-{step}-{self._count}"
            group = identity(rollout, fallback_id=rollout_id)[1]
            sizes = self._sizes.setdefault(step, Counter())
            record = record_of(rollout, fallback_id=rollout_id, index=sizes[group], unknown=NOT_GIVEN)
            sizes[group] += 1
            tokens = rollout.tokens() if rollout.tokens is not None else None
            records.append(record if tokens is None else replace(record, tokens=tokens))
        return records

    def _store(self, step: int, rollouts: Sequence[RolloutLike]) -> None:
        if step > self._newest:
            self._write_means()
            self._newest = step
            self._sizes = {known: sizes for known, sizes in self._sizes.items() if known > step - LATE_STEPS}
        for first in range(0, len(rollouts), AT_ONCE):
            records: list[TrajectoryRecord] = []
            for rollout in rollouts[first : first + AT_ONCE]:
                try:
                    records += self.records(step, [rollout])
                except Exception as error:
                    self._lost(1, f"a rollout cannot be read ({type(error).__name__}: {error})")
            self._writer.trajectories(step, records)
            self.stored += len(records)
            given = (r.trajectory.env_reward for r in records if r.split == "train")
            if rewards := [reward for reward in given if reward is not None and math.isfinite(reward)]:
                total, number = self._rewards.get(step, (0.0, 0))
                self._unwritten.setdefault(step, number > 0)
                self._rewards[step] = total + sum(rewards), number + len(rewards)

    def _write_means(self) -> None:
        """Record the mean rewards of steps with new rollouts, unless training does so or several processes share the
        run."""
        unwritten, self._unwritten = self._unwritten, {}
        if self._own_means or not unwritten or process_names(self.run_dir) != [self._process]:
            return
        for step, again in unwritten.items():
            total, number = self._rewards[step]
            self._writer.metrics(step, {metric.REWARD_MEAN: total / number}, replace=again)

    def _warn_of_keys(self, rollout: Mapping[str, object]) -> None:
        new = {key: near for key, near in misspelt(rollout).items() if key not in self._misspelt}
        for key, near in new.items():
            self._misspelt.add(key)
            log.warning("grpo-tui records the key %r as the column extra.%s; did you mean %r?", key, key, near)

    def _at(self, step: int) -> None:
        if step > self._step:
            self._step = step
            self._guarded(lambda: self._writer.status("running", step=step, total_steps=self.total_steps))

    def _run(self) -> None:
        while (waiting := self._work.get()) is not None:
            work, rows = waiting
            self._guarded(work, rows)
            with self._room:
                self._waiting -= rows
                self._room.notify_all()

    def _guarded(self, work: Callable[[], object], rows: int = 0) -> None:
        """Call `work`. An error is logged once, loses `rows`, and does not stop training."""
        try:
            work()
        except Exception as error:
            self.failed(error, rows)

    def failed(self, error: Exception, rows: int = 0) -> None:
        """Report that `rows` rollouts cannot be recorded. Hooks call this instead of raising into training."""
        self._lost(rows, f"{type(error).__name__}: {error}")
        log.debug("recording failed", exc_info=error)

    def _lost(self, rows: int, reason: str) -> None:
        self._unread += rows
        if rows and not self._reason:
            self._reason = self.no_rollouts = reason
        if not self._warned:
            self._warned = True
            log.warning("grpo-tui: not all of this run is recorded: %s; training continues", reason)
            if rows:
                self.event("record", f"not all of this run is recorded: {reason}")

    def _write_facts(self, name: str, environment: str, model: str, config: Mapping[str, object] | None) -> None:
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            old = read_json(self.run_dir / RUN_FILE)
            facts: dict[str, object] = {"command": mask_command(sys.argv), "recorded_by": "grpo_tui.Recorder"}
            if config:
                self._guarded(lambda: facts.update(config=_plain(config)))  # its values may raise anything
            write_json(
                self.run_dir / RUN_FILE,
                {
                    "id": self.run_dir.name,
                    "name": name or old.get("name", ""),
                    "mode": "recorded",
                    "created": old.get("created") or time.time(),
                    "launched": time.time(),
                    "environment": environment,
                    "model": model,
                    "schema_version": SCHEMA_VERSION,
                    "facts": facts,
                },
            )
        except OSError as error:
            self._lost(0, f"{self.run_dir}: {error.strerror or error}")


def _plain(config: Mapping[str, object]) -> object:
    """Return a configuration as JSON holds it, without secrets."""
    if is_dataclass(config) or isinstance(config, Namespace):
        config = vars(config) if isinstance(config, Namespace) else asdict(config)  # keys can be masked
    return json.loads(json.dumps(mask(config), default=str))


def _end_with_python(found: weakref.ref[Recorder]) -> None:
    """End a run that was not closed when the program ends: as crashed if an error ended it, or before its last step."""
    recorder, error = found(), getattr(sys, "last_value", None)
    if recorder is None or not recorder._thread.is_alive():
        return
    failed = None if error is None else _message(error)
    if failed is None and recorder._step < (recorder.total_steps or 0):
        failed = f"the program ended at step {recorder._step} of {recorder.total_steps}"
    recorder.close(failed=failed)


def _message(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]
