"""Record training with TRL's `GRPOTrainer`: call `grpo_tui.trl.attach(trainer)` before `trainer.train()`.

The record holds every rollout of every step, with token ids, mask, log-probs if TRL has them, the value and weight of
each reward function, and the advantage. Transformers callbacks do not see completions, so `attach` wraps
`_generate_and_score_completions` on the trainer instance. It reads the result and never changes it: training stays
identical to the bit. If the first batch cannot be read, the next of `SOURCES` takes over and the reason is printed.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from operator import is_
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from grpo_tui.configs import metric_names as metric
from grpo_tui.engine.imports.formats.trl import METRICS
from grpo_tui.engine.runs.control.status import look
from grpo_tui.recorder import Recorder
from grpo_tui.run_names import next_run, run_folder, runs_named
from grpo_tui.trl_loss import LossTap
from grpo_tui.trl_sources import TENSORS, ParquetFiles, RewardCalls, Rows, is_function

if TYPE_CHECKING:
    from transformers import TrainerState

GENERATE = "_generate_and_score_completions"
SOURCES = {
    "generation": "every rollout",
    "logs": "the last batch of each step, without tokens",
    "rewards": "inputs and scores of the reward functions, without advantages and tokens",
    "parquet": "the files of log_completions: the last batch before each log, without weights and tokens",
}
"""Where rollouts are read from, best first, with a description of each."""


def attach(trainer: Any, recorder: Recorder | None = None, *, source: str = "", **options: object) -> Attached:
    """Record a `GRPOTrainer`. `options` are passed to `Recorder` (`run`, `runs_dir`, `name`, …).

    A fresh training becomes a new run: `name`, `name-2`, …. A training resumed from a checkpoint continues the newest
    run that reached the checkpoint and replaces all later rows. source: one of `SOURCES`; skip the better ones. Each
    process of a distributed training records its own rollouts. A second call returns the existing connection. Raises
    TypeError for a trainer that cannot be recorded and ValueError for an unknown source. Recording never raises.
    """
    for callback in trainer.callback_handler.callbacks if hasattr(trainer, "callback_handler") else ():
        if isinstance(callback, _Numbers):
            return callback.attached
    if source and source not in SOURCES:
        raise ValueError(f"source={source!r}: expected one of {', '.join(SOURCES)}")
    names = getattr(trainer, "reward_func_names", [])
    for i, name in enumerate(names):
        if name in names[:i]:  # TRL's logs would keep the values of the last one only
            names[i] = f"{name}-{i + 1}"
    found = _sources(trainer)
    usable = [name for name in list(SOURCES)[list(SOURCES).index(source) if source else 0 :] if found[name]]
    if not usable:
        raise TypeError(
            f"{type(trainer).__name__} is not a GRPOTrainer of TRL that can be recorded: it has no _logs and no reward "
            "functions, and does not write completions (log_completions=True)"
        )
    rank = int(trainer.accelerator.process_index)
    attached = Attached(trainer, usable, rank, recorder, None if recorder else _described(trainer, rank, options))
    trainer.add_callback(_Numbers(attached))
    if not attached.earlier:  # otherwise a resumed training may continue one of them
        attached.begin()
    return attached


def _sources(trainer: object) -> dict[str, bool]:
    logs = isinstance(getattr(trainer, "_logs", None), Mapping) and hasattr(trainer, "reward_func_names")
    functions = getattr(trainer, "reward_funcs", ())
    return {
        "generation": logs and callable(getattr(trainer, GENERATE, None)),
        "logs": logs,
        "rewards": isinstance(functions, list) and any(map(is_function, functions)),
        "parquet": bool(getattr(getattr(trainer, "args", None), "log_completions", False)),
    }


def _described(trainer: Any, rank: int, options: Mapping[str, Any]) -> dict[str, object]:
    """Return the options for the recorder. The user's options replace those taken from the trainer."""
    model = getattr(getattr(trainer.model, "config", None), "_name_or_path", "") or type(trainer.model).__name__
    run = options.get("run") or trainer.args.run_name or os.path.basename(os.path.abspath(trainer.args.output_dir))
    steps = trainer.args.max_steps if trainer.args.max_steps > 0 else None
    found = {"run": run, "model": str(model), "total_steps": steps, "config": trainer.args.to_sanitized_dict()}
    return {**found, **options, "process": "training" if rank == 0 else f"rank{rank}"}


def _runs(options: Mapping[str, Any] | None) -> tuple[Path, list[tuple[Path, int]]]:
    """Return the folder for a new run, and the earlier runs of this name with their last steps, newest first.

    A collective call: every process of the training makes it at the same point and gets the same answer.
    """
    if options is None:
        return Path(), []
    first = run_folder(options["run"], options.get("runs_dir"))
    earlier = [(folder, look(folder).step) for folder in runs_named(first)]
    return broadcast_object_list([(next_run(first), earlier)], from_process=0)[0]


class Attached:
    """Connects one trainer (TRL 0.23 to 1.16) to its record. Never raises into training.

    options: for `Recorder`; None if the user passed a recorder.
    """

    def __init__(
        self,
        trainer: Any,
        sources: list[str],
        rank: int,
        recorder: Recorder | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        self.trainer = trainer
        self.rank = rank
        self.seconds = 0.0
        """Seconds that recording has taken on the training thread."""
        self._sources = sources
        """The source in use, followed by the fallbacks."""
        self._problem = (
            "" if callable(getattr(trainer, GENERATE, None)) else f"{type(trainer).__name__} has no {GENERATE}"
        )
        """Why the previous source does not work."""
        self.recorded = 0
        """Number of rollouts read so far."""
        self._last: Sequence[float] = ()
        """Advantages of the last batch in TRL's logs, compared by identity: every batch has its own float objects."""
        self.tap: LossTap | None = None
        self.step_ended = self._start()
        self._options = options
        self._fresh, self.earlier = _runs(options)
        self._recorder = recorder
        self._at = (0, "")
        self._rows = 0
        """Number of earlier rows of this step and split."""

    @property
    def source(self) -> str:
        """One of `SOURCES`, or empty if no source works for this trainer."""
        return self._sources[0] if self._sources else ""

    @property
    def _tokenizer(self) -> Any:
        return getattr(self.trainer.processing_class, "tokenizer", self.trainer.processing_class)

    @property
    def recorder(self) -> Recorder:
        """The record. If the name already has runs, reading this before training begins creates a new run."""
        return self._recorder or self.begin()

    def _start(self) -> Callable[[TrainerState], None]:
        """Start reading from the source. Return a function to call at the end of each step and of training."""
        trainer = self.trainer
        if self.source == "logs":
            return self._last_logs
        if self.source == "rewards":
            calls = RewardCalls(self, self.names(), self.weights())
            calls.wrap(trainer.reward_funcs)
            return lambda state: calls.flush()
        if self.source == "parquet":
            files = ParquetFiles(self, Path(trainer.args.output_dir, "completions"))
            return lambda state: files.look() if self.rank == 0 else None
        setattr(trainer, GENERATE, self._wrapped(getattr(trainer, GENERATE)))
        if isinstance(getattr(trainer, "_metrics", None), Mapping):
            self.tap = LossTap(trainer, self)
        return self._check_called

    def failed(self, error: Exception, rows: int = 1) -> None:
        """Report a batch that could not be read. If no batch has been read so far, switch to the next source."""
        if self.recorded or not self._sources:
            return self.recorder.failed(error, rows)
        version = metadata.version("trl") if find_spec("trl") else "unknown"
        self._problem = f"TRL {version} does not provide {self.source!r} as expected ({type(error).__name__}: {error})"
        del self._sources[0]
        self.step_ended = lambda state: None
        if self._sources:
            try:
                self.step_ended = self._start()
            except Exception as problem:
                return self.failed(problem)
            self._print(f"grpo-tui records {SOURCES[self.source]}: {self._problem}")
        else:
            self._print(f"grpo-tui records no rollouts: {self._problem}")

    def _print(self, line: str) -> None:
        if self.rank == 0:
            print(line)

    def begin(self) -> Recorder:
        recorder = self._recorder = self._recorder or self._open(int(self.trainer.state.global_step))
        if self.rank == 0:
            recorder.later(lambda: recorder.vocabulary(_texts(self._tokenizer)))
            where = f"{recorder.run_dir}; look with: grpo-tui inspect {quote(recorder.run_dir.name)}"
            note = f" ({self._problem})" if self._problem else ""
            print(f"grpo-tui records {SOURCES[self.source]}{note}, in {where}")
        return recorder

    def _open(self, step: int) -> Recorder:
        options = self._options
        assert options is not None
        reached = [folder for folder, last in self.earlier if step and last >= step]
        if not reached:
            return Recorder(**{**options, "run": self._fresh})
        first = options["process"] == "training"  # it also removes the rows of the other processes
        return Recorder(**{**options, "run": reached[0]}, resume=True, resume_from_step=step if first else None)

    def end(self) -> None:
        """End the run when training ends. Training the same trainer again creates another run."""
        recorder = self.recorder
        if self.tap is not None:
            self.tap.close()
        recorder.no_rollouts = recorder.no_rollouts or self._problem or "the trainer generated none"
        recorder.close()
        self.recorded = 0
        if self._options is not None:
            self._fresh, self.earlier = _runs(self._options)
            self._recorder = None

    def position(self) -> tuple[int, str]:
        """Return the step and split of rollouts sampled now. An evaluation belongs to the step before it."""
        step = int(self.trainer.state.global_step)
        return (step + 1, "train") if self.trainer.model.training else (step, "eval")

    def names(self) -> list[str]:
        names = getattr(self.trainer, "reward_func_names", None)
        return list(names) if names else [getattr(f, "__name__", type(f).__name__) for f in self.trainer.reward_funcs]

    def weights(self) -> dict[str, float]:
        weights = [float(w) for w in self.trainer.reward_weights]
        return dict(zip(self.names(), weights, strict=True))

    def _wrapped(self, generate: Callable[[Any], Any]) -> Callable[[object], dict[str, object]]:
        @functools.wraps(generate)
        def generate_and_record(inputs: Any) -> dict[str, object]:
            tap = self.tap if self.trainer.model.training else None
            before = {} if tap is None else tap.counts()
            batch = generate(inputs)
            started = time.perf_counter()
            if self.source == "generation":
                try:
                    rows = self._batch(len(inputs), batch)
                    if tap is not None:
                        tap.generated(rows.step, rows.ids(), batch, before)
                except Exception as error:
                    self.failed(error, len(inputs))
            self.seconds += time.perf_counter() - started
            return batch

        return generate_and_record

    def _check_called(self, state: TrainerState) -> None:
        """Switch to the next source if a subclass generates with another method."""
        if self.tap is not None:
            self.tap.flush()
        if not self.recorded and self.source == "generation":
            self.failed(LookupError(f"{type(self.trainer).__name__} does not call {GENERATE}"))
            if self.source == "logs":
                self.step_ended(state)

    def _last_logs(self, state: TrainerState) -> None:
        batch, before = list(self.trainer._logs["advantages"]), self._last
        again = len(batch) == len(before) and all(map(is_, batch, before))
        if self.rank == 0 and not again:  # every process has the gathered logs
            self._last = batch
            self._record(len(batch), 0, len(batch), {}, int(state.global_step), "train")

    def _batch(self, size: int, batch: Mapping[str, Any]) -> Rows:
        """Record this process's `size` rows of the gathered batch, which is ordered by rank."""
        processes = int(self.trainer.accelerator.num_processes)
        tensors = {k: v.detach().cpu() for k, v in batch.items() if k in TENSORS and hasattr(v, "detach")}
        return self._record(size * processes, self.rank * size, size, tensors, *self.position())

    def _record(self, total: int, first: int, size: int, tensors: Mapping[str, Any], step: int, split: str) -> Rows:
        logs = self.trainer._logs
        last = slice(max(0, len(logs["prompt"]) - total), None)
        local = slice(first, first + size)

        def own(values: Sequence[object]) -> list[Any]:
            return list(values)[last][local]

        trainer, args = self.trainer, self.trainer.args
        evaluated = getattr(args, "num_generations_eval", None)  # since TRL 0.27
        if (step, split) != self._at:
            self._at, self._rows = (step, split), 0
        before, self._rows = self._rows, self._rows + total
        recorder, tokenizer = self.recorder, self._tokenizer
        rows = Rows(
            prompts=own(logs["prompt"]),
            completions=own(logs["completion"]),
            rewards={name: own(logs["rewards"][name]) for name in self.names()},
            weights=self.weights(),
            advantages=own(logs["advantages"]),
            extra={name: own(values) for name, values in logs.get("extra", {}).items()},  # since TRL 1.0
            tensors=tensors,
            first=before + first,
            group_size=args.num_generations if split == "train" else evaluated or args.num_generations,
            step=step,
            split=split,
            ends=frozenset([*getattr(trainer, "eos_token_ids", [tokenizer.eos_token_id]), tokenizer.pad_token_id]),
        )
        if not self.recorded:
            for rollout in rows.rollouts()[:1]:  # proves that this source can be read
                if rollout.tokens is not None:
                    rollout.tokens()
        self.recorded += size
        recorder.later(lambda: recorder.rollouts(step, rows.rollouts()), size)
        return rows


def _texts(tokenizer: Any) -> list[str]:
    return [text or "" for text in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]


class _Numbers(TrainerCallback):
    """Passes the trainer's metrics to the recorder, and ends the run when training ends."""

    def __init__(self, attached: Attached) -> None:
        self.attached = attached

    def on_train_begin(self, args: object, state: TrainerState, control: object, **more: object) -> None:
        self.attached.recorder.total_steps = int(state.max_steps)

    def on_step_end(self, args: object, state: TrainerState, control: object, **more: object) -> None:
        self._read(state)

    def _read(self, state: TrainerState) -> None:
        try:
            self.attached.step_ended(state)
        except Exception as error:
            self.attached.failed(error)

    def on_log(
        self, args: object, state: TrainerState, control: object, logs: Mapping[str, Any] | None = None, **more: object
    ) -> None:
        if logs and self.attached.rank == 0:
            try:
                self._record(int(state.global_step), logs)
                if "loss" in logs and (tap := self.attached.tap) is not None:
                    tap.logged(int(state.global_step), logs)
            except Exception as error:
                self.attached.recorder.failed(error)

    def _record(self, step: int, logs: Mapping[str, Any]) -> None:
        """Record metrics under the dashboard's names, or TRL's if the dashboard has none."""
        values = {METRICS.get(name, name): v for name, v in logs.items() if isinstance(v, (int, float))}
        for name, weight in self.attached.weights().items():
            mean = logs.get(f"rewards/{name}/mean")
            if mean is not None:
                values |= {metric.COMPONENT_RAW(name): mean, metric.COMPONENT_WEIGHT(name): weight}
                values[metric.COMPONENT_CONTRIBUTION(name)] = mean * weight
        self.attached.recorder.metrics(step, values)

    def on_train_end(self, args: object, state: TrainerState, control: object, **more: object) -> None:
        if self.attached.source in ("rewards", "parquet"):  # the others read everything when a step ends
            self._read(state)
        self.attached.end()
