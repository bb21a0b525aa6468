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

from grpo_tui.engine.imports.convert import record_of
from grpo_tui.engine.imports.format import Origin
from grpo_tui.engine.imports.formats.tables import GENERIC
from grpo_tui.engine.imports.rollout import Rollout
from grpo_tui.engine.launch.alerts import alert_sender
from grpo_tui.engine.runs.masking import mask
from grpo_tui.engine.runs.paths import RUN_FILE, new_run_id
from grpo_tui.engine.runs.paths import runs_dir as resolve_runs_dir
from grpo_tui.engine.runs.status import read_json, write_json
from grpo_tui.engine.runs.types import SCHEMA_VERSION, EventKind, TrajectoryRecord
from grpo_tui.engine.runs.writer import PATIENCE_SECONDS, RunWriter

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

    run: the run's name, or a path to its folder; by default a new name under `runs_dir`. A folder that already holds a
    run is continued. process: several processes of one training give each its own name, such as `rank1`; the first one
    (`training`) says how the run stands. resume_from_step: what a continued run recorded after this step is removed
    before anything is added. config and environment variables that name secrets are masked.

    Nothing here raises into the training, except for a run's name that cannot be a folder (ValueError, at once).
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
        resume_from_step: int | None = None,
    ) -> None:
        self.run_dir = run_folder(run, runs_dir)
        self.total_steps = total_steps
        self._unread = 0
        self._told = False
        self._facts(name, environment, model, config, first=process == "training")
        self._writer = RunWriter(
            self.run_dir, resume_from_step=resume_from_step, process=process, alerts=alert_sender(self.run_dir)
        )
        if resume_from_step is not None:
            self._writer.flush(10.0)  # before another process of the training adds a row
        self._process = process
        self._step = resume_from_step or 0
        self._count = 0
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
        """The rollouts of a step. What a rollout does not say stays unknown: no number is invented."""
        given = list(rollouts)
        if threading.current_thread() is self._thread:  # from work given to `later`: the end may wait behind it
            self._store(step, given)
        else:
            self.later(lambda: self._store(step, given), len(given))

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Numbers of a step. Names as in docs/recording.md have a place of their own on the dashboard; all can be
        charted."""
        self._at(step)
        self._guarded(lambda: self._writer.metrics(step, values))

    def event(self, kind: EventKind, message: str, *, step: int | None = None, **data: Any) -> None:
        """Something that happened (`alert`, `note`, `eval`, `checkpoint`, …), in one sentence for a person."""
        at = self._step if step is None else step
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
        """Write what waits, and end the run: finished, or crashed with a sentence."""
        if self._thread.is_alive():
            self._work.put(None)
            count = -1
            while self._thread.is_alive() and count != self._count:
                count = self._count
                self._thread.join(PATIENCE_SECONDS)
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
                rollout = replace(GENERIC.rollout(rollout, Origin(self.run_dir, self.run_dir)), step=step)
            self._count += 1
            named = f"{self._process}-{step}-{self._count}"
            record = record_of(rollout, fallback_id=named, index=index, unknown=NOT_GIVEN)
            tokens = rollout.tokens() if rollout.tokens is not None else None
            made.append(record if tokens is None else replace(record, tokens=tokens))
        return made

    def _store(self, step: int, given: Sequence[RolloutLike]) -> None:
        self._at(step)
        for first in range(0, len(given), AT_ONCE):
            records: list[TrajectoryRecord] = []
            for rollout in given[first : first + AT_ONCE]:
                try:
                    records += self.records(step, [rollout])
                except Exception as error:
                    self._lost(1, f"a rollout cannot be read ({type(error).__name__}: {error})")
            self._writer.trajectories(step, records)

    def _at(self, step: int) -> None:
        if step > self._step:
            self._step = step
            self._guarded(lambda: self._writer.status("running", step=step, total_steps=self.total_steps))

    def _run(self) -> None:
        while (waiting := self._work.get()) is not None:
            work, rows = waiting
            self._guarded(work)
            with self._room:
                self._waiting -= rows
                self._room.notify_all()

    def _guarded(self, work: Callable[[], Any]) -> None:
        """Whatever goes wrong while recording is said once, and is not the training's."""
        try:
            work()
        except Exception as error:
            self._lost(0, f"{type(error).__name__}: {error}")
            log.debug("recording failed", exc_info=True)

    def _lost(self, rows: int, why: str) -> None:
        self._unread += rows
        if not self._told:
            self._told = True
            log.warning("grpo-tui: not all of this run is recorded: %s; training goes on", why)

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
