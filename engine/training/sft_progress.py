"""How supervised fine-tuning tells its progress to the run's record; requests and evaluation are `RunCallback`'s."""

from __future__ import annotations

import logging
from typing import Any

from ..record.step_recorder import memory_metrics
from .callback import RunCallback

logger = logging.getLogger(__name__)

NAMES = {
    "loss": "train/loss",
    "grad_norm": "train/grad_norm",
    "learning_rate": "train/learning_rate",
    "entropy": "train/entropy",
    "mean_token_accuracy": "train/token_accuracy",
    "num_tokens": "tokens/total",
}
"""TRL's names and ours."""


class SFTProgress(RunCallback):
    """Records every step of the trainer; see `RunCallback`."""

    def _record(self, step: int, logs: dict[str, Any]) -> None:
        if not self.main:
            return
        values = {NAMES[name]: float(value) for name, value in logs.items() if name in NAMES}
        values |= {"time/step": self.trainer.clock.take(), "time/record": self.recorder.take_seconds()}
        self.recorder.values(step, values | memory_metrics())
        nan = float("nan")
        numbers = (values.get(name, nan) for name in ("train/loss", "train/token_accuracy", "time/step"))
        logger.info("step %d  loss %.4f  tokens right %.3f  %.2f s", step, *numbers)
        self.recorder.guard("status", lambda: self.recorder.writer.status("running", step=step))
