"""The points in a training at which callbacks act."""

from __future__ import annotations

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

Logs = dict[str, float]
"""The trainer's own numbers of an optimiser step, by TRL's names."""


class RunCallback(TrainerCallback):
    """Base of the run's callbacks. Subclasses override the methods at which they act."""

    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        """Act after optimiser step `state.global_step`, when its numbers are known but its checkpoint is not written.
        The trainer then does the work requested in `control`."""

    def saved(self, step: int) -> None:
        """Act after a checkpoint was written, or the disk refused it."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Logs | None = None,
        **kwargs: object,
    ) -> None:
        """Skip the summary at the end of training, which has no loss."""
        if logs and "loss" in logs:
            self.after_step(state, control, logs)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object) -> None:
        self.saved(state.global_step)
