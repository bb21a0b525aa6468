"""Where training is inside a step, told as it happens: a step of a large model takes minutes."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ...record.step_recorder import StepRecorder
from ..phases import StepClock


class StepProgress(TrainerCallback):
    """Turns what the parts of a step say about themselves into the run's `Progress`, and starts the step's clock.

    Phases in order: `rollouts` (those that have ended, of how many), `log-probs`, `rewards`, `update` (micro-batches);
    beside them `evaluation` (held-out rollouts) and `checkpoint`.
    """

    def __init__(self, recorder: StepRecorder, clock: StepClock) -> None:
        self._recorder = recorder
        self._clock = clock
        self.micro_batches = 0
        """Micro-batches of an optimiser step."""
        self._updated = 0
        self._scored = False
        self.acting = "rollouts"
        """What rollouts are made for: `rollouts` of a step, or an `evaluation`."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The first step is about to begin."""
        self._recorder.event("phase", "training", step=state.global_step, name="training")

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A step begins."""
        self._clock.begin()
        self.micro_batches, self._updated, self._scored = args.gradient_accumulation_steps, 0, False
        self._tell("update", 0, self.micro_batches)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """One more micro-batch has gone through."""
        self._updated += 1
        self._tell("update", self._updated, self.micro_batches)

    def rollouts(self, ended: int, total: int) -> None:
        """So many rollouts have ended."""
        self._scored = False
        self._tell(self.acting, ended, total)

    def phase(self, name: str) -> None:
        """A phase of `PhaseClock` begins. Log-probs after the rewards are those of the update itself."""
        if name == "reward":
            self._scored = True
            self._tell("rewards")
        elif name == "logprobs" and self._scored:
            self._tell("update", self._updated, self.micro_batches)
        elif name == "logprobs":
            self._tell("log-probs")

    def checkpoint(self) -> None:
        """A checkpoint is being written."""
        self._tell("checkpoint")

    def _tell(self, phase: str, done: int = 0, total: int = 0) -> None:
        self._recorder.guard("progress", lambda: self._recorder.writer.progress(phase, done, total))
