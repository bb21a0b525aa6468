"""Record a training of TRL's `GRPOTrainer`: `grpo_tui.trl.attach(trainer)` before `trainer.train()`.

Every rollout of every step, with token ids, mask, log-probs where TRL has them, each reward function's value and
weight, and the advantage. A callback of transformers sees no completions; so the trainer's
`_generate_and_score_completions` is wrapped on this instance, and what it returns is read, never changed: the training
is the same to the bit. The first batch proves that this works. Where it does not, `attach` takes the next of `SOURCES`
and prints which one and why.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from transformers import TrainerCallback

from grpo_tui.configs import metric_names as metric
from grpo_tui.engine.imports.formats.trl import METRICS
from grpo_tui.engine.imports.messages import completion, conversation
from grpo_tui.engine.imports.rollout import Rollout, Score
from grpo_tui.recorder import Recorder
from grpo_tui.trl_fallbacks import ParquetFiles, RewardCalls, is_function
from grpo_tui.trl_runs import Runs

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments

log = logging.getLogger(__name__)

GENERATE = "_generate_and_score_completions"
SOURCES = {
    "generation": "every rollout",
    "logs": "the last batch of each step, without tokens",
    "rewards": "what the reward functions are asked and answer, without advantages and tokens",
    "parquet": "the files of log_completions: the last batch before each log, without weights and tokens",
}
"""Where rollouts are read, the best first, and what comes from there."""


class Trainer(Protocol):
    """The parts of TRL's `GRPOTrainer` that `attach` reads (0.23 to 1.16)."""

    model: Any
    args: Any
    state: Any
    accelerator: Any
    processing_class: Any
    reward_func_names: list[str]
    reward_weights: Any
    """[functions]"""
    _logs: Any
    """The last batch of all processes, by column."""

    def add_callback(self, callback: Any) -> None:
        """Have a callback of transformers called."""
        ...


@dataclass(frozen=True)
class Attached:
    """The result of `attach`."""

    reader: _Reader

    @property
    def source(self) -> str:
        """One of `SOURCES`, or nothing when no source works for this trainer."""
        return self.reader.source

    @property
    def recorder(self) -> Recorder:
        """The record. Where this name has runs already, asking before the training begins makes a new run."""
        return self.reader.recorder

    @property
    def seconds(self) -> float:
        """What recording has cost the training's own thread so far."""
        return self.reader.seconds


def attach(trainer: Trainer, recorder: Recorder | None = None, *, source: str = "", **options: Any) -> Attached:
    """Record what `trainer` does from now on; `options` go to `Recorder` (`run`, `runs_dir`, `name`, …).

    A fresh training is a new run: where there is a run of this name, `name-2`, `name-3`, …. A training that is resumed
    from a checkpoint continues the newest of them that came so far, and replaces what came after the checkpoint.
    source: one of `SOURCES`, to take no better one. Each process of a distributed training records its own rollouts.
    Raises nothing of the record's; a trainer without the parts that are read here raises TypeError saying which.
    """
    if source and source not in SOURCES:
        raise ValueError(f"source={source!r}: right would be one of {', '.join(SOURCES)}")
    there = _sources(trainer)
    usable = [name for name in list(SOURCES)[list(SOURCES).index(source) if source else 0 :] if there[name]]
    if not usable:
        raise TypeError(
            f"{type(trainer).__name__} is not a GRPOTrainer of TRL that can be recorded: it has no _logs and no reward "
            "functions, and does not write completions (log_completions=True)"
        )
    rank = int(trainer.accelerator.process_index)
    reader = _Reader(trainer, usable, rank, recorder, None if recorder else _described(trainer, rank, options))
    trainer.add_callback(_Numbers(reader))
    if reader.runs is None or not reader.runs.earlier:  # else a resumed training may continue one of them
        reader.begin()
    return Attached(reader)


def _sources(trainer: Any) -> dict[str, bool]:
    """Return which of `SOURCES` this trainer seems to have."""
    logs = isinstance(getattr(trainer, "_logs", None), Mapping) and hasattr(trainer, "reward_func_names")
    functions = getattr(trainer, "reward_funcs", ())
    return {
        "generation": logs and callable(getattr(trainer, GENERATE, None)),
        "logs": logs,
        "rewards": isinstance(functions, list) and any(map(is_function, functions)),
        "parquet": bool(getattr(getattr(trainer, "args", None), "log_completions", False)),
    }


def _begin(trainer: Any, reader: _Reader, source: str) -> Callable[[TrainerState], None]:
    """Start to read from `source`. Return what is to be called at the end of each step and of the training."""
    if source == "logs":
        return reader.last_logs
    if source == "rewards":
        calls = RewardCalls(reader, _names(trainer), reader.weights())
        calls.wrap(trainer.reward_funcs)
        return lambda state: calls.flush()
    if source == "parquet":
        files = ParquetFiles(reader, Path(trainer.args.output_dir, "completions"))
        return lambda state: files.look() if reader.rank == 0 else None
    setattr(trainer, GENERATE, reader.wrap(getattr(trainer, GENERATE)))
    return reader.check_called


def _names(trainer: Any) -> list[str]:
    """Return the names of the reward functions."""
    names = getattr(trainer, "reward_func_names", None)
    return list(names) if names else [getattr(f, "__name__", type(f).__name__) for f in trainer.reward_funcs]


def _described(trainer: Trainer, rank: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for the recorder: given ones, else what the trainer says of itself."""
    model = getattr(getattr(trainer.model, "config", None), "_name_or_path", "") or type(trainer.model).__name__
    run = options.get("run") or trainer.args.run_name or os.path.basename(os.path.abspath(trainer.args.output_dir))
    steps = trainer.args.max_steps if trainer.args.max_steps > 0 else None
    found = {"run": run, "model": str(model), "total_steps": steps, "config": trainer.args.to_sanitized_dict()}
    return {**found, **options, "process": "training" if rank == 0 else f"rank{rank}"}


def _texts(tokenizer: Any) -> tuple[list[str]]:
    return ([text or "" for text in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))],)


class _Reader:
    """Reads the batches of one trainer. Nothing of it ever raises into the training."""

    def __init__(
        self,
        trainer: Trainer,
        sources: list[str],
        rank: int,
        recorder: Recorder | None,
        options: Mapping[str, Any] | None,
    ) -> None:
        self.trainer = trainer
        self.rank = rank
        self._sources = sources
        """The source in use, then those to try after it."""
        self._problem = ""
        if not callable(getattr(trainer, GENERATE, None)):
            self._problem = f"{type(trainer).__name__} has no {GENERATE}"
        """Why the source before this one does not work."""
        self._recorded = 0
        self._unread = 0
        """Rollouts of later batches that could not be read."""
        self.step_ended = _begin(trainer, self, self.source)
        self.runs = None if options is None else Runs.of(options)
        """Where the record goes; None for a recorder of the user's."""
        self.seconds = 0.0
        """What reading has cost the training's thread."""
        self._options = options
        self._recorder = recorder
        self._at = (0, "")
        self._rows = 0
        """How many rows of this step and split came before."""

    @property
    def source(self) -> str:
        """The source in use; nothing when none works."""
        return self._sources[0] if self._sources else ""

    def failed(self, error: Exception, rows: int = 1) -> None:
        """A batch could not be read. Before the first batch that could be, the next source takes over."""
        if self._recorded or not self._sources:
            if not self._unread:
                log.warning("grpo-tui could not read a batch (%s: %s); training continues", type(error).__name__, error)
            self._unread += rows
            return
        version = metadata.version("trl") if find_spec("trl") else "unknown"
        self._problem = f"TRL {version} does not give {self.source!r} as expected ({type(error).__name__}: {error})"
        del self._sources[0]
        self.step_ended = lambda state: None
        if self._sources:
            try:
                self.step_ended = _begin(self.trainer, self, self.source)
            except Exception as problem:
                return self.failed(problem)
            self._print(f"grpo-tui records {SOURCES[self.source]}: {self._problem}")
        else:
            self._print(f"grpo-tui records no rollouts: {self._problem}")

    def _print(self, line: str) -> None:
        if self.rank == 0:
            print(line)

    @property
    def recorder(self) -> Recorder:
        """The record, from the first time that something is to be recorded."""
        return self._recorder or self.begin()

    def begin(self) -> Recorder:
        """Open the record and report where it is."""
        if self._recorder is None and self.runs is not None:
            self._recorder = self.runs.open(int(self.trainer.state.global_step))
        recorder = self._recorder
        assert recorder is not None
        if self.rank == 0:
            processing: Any = self.trainer.processing_class
            tokenizer = getattr(processing, "tokenizer", processing)
            recorder.later(lambda: recorder.vocabulary(*_texts(tokenizer)))
            where = f"{recorder.run_dir}; look with: grpo-tui inspect {recorder.run_dir.name}"
            why = f" ({self._problem})" if self._problem else ""
            print(f"grpo-tui records {SOURCES[self.source]}{why}, in {where}")
        return recorder

    def end(self) -> None:
        """End the run with the training. Another training of the same trainer is another run."""
        recorder = self.recorder
        recorder.no_rollouts = recorder.no_rollouts or self._problem or "the trainer generated none"
        recorder.close()
        if not recorder.stored:
            self._print(f"grpo-tui: 0 rollouts recorded: {recorder.no_rollouts}")
        elif recorder.dropped or self._unread:
            lost = recorder.dropped + self._unread
            self._print(f"grpo-tui: {recorder.stored} rollouts recorded, {lost} could not be read")
        self._recorded = self._unread = 0
        if self._options is not None:
            self.runs, self._recorder = Runs.of(self._options), None

    def position(self) -> tuple[int, str]:
        """The step and the split of what is generated now. An evaluation belongs to the step before it."""
        step = int(self.trainer.state.global_step)
        return (step + 1, "train") if self.trainer.model.training else (step, "eval")

    def weights(self) -> dict[str, float]:
        """Each reward function's weight by its name."""
        given = [float(w) for w in self.trainer.reward_weights]
        return dict(zip(_names(self.trainer), given, strict=True))

    def wrap(self, generate: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
        """The trainer's own method, and after it a look at what it returns."""

        @functools.wraps(generate)
        def generate_and_record(inputs: Any) -> dict[str, Any]:
            batch = generate(inputs)
            begun = time.perf_counter()
            if self.source == "generation":
                try:
                    self._batch(len(inputs), batch)
                except Exception as error:
                    self.failed(error, len(inputs))
            self.seconds += time.perf_counter() - begun
            return batch

        return generate_and_record

    def check_called(self, state: TrainerState) -> None:
        """Take the next source where a subclass generates with another method."""
        if not self._recorded and self.source == "generation":
            self.failed(LookupError(f"{type(self.trainer).__name__} does not call {GENERATE}"))
            if self.source == "logs":
                self.step_ended(state)

    def last_logs(self, state: TrainerState) -> None:
        """What `_logs` holds: the fall-back."""
        size = len(self.trainer._logs["prompt"])
        if size:
            self._record(size, 0, size, {}, int(state.global_step), "train")

    def _batch(self, size: int, batch: Mapping[str, Any]) -> None:
        """Rows of this process are `size` of the gathered ones, at its rank's place."""
        processes = int(self.trainer.accelerator.num_processes)
        tensors = {k: v.detach().cpu() for k, v in batch.items() if k in TENSORS and hasattr(v, "detach")}
        self._record(size * processes, self.rank * size, size, tensors, *self.position())

    def _record(self, total: int, first: int, size: int, tensors: Mapping[str, Any], step: int, split: str) -> None:
        logs = self.trainer._logs
        last = slice(max(0, len(logs["prompt"]) - total), None)
        mine = slice(first, first + size)

        def own(values: Sequence[Any]) -> list[Any]:
            return list(values)[last][mine]

        args = self.trainer.args
        evaluated = getattr(args, "num_generations_eval", None)  # since TRL 0.27
        group = args.num_generations if split == "train" else evaluated or args.num_generations
        if (step, split) != self._at:
            self._at, self._rows = (step, split), 0
        before, self._rows = self._rows, self._rows + total
        recorder = self.recorder
        rows = _Rows(
            prompts=own(logs["prompt"]),
            completions=own(logs["completion"]),
            rewards={name: own(logs["rewards"][name]) for name in _names(self.trainer)},
            weights=self.weights(),
            advantages=own(logs["advantages"]),
            extra={name: own(values) for name, values in logs.get("extra", {}).items()},  # since TRL 1.0
            tensors=tensors,
            first=before + first,
            group_size=group,
            step=step,
            split=split,
        )
        if not self._recorded:
            for rollout in rows.rollouts()[:1]:  # the proof that this source can be read
                if rollout.tokens is not None:
                    rollout.tokens()
        self.recorded(size)
        recorder.later(lambda: recorder.rollouts(step, rows.rollouts()), size)

    def recorded(self, rollouts: int) -> None:
        """Count the rollouts that a source gave."""
        self._recorded += rollouts


TENSORS = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "old_per_token_logps",
    "sampling_per_token_logps",
    "ref_per_token_logps",
)
"""Of the batch: left-padded prompts [B, P], right-padded completions [B, T]."""


@dataclass(frozen=True)
class _Rows:
    """The rows of one process in one batch. first: how many rows of the step and split come before these."""

    prompts: list[Any]
    completions: list[Any]
    rewards: dict[str, list[float]]
    weights: dict[str, float]
    advantages: list[float]
    extra: dict[str, list[Any]]
    tensors: Mapping[str, Any]
    first: int
    group_size: int
    step: int
    split: str

    def rollouts(self) -> list[Rollout]:
        """The rollouts of these rows, one a row."""
        return [self._rollout(i) for i in range(len(self.prompts))]

    def _rollout(self, i: int) -> Rollout:
        values = {name: _value(column[i]) for name, column in self.rewards.items()}
        known = {n: v for n, v in values.items() if v is not None}
        group, index = divmod(self.first + i, self.group_size)
        return Rollout(
            prompt=conversation(self.prompts[i]),
            completion=completion(self.completions[i]),
            id=f"{self.split}-{self.step}-{self.first + i}",
            step=self.step,
            group=f"{self.split}-{self.step}-{group}",
            index=index,
            split=self.split,
            reward=sum(self.weights[n] * v for n, v in known.items()) if known else None,
            components={n: Score(v, self.weights[n]) for n, v in values.items()},
            advantage=float(self.advantages[i]),
            extra={name: column[i] for name, column in self.extra.items()},
            tokens=(lambda: _tokens(self.tensors, i)) if "completion_ids" in self.tensors else None,
        )


def _value(given: Any) -> float | None:
    """A reward function's value; TRL has NaN where it returned None, which means that it does not apply."""
    return None if given is None or math.isnan(given) else float(given)


def _tokens(tensors: Mapping[str, Any], i: int) -> Any:
    """One row's arrays, without padding."""
    import numpy as np

    from grpo_tui.engine.runs.types import TokenArrays

    prompt = tensors["prompt_ids"][i][tensors["prompt_mask"][i].bool()].numpy()
    written = tensors["completion_mask"][i].bool().numpy()
    valid = written  # what tools answered is in it; only padding is not
    agent = (written & tensors["tool_mask"][i].bool().numpy())[valid] if "tool_mask" in tensors else written[valid]
    ids = np.concatenate([prompt, tensors["completion_ids"][i].numpy()[valid]]).astype(np.int32)
    mask = np.concatenate([np.zeros(len(prompt), bool), agent])
    logprobs = np.zeros(len(ids), np.float32)
    source = tensors.get("sampling_per_token_logps", tensors.get("old_per_token_logps"))
    if source is not None:
        logprobs[len(prompt) :] = np.where(agent, source[i].float().numpy()[valid], 0.0)
    turn = np.full(len(ids), -1, np.int16)
    starts = np.diff(np.concatenate([[0], agent.astype(np.int8)])) == 1
    turn[len(prompt) :] = np.maximum(np.cumsum(starts) - 1, -1)
    overlays = {}
    for name, key in (("trainer", "old_per_token_logps"), ("reference", "ref_per_token_logps")):
        if key in tensors and tensors[key] is not source:
            overlays[name] = np.full(len(ids), np.nan, np.float32)
            overlays[name][len(prompt) :] = np.where(agent, tensors[key][i].float().numpy()[valid], np.nan)
    return TokenArrays(token_ids=ids, agent_mask=mask, logprobs=logprobs, turn=turn, overlays=overlays)


class _Numbers(TrainerCallback):
    """Hands the trainer's numbers to the recorder, and ends the run with the training."""

    def __init__(self, reader: _Reader) -> None:
        self.reader = reader

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """How long it will be."""
        self.reader.recorder.total_steps = int(state.max_steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """The fall-backs read here."""
        self._read(state)

    def _read(self, state: TrainerState) -> None:
        try:
            self.reader.step_ended(state)
        except Exception as error:
            self.reader.failed(error)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Numbers under the names that the dashboard knows, and under TRL's own."""
        if logs and self.reader.rank == 0:
            values = {METRICS.get(name, name): v for name, v in logs.items() if isinstance(v, (int, float))}
            for name, weight in self.reader.weights().items():
                mean = logs.get(f"rewards/{name}/mean")
                if mean is not None:
                    values |= {metric.COMPONENT_RAW(name): mean, metric.COMPONENT_WEIGHT(name): weight}
                    values[metric.COMPONENT_CONTRIBUTION(name)] = mean * weight
            self.reader.recorder.metrics(int(state.global_step), values)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The run has finished."""
        if self.reader.source != "logs":  # the last logs were read already
            self._read(state)
        self.reader.end()
