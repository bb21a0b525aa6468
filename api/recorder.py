"""Record a run from any training script: what the app shows of our own runs, it then shows of yours.

    with Recorder("my-run", environment="gsm8k", model="Qwen3-0.6B") as record:
        for step in range(100):
            ...
            record.rollouts(step, rollouts)
            record.metrics(step, {"loss": loss, "kl/mean": kl})

A thread of the recorder converts and writes the rows. The training waits only for a disk that is slower than the
training, and never fails because of the record: a full or broken disk costs rows, which are counted and reported once.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from grpo_tui.configs import metric_names as metric
from grpo_tui.engine.imports.convert import record_of
from grpo_tui.engine.imports.format import Origin
from grpo_tui.engine.imports.formats.tables import GENERIC
from grpo_tui.engine.imports.given import checked, misspelt, step_of
from grpo_tui.engine.imports.rollout import Rollout
from grpo_tui.engine.launch.alerts import alert_sender
from grpo_tui.engine.runs.columns import SCHEMA_VERSION
from grpo_tui.engine.runs.control.status import look, process_names
from grpo_tui.engine.runs.durable import read_json, write_json
from grpo_tui.engine.runs.masking import mask
from grpo_tui.engine.runs.paths import RUN_FILE, new_run_id
from grpo_tui.engine.runs.paths import runs_dir as resolve_runs_dir
from grpo_tui.engine.runs.types import ENDED, EventKind, TrajectoryRecord
from grpo_tui.engine.runs.write.writer import PATIENCE_SECONDS, RunWriter

log = logging.getLogger(__name__)

WAITING_ROWS = 8192
"""How many rollouts may wait to be converted before the training waits, too. One step may exceed it."""

AT_ONCE = 256
"""How many rollouts are converted before they are written."""

NOT_GIVEN: Mapping[str, str] = {
    name: "not given to the recorder" for name in ("reward", "advantage", "weight", "components", "group", "tokens")
}

RolloutLike = Rollout | Mapping[str, Any]
"""A `Rollout`, or a mapping with the keys of the generic JSON lines (`prompt`, `completion`, `reward`, `group`, …)."""


class Recorder:
    """The record of one run of somebody's own trainer.

    run: the run's name, or a path to its folder; by default a new name under `runs_dir`. Where a run of this name
    exists, the record is a new run `NAME-2`, `NAME-3`, …; `resume` continues the newest of them. resume_from_step
    continues the newest that reached this step, and removes the rows behind it. process: several processes of one
    training give each its own name, such as `rank1`; the first one (`training`) begins the run and reports its status,
    the others join it. config and environment variables that name secrets are masked.

    Wrong arguments raise at once: ValueError for a run's name that cannot be a folder, TypeError for a step or a reward
    that is no number. Nothing else raises into the training.
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
        config: Mapping[str, Any] | None = None,
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
        self._told = False
        self.stored = 0
        """Rollouts that were given to the writer."""
        self._reason = self.no_rollouts = ""
        """The reason that the run ends with where no rollout was stored. A run of metrics alone has none."""
        self._facts(name, environment, model, config, first=process == "training")
        self._writer = RunWriter(
            self.run_dir, resume_from_step=resume_from_step, process=process, alerts=alert_sender(self.run_dir)
        )
        if resume_from_step is not None:
            self._writer.flush(10.0)  # before another process of the training adds a row
        self._process = process
        self._step = resume_from_step or 0
        self._count = 0
        self._misspelt: set[str] = set()
        self._rewards: list[float] = []
        """Rewards of the step `_mean_of`."""
        self._mean_of = self._step
        self._own_means = False
        """Whether the training records means of rewards itself."""
        self._room = threading.Condition()
        self._waiting = 0
        self._work: queue.SimpleQueue[tuple[Callable[[], None], int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()
        self._writer.status("running", step=self._step, total_steps=total_steps)

    @property
    def dropped(self) -> int:
        """Rows that could not be recorded: not to be read, too many at once, or no room on the disk."""
        return self._unread + self._writer.dropped

    # ---------------------------------------------------------------------------------------------- what is recorded

    def rollouts(self, step: int, rollouts: Iterable[RolloutLike]) -> None:
        """Record the rollouts of a step. Values that are not given stay unknown.

        Raises TypeError for a step or a number that is none.
        """
        step = step_of(step)
        given = [checked(rollout) for rollout in rollouts]
        if threading.current_thread() is self._thread:  # from work given to `later`: the end may wait behind it
            self._store(step, given)
        else:
            self.later(lambda: self._store(step, given), len(given))

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Numbers of a step. Names as in docs/recording.md have a place of their own on the dashboard; all can be
        charted. Raises TypeError for a step that is no number."""
        at = step_of(step)
        self._own_means = self._own_means or metric.REWARD_MEAN in values
        self._at(at)
        self._guarded(lambda: self._writer.metrics(at, values))

    def event(self, kind: EventKind, message: str, *, step: int | None = None, **data: Any) -> None:
        """Something that happened (`alert`, `note`, `eval`, `checkpoint`, …), in one sentence for a person."""
        at = self._step if step is None else step_of(step)
        self._guarded(lambda: self._writer.event(kind, message, step=at, **data))

    def vocabulary(self, tokens: Sequence[str], *, byte_level: bool = False) -> None:
        """The text of each token id, so that tokens can be read without the tokenizer."""
        self._guarded(lambda: self._writer.vocabulary(tokens, byte_level=byte_level))

    def progress(self, phase: str, done: int = 0, total: int = 0) -> None:
        """Where the training is inside its step, such as `rollouts` 12 of 64."""
        self._guarded(lambda: self._writer.progress(phase, done, total))

    @contextmanager
    def in_flight(self, id: str, what: str = "") -> Iterator[None]:
        """Around one rollout while it is made: the dashboard shows how many are in flight, for how long, and how long
        the others took. `what`: a few words, such as its task."""
        self.begin(id, what)
        try:
            yield
        finally:
            self.end(id)

    def begin(self, id: str, what: str = "") -> None:
        """The same where no block encloses a rollout; `end` ends it, from any thread."""
        self._guarded(lambda: self._writer.begin(str(id), str(what)))

    def end(self, id: str) -> None:
        """A rollout that was begun has ended."""
        self._guarded(lambda: self._writer.end(str(id)))

    def later(self, work: Callable[[], None], rows: int = 0) -> None:
        """Do something with so many rollouts on the recorder's own thread. Wait while too many rollouts are waiting;
        they are dropped when none is converted for `PATIENCE_SECONDS`."""
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
        """Write the waiting rows, and end the run: finished, or crashed with a sentence.

        A run whose rollouts all failed to be recorded ends with "0 rollouts recorded" and the reason.
        """
        if self._thread.is_alive():
            self._work.put(None)
            count = -1
            while self._thread.is_alive() and count != self._count:
                count = self._count
                self._thread.join(PATIENCE_SECONDS)
        self._guarded(self._write_mean)
        if not failed and not self.stored and self.no_rollouts:
            failed = f"0 rollouts recorded: {self.no_rollouts}"
        status = "crashed" if failed else "finished"
        self._guarded(lambda: self._writer.status(status, step=self._step, error=failed))
        self._guarded(self._writer.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(failed=None if error is None else f"{type(error).__name__}: {error}"[:500])

    # ------------------------------------------------------------------------------------------------------- inside

    def records(self, step: int, given: Sequence[RolloutLike]) -> list[TrajectoryRecord]:
        """What is stored of these rollouts. Raises what a malformed one raises."""
        made = []
        for index, rollout in enumerate(given):
            if isinstance(rollout, Mapping):
                self._warn_of_keys(rollout)
                rollout = replace(GENERIC.rollout(rollout, Origin(self.run_dir, self.run_dir)), step=step)
            self._count += 1
            named = f"{self._process}-{step}-{self._count}"
            record = record_of(rollout, fallback_id=named, index=index, unknown=NOT_GIVEN)
            tokens = rollout.tokens() if rollout.tokens is not None else None
            made.append(record if tokens is None else replace(record, tokens=tokens))
        return made

    def _store(self, step: int, given: Sequence[RolloutLike]) -> None:
        self._at(step)
        if step != self._mean_of:
            self._write_mean()
            self._mean_of = step
        for first in range(0, len(given), AT_ONCE):
            records: list[TrajectoryRecord] = []
            for rollout in given[first : first + AT_ONCE]:
                try:
                    records += self.records(step, [rollout])
                except Exception as error:
                    self._lost(1, f"a rollout cannot be read ({type(error).__name__}: {error})")
            self._writer.trajectories(step, records)
            self.stored += len(records)
            rewards = [r.trajectory.env_reward for r in records if r.split == "train"]
            self._rewards += [reward for reward in rewards if reward is not None]

    def _write_mean(self) -> None:
        """Record the mean reward of the step that ends, where the training does not record it. One process of several
        knows only its own rollouts, so then nothing is recorded."""
        if self._rewards and not self._own_means and process_names(self.run_dir) == [self._process]:
            self._writer.metrics(self._mean_of, {metric.REWARD_MEAN: sum(self._rewards) / len(self._rewards)})
        self._rewards = []

    def _warn_of_keys(self, rollout: Mapping[str, Any]) -> None:
        """Name keys that look like known ones, each once."""
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

    def _guarded(self, work: Callable[[], Any], rows: int = 0) -> None:
        """Log the first error of recording, and count the rows that it costs. The training never sees it."""
        try:
            work()
        except Exception as error:
            self.failed(error, rows)

    def failed(self, error: Exception, rows: int = 0) -> None:
        """Report that `rows` rollouts cannot be recorded. A hook calls this in place of raising into the training."""
        self._lost(rows, f"{type(error).__name__}: {error}")
        log.debug("recording failed", exc_info=error)

    def _lost(self, rows: int, why: str) -> None:
        self._unread += rows
        if rows and not self._reason:
            self._reason = self.no_rollouts = why
        if not self._told:
            self._told = True
            log.warning("grpo-tui: not all of this run is recorded: %s; training continues", why)

    def _facts(self, name: str, environment: str, model: str, config: Mapping[str, Any] | None, first: bool) -> None:
        """`run.json`, by the first process."""
        if not first:
            return
        try:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            old = read_json(self.run_dir / RUN_FILE)
            facts = {"command": sys.argv, "recorded_by": "grpo_tui.Recorder", **({"config": config} if config else {})}
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
                    "facts": mask(facts),
                },
            )
        except (OSError, TypeError, ValueError) as error:
            self._lost(0, f"{self.run_dir}: {error}")


def run_folder(run: str | os.PathLike[str] | None, runs_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of a run by its name or path. Raises ValueError for a name that cannot be a folder."""
    home = resolve_runs_dir(runs_dir)
    if run is None:
        return home / new_run_id(home)
    named = os.fspath(run)
    if not named.strip() or named in (".", "..") or "\0" in named:
        raise ValueError(f"{named!r} cannot be the name of a run; right would be a name such as my-run, or a path")
    return Path(named).expanduser().absolute() if os.sep in named else home / named


def runs_named(first: Path) -> list[Path]:
    """The runs of one name, `NAME`, `NAME-2`, `NAME-3`, …, the newest first."""
    found, folder = [], first
    while (folder / RUN_FILE).exists():
        found.insert(0, folder)
        folder = first.with_name(f"{first.name}-{len(found) + 1}")
    return found


def next_run(first: Path, *, joins: bool = False) -> Path:
    """The folder of a new run of this name. joins: a further process of a training takes the newest run if it has not
    ended. The first process takes the newest run if only others have begun it."""
    runs = runs_named(first)
    if runs and (look(runs[0]).status not in ENDED if joins else not read_json(runs[0] / RUN_FILE).get("mode")):
        return runs[0]
    return first.with_name(f"{first.name}-{len(runs) + 1}") if runs else first
