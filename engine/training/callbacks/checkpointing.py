"""When a checkpoint is due, and the record of those that were written."""

from __future__ import annotations

import time
from dataclasses import dataclass

from transformers import TrainerControl, TrainerState

from ...record.step_recorder import StepRecorder
from ..processes import Processes
from ..resumable import Resumable
from .base import Logs, RunCallback


@dataclass(eq=False)
class CheckpointSchedule(RunCallback):
    """Saves a checkpoint before the first step, after it, after the last one, and at intervals of steps or minutes
    (0: no interval). If a batch of rollouts serves several updates, they all finish first."""

    trainer: Resumable
    recorder: StepRecorder
    every: int
    minutes: float
    _due: bool = False

    def training_begins(self, state: TrainerState) -> None:
        """Save before the first step, so that any interrupted run can be resumed."""
        self._saved_at = time.monotonic()
        if self.trainer.last_checkpoint is None:
            self.trainer.save_checkpoint()

    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        step, minutes = state.global_step, (time.monotonic() - self._saved_at) / 60
        self._due |= step == 1 or bool(self.every and step % self.every == 0)
        self._due |= step >= state.max_steps or bool(self.minutes and minutes >= self.minutes)
        if self.trainer.between_batches and Processes(self.trainer.accelerator).broadcast(self._due):  # main's clock
            control.should_save = True

    def saved(self, step: int) -> None:
        self._saved_at, self._due = time.monotonic(), False
        path = self.trainer.checkpoint_of(step)
        if path is not None:
            self.recorder.event("checkpoint", f"checkpoint of step {step}", step=step, path=str(path))
