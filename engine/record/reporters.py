"""Send metrics to Weights & Biases and to transformers' integrations, in addition to the run's record."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from transformers import Trainer
from transformers.integrations.integration_utils import get_reporting_integration_callbacks

from ...configs.errors import GrpoTuiError
from ...configs.schema import RunConfig
from .step_recorder import StepRecorder
from .wandb_sink import WandbSink


class ReportError(GrpoTuiError, RuntimeError):
    """A tracker in `logging.report_to` cannot be used."""


@contextmanager
def reported(config: RunConfig, run_dir: Path, recorder: StepRecorder, trainer: Trainer) -> Iterator[None]:
    """Send metrics to the trackers in `logging` inside the block, on the main process only. Raises ReportError."""
    with ExitStack() as stack:
        if trainer.accelerator.is_main_process:
            if config.logging.wandb_mode != "off":
                sink = WandbSink(
                    config.logging,
                    run_dir,
                    run_id=run_dir.name,
                    name=config.name,
                    run_config=config.model_dump(mode="json"),
                    on_problem=lambda message: recorder.event("record", message),
                )
                stack.callback(sink.close)
                recorder.sinks.append(sink)
            for name in config.logging.report_to:
                if name != "wandb":
                    tracker = Tracker(name, run_dir, trainer)
                    stack.callback(recorder.guard, name, tracker.close)
                    recorder.sinks.append(tracker)
        yield


class Tracker:
    """A transformers integration such as tensorboard, mlflow or trackio, configured by its own environment variables.

    name: as in transformers' `report_to`. Raises ReportError if it is unknown or not installed.
    """

    def __init__(self, name: str, run_dir: Path, trainer: Trainer) -> None:
        os.environ.setdefault("TENSORBOARD_LOGGING_DIR", str(run_dir / "tensorboard"))
        self._trainer = trainer
        try:
            (kind,) = get_reporting_integration_callbacks([name])
            self._callback = kind()
            self._call("on_train_begin", trainer.state.global_step)
        except Exception as error:  # each integration raises its own errors
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            raise ReportError(f"logging.report_to: {name} cannot be used: {reason}") from error

    def log(self, step: int, metrics: Mapping[str, float | Mapping[str, float]], *, axis: str | None = None) -> None:
        """Log the metrics of a step, without `train/`, because transformers adds that prefix."""
        numbers = {k.removeprefix("train/"): v for k, v in metrics.items() if isinstance(v, (int, float))}
        self._call("on_log", step, logs=numbers)

    def close(self) -> None:
        self._call("on_train_end", self._trainer.state.global_step)

    def _call(self, event: str, step: int, **more: object) -> None:
        trainer = self._trainer
        state = copy.copy(trainer.state)
        state.global_step = step
        getattr(self._callback, event)(trainer.args, state, trainer.control, model=trainer.model, **more)
