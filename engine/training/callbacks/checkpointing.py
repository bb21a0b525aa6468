"""When a checkpoint is due, and the record of those that were written."""

from __future__ import annotations

import time
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerControl, TrainerState, TrainingArguments

from ...record.step_recorder import StepRecorder
from ..resumable import Resumable
from .base import AfterStep, Logs


class CheckpointSchedule(AfterStep):
    """Save a checkpoint before the first step, after it, after the last one, and at intervals of steps or minutes
    (0: no interval). A batch of rollouts that serves several updates is finished before."""

    def __init__(self, trainer: Resumable, recorder: StepRecorder, *, every: int, minutes: float) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self.every = every
        self.minutes = minutes
        self._saved_at = time.monotonic()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Save before the first step, so that any interrupted run can be resumed."""
        self._saved_at = time.monotonic()
        if self._trainer.last_checkpoint is None:
            self._trainer.save_checkpoint()

    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        if self._is_due(state):
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._saved_at = time.monotonic()
        step = state.global_step
        path = self._trainer.checkpoint_of(step)
        if path is not None:
            self._recorder.event("checkpoint", f"checkpoint of step {step}", step=step, path=str(path))

    def _is_due(self, state: TrainerState) -> bool:
        """Return the same answer on every process, by the main process's clock."""
        step, minutes = state.global_step, (time.monotonic() - self._saved_at) / 60
        due = step == 1 or step >= state.max_steps
        due |= bool(self.every and step % self.every == 0) or bool(self.minutes and minutes >= self.minutes)
        due &= step % self._trainer.updates_per_batch == 0 or step >= state.max_steps
        if self._trainer.accelerator.num_processes > 1:
            due = broadcast_object_list([due])[0]
        return due
