"""Record each step: status, TRL's numbers, and in reinforcement fine-tuning the rollouts."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerControl, TrainerState, TrainingArguments

from ....configs import metric_names as metric
from ...policy.kl import BetaController
from ...record.step_recorder import NAMES, StepRecorder, memory_metrics
from ...rollouts.judging import Judge
from ...runs.types import LossTerms
from ..env_trainer import GRPOEnvTrainer
from ..movement import Movement
from ..phases import StepClock
from ..resumable import Resumable
from .base import AfterStep, Logs

logger = logging.getLogger(__name__)

Observer = Callable[[int, Mapping[str, Any]], None]
"""Called on the main process with a step and its metrics as they were recorded."""


class StepRecording(AfterStep):
    """Records the numbers of `measure` after each step, on the main process. observers: are called after each step."""

    def __init__(self, trainer: Resumable, recorder: StepRecorder, clock: StepClock) -> None:
        self._is_main = trainer.accelerator.is_main_process
        self._recorder = recorder
        self._clock = clock
        self.observers: list[Observer] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        writer = self._recorder.writer
        self._recorder.guard(
            "status", lambda: writer.status("running", step=state.global_step, total_steps=state.max_steps)
        )

    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        state.log_history = state.log_history[-1:]  # the record has all of them
        if not self._is_main:
            return
        step = state.global_step
        times = {metric.RECORD_SECONDS: self._recorder.take_seconds()}  # of the step before: this one's is being spent
        values = self.record(step, logs, {**times, metric.STEP_SECONDS: self._clock.take()})
        self._recorder.guard("status", lambda: self._recorder.writer.status("running", step=step))
        for observer in self.observers:
            observer(step, values)

    @abstractmethod
    def record(self, step: int, logs: Logs, times: Mapping[str, float]) -> Mapping[str, Any]:
        """Record a step, and return its metrics as recorded."""


class GRPORecording(StepRecording):
    """Records the step's rollouts and all that was measured."""

    def __init__(
        self, trainer: GRPOEnvTrainer, recorder: StepRecorder, clock: StepClock, controller: BetaController | None
    ) -> None:
        super().__init__(trainer, recorder, clock)
        self._trainer = trainer
        self._loss: Mapping[str, LossTerms] = {}
        self._target: dict[str, float] = {}
        self._movement: Movement | None = None
        if controller is not None:
            self._target = {
                metric.KL_TARGET: controller.config.target_kl,
                metric.KL_TOLERANCE: controller.config.kl_tolerance,
            }

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Record the active components and rules, again on every resume."""
        super().on_train_begin(args, state, control, **kwargs)
        self._movement = Movement(self._trainer.accelerator.unwrap_model(self._trainer.model))
        if (rewards := self._trainer.orchestrator) is not None:
            rules = {rule.id: rule.amount for rule in rewards.penalties.rules}
            self._recorder.event(
                "rewards", "rewards in force", step=state.global_step, weights=rewards.weights, rules=rules
            )

    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        """Collect the loss terms of all processes, then record the step."""
        self._loss = self._trainer.loss_terms.take(self._trainer.accelerator.num_processes)
        super().after_step(state, control, logs)

    def record(self, step: int, logs: Logs, times: Mapping[str, float]) -> Mapping[str, Any]:
        """Record the step with the beta that it used."""
        made = self._trainer.rollouts
        phases = self._trainer.phases.take()
        self._timeline(step, times.get(metric.STEP_SECONDS, 0.0))
        judge = self._trainer.runner.judge
        logged = judge.take_metrics() if isinstance(judge, Judge) else {}
        mismatch = self._trainer.mismatch.metrics()
        trained = {**phases, metric.BETA: self._trainer.beta, **times, **self._target}
        if self._trainer.entropy_coef:
            trained[metric.ENTROPY_WEIGHT] = self._trainer.entropy_coef
        measured = {**mismatch, **made.metrics, **logged, **trained}
        moved = self._movement and self._movement.measure(logs.get("learning_rate", 0.0), logs.get("grad_norm", 0.0))
        if moved is not None:
            measured[metric.MOVEMENT] = moved
        return self._recorder.step(step, logs, measured, made.generated, made.replayed, self._loss)

    def _timeline(self, step: int, seconds: float) -> None:
        """Record when the parts of the step were that ends now, after so many seconds."""
        now, epoch = time.perf_counter(), time.time() - time.perf_counter()
        spans = {**self._trainer.phases.spans.take(), "step": [(now - seconds, now)]}
        made = {name: [(began + epoch, ended + epoch) for began, ended in some] for name, some in spans.items()}
        self._recorder.guard("timeline", lambda: self._recorder.writer.timeline(step, made))


class SFTRecording(StepRecording):
    """Records the numbers of a step of supervised fine-tuning."""

    def record(self, step: int, logs: Logs, times: Mapping[str, float]) -> Mapping[str, Any]:
        values = {NAMES[name]: float(value) for name, value in logs.items() if name in NAMES}
        values = {**values, **times, **memory_metrics()}
        self._recorder.values(step, values)
        return values
