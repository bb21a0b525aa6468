"""Requests to a running training: pause, continue, save a checkpoint, stop."""

from __future__ import annotations

import time
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerControl, TrainerState, TrainingArguments

from ...record.step_recorder import StepRecorder
from ...runs.control.requests import Command, ControlChannel, Request
from ..phases import StepClock
from ..resumable import Resumable
from .base import AfterStep, Logs
from .progress import StepProgress

PAUSE_SECONDS = 0.2
"""How often a paused run looks for requests."""


class RunRequests(AfterStep):
    """Carries out requests between two steps, on every process alike. The main process listens (channel None: there are
    no requests). It is the last callback, so that a due checkpoint is saved before a pause."""

    def __init__(
        self,
        trainer: Resumable,
        recorder: StepRecorder,
        progress: StepProgress,
        clock: StepClock,
        channel: ControlChannel | None,
    ) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._progress = progress
        self._clock = clock
        self._channel = channel if trainer.accelerator.is_main_process else None
        self.stopped = False
        """A person or a signal asked the run to stop."""
        self._awaiting_checkpoint: list[Request] = []

    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        self._serve(state.global_step, control)
        if self.stopped:
            control.should_training_stop = True
            control.should_save = True
        if control.should_save and self._trainer.checkpoint_of(state.global_step) is not None:  # saved in a pause
            control.should_save = False
            self._answer_saved(state.global_step)
        if control.should_save:
            self._progress.checkpoint()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Answer requests to save or stop."""
        self._answer_saved(state.global_step)

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
                self._recorder.guard("status", lambda now=now: self._recorder.writer.status(now, step=step))
            if not paused or self.stopped:
                return
            if control.should_save:  # the loop does not go on yet: save right now
                control.should_save = False
                if self._trainer.checkpoint_of(step) is None:
                    self._progress.checkpoint()
                    self._trainer.save_checkpoint()
                    self._trainer.tell_saved()
                else:
                    self._answer_saved(step)
            began = time.perf_counter()
            time.sleep(PAUSE_SECONDS)
            self._clock.forget(time.perf_counter() - began)

    def _poll(self, step: int) -> list[Command]:
        """Return the new commands, the same on every process."""
        commands: list[Command] = []
        for request in [] if self._channel is None else self._channel.poll():
            commands.append(request.command)
            if request.command in ("checkpoint", "stop"):
                self._awaiting_checkpoint.append(request)
            else:
                self._acknowledge(request, "paused" if request.command == "pause" else "running", step)
        if self._trainer.accelerator.num_processes > 1:
            commands = broadcast_object_list([commands])[0]
        return commands

    def _answer_saved(self, step: int) -> None:
        path = self._trainer.checkpoint_of(step)
        outcome = "the checkpoint could not be saved; the log says why" if path is None else f"saved as {path.name}"
        waiting, self._awaiting_checkpoint = self._awaiting_checkpoint, []
        for request in waiting:
            self._acknowledge(request, outcome if request.command == "checkpoint" else f"stopping; {outcome}", step)

    def _acknowledge(self, request: Request, outcome: str, step: int) -> None:
        if self._channel is not None:
            self._channel.acknowledge(request, outcome)
        told = f"{request.command}: {outcome}"
        self._recorder.event("control", told, step=step, command=request.command, outcome=outcome)
