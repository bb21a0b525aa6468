"""What all callbacks of a run have in common: when they act."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

Logs = dict[str, float]
"""The trainer's own numbers of an optimiser step, by TRL's names."""


class AfterStep(TrainerCallback, ABC):
    """Acts once after each optimiser step: its numbers are known, and its checkpoint is not written yet."""

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Logs | None = None,
        **kwargs: Any,
    ) -> None:
        """Skip the summary at the end of training, which has no loss."""
        if logs and "loss" in logs:
            self.after_step(state, control, logs)

    @abstractmethod
    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        """Act after optimiser step `state.global_step`. The trainer then does the work that is set in `control`."""
