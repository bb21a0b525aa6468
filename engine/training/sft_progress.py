"""How supervised fine-tuning tells its progress to the run's record, and how it obeys requests."""

from __future__ import annotations

import time
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .recording import StepRecorder, memory_metrics

PAUSE_POLL_SECONDS = 0.2

NAMES = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "entropy": "train/entropy",
    "mean_token_accuracy": "train/token_accuracy",
    "num_tokens": "tokens/total",
}
"""TRL's names and ours."""


class SFTProgress(TrainerCallback):
    """Records every step, and acts on requests between steps. `stopped`: a request ended the training."""

    def __init__(self, recorder: StepRecorder, control: Any):
        self.recorder = recorder
        self.channel = control
        self.stopped = False
        self._began = time.perf_counter()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Say how many steps there will be."""
        self.recorder.guard(
            "status",
            lambda: self.recorder.writer.status("running", step=state.global_step, total_steps=state.max_steps),
        )

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """The clock of a step starts."""
        self._began = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Requests: pause, resume, checkpoint, stop."""
        self._seconds = time.perf_counter() - self._began
        for request in self._requests(args):
            if request.command == "checkpoint":
                control.should_save = True
                self._acknowledge(args, request, state, "checkpoint saved after this step")
            elif request.command == "stop":
                self._stop(args, request, state, control)
            elif request.command == "pause":
                self._pause(args, request, state, control)
            else:
                self._acknowledge(args, request, state, "was not paused")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """One step's numbers; the summary at the very end has no loss of a step and is not one."""
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        values = {NAMES[k]: float(v) for k, v in logs.items() if k in NAMES}
        values |= {"time/step": self._seconds} | memory_metrics()
        self.recorder.values(state.global_step, values)
        self.recorder.guard("status", lambda: self.recorder.writer.status("running", step=state.global_step))

    def _stop(self, args: TrainingArguments, request: Any, state: TrainerState, control: TrainerControl) -> None:
        self.stopped = True
        control.should_training_stop = True
        control.should_save = True
        self._acknowledge(args, request, state, f"stops after step {state.global_step}, saving first")

    def _pause(self, args: TrainingArguments, request: Any, state: TrainerState, control: TrainerControl) -> None:
        """Wait here until told to go on or to stop."""
        self._acknowledge(args, request, state, f"paused after step {state.global_step}")
        self.recorder.guard("status", lambda: self.recorder.writer.status("paused", step=state.global_step))
        while True:
            for other in self._requests(args):
                if other.command == "stop":
                    self._stop(args, other, state, control)
                    return
                if other.command == "resume":
                    self._acknowledge(args, other, state, "goes on")
                    self.recorder.guard("status", lambda: self.recorder.writer.status("running"))
                    return
                done = "is paused already" if other.command == "pause" else "saved when the run goes on"
                control.should_save |= other.command == "checkpoint"
                self._acknowledge(args, other, state, done)
            time.sleep(PAUSE_POLL_SECONDS)

    def _requests(self, args: TrainingArguments) -> list[Any]:
        """What was asked since the last step; the main process looks, all processes act on the same."""
        asked = [self.channel.poll() if args.process_index == 0 else []]
        if args.world_size > 1:
            broadcast_object_list(asked)
        return list(asked[0])

    def _acknowledge(self, args: TrainingArguments, request: Any, state: TrainerState, outcome: str) -> None:
        if args.process_index == 0:
            self.channel.acknowledge(request, outcome)
            self.recorder.event(
                "control",
                f"{request.command}: {outcome}",
                step=state.global_step,
                command=request.command,
                outcome=outcome,
            )
