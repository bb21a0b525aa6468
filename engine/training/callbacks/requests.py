"""When a checkpoint is due, and requests to a training run: pause, continue, save a checkpoint, stop."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from transformers import TrainerControl, TrainerState

from ...record.step_recorder import StepRecorder
from ...runs.control.requests import Command, ControlChannel, RunRequest
from ..processes import Processes
from ..resumable import Resumable
from .base import Logs, RunCallback
from .progress import StepProgress


@dataclass(eq=False)
class CheckpointSchedule(RunCallback):
    """Saves a checkpoint before the first step, after it, after the last one, and at intervals of steps or minutes
    (0: no interval). If a batch of rollouts serves several updates, they all finish first."""

    trainer: Resumable
    recorder: StepRecorder
    every: int
    minutes: float
    _due: bool = False

    def on_train_begin(self, args: object, state: TrainerState, *_: object, **kwargs: object) -> None:
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


@dataclass(eq=False)
class RunRequests(RunCallback):
    """Carries out requests between two batches of rollouts, the same on every process. channel: of the main process
    (None elsewhere, and without requests). It is the last callback, so that a due checkpoint is saved before a pause.

    stopped: a user or a signal asked the run to stop.
    """

    trainer: Resumable
    recorder: StepRecorder
    progress: StepProgress
    channel: ControlChannel | None
    stopped: bool = False
    _awaiting_checkpoint: list[RunRequest] = field(default_factory=list)

    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        if not self.trainer.between_batches:
            return
        self._serve(state.global_step, control)
        if self.stopped:
            control.should_training_stop = True
            control.should_save = True
        if control.should_save and self.trainer.checkpoint_of(state.global_step) is not None:  # saved in a pause
            control.should_save = False
            self.saved(state.global_step)
        if control.should_save:
            self.progress.checkpoint()

    def _serve(self, step: int, control: TrainerControl) -> None:
        paused = False
        while True:
            for command in self._poll(step):
                if command == "checkpoint":
                    control.should_save = True
                    continue
                self.stopped |= command == "stop"
                paused = command == "pause"
                now = "stopping" if self.stopped else "paused" if paused else "running"
                self.recorder.guard("status", lambda now=now: self.recorder.writer.status(now, step=step))
            if not paused or self.stopped:
                return
            if control.should_save:  # the training loop is blocked here: save right now
                control.should_save = False
                if self.trainer.checkpoint_of(step) is None:
                    self.progress.checkpoint()
                    self.trainer.save_checkpoint()
                    self.trainer.tell_saved()
                else:
                    self.saved(step)
            time.sleep(0.2)

    def _poll(self, step: int) -> list[Command]:
        """Return the new commands, the same on every process."""
        commands: list[Command] = []
        for request in [] if self.channel is None else self.channel.poll():
            commands.append(request.command)
            if request.command in ("checkpoint", "stop"):
                self._awaiting_checkpoint.append(request)
            else:
                self._acknowledge(request, "paused" if request.command == "pause" else "running", step)
        return Processes(self.trainer.accelerator).broadcast(commands)

    def saved(self, step: int) -> None:
        """Answer requests to save or stop."""
        path = self.trainer.checkpoint_of(step)
        outcome = "the checkpoint could not be saved; see the log" if path is None else f"saved as {path.name}"
        waiting, self._awaiting_checkpoint = self._awaiting_checkpoint, []
        for request in waiting:
            self._acknowledge(request, outcome if request.command == "checkpoint" else f"stopping; {outcome}", step)

    def _acknowledge(self, request: RunRequest, outcome: str, step: int) -> None:
        if self.channel is not None:
            self.channel.acknowledge(request, outcome)
        message = f"{request.command}: {outcome}"
        self.recorder.event("control", message, step=step, command=request.command, outcome=outcome)
