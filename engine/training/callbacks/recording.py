"""Record each step: status, TRL's numbers, and in reinforcement fine-tuning the rollouts."""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import TrainerControl, TrainerState

from ....configs import metric_names as metric
from ...policy.kl import BetaController
from ...record.step_recorder import NAMES, StepRecorder, memory_metrics
from ...rollouts.judging import Judge
from ...runs.write.writer import Values
from ..env_trainer import GRPOEnvTrainer
from ..resumable import Resumable
from .base import Logs, RunCallback

logger = logging.getLogger(__name__)

TrainerT = TypeVar("TrainerT", bound=Resumable)
SAMPLES = 1024
"""How many weights of each tensor to follow. Of sharded weights, those of the main process."""


@dataclass(eq=False)
class StepRecording(RunCallback, Generic[TrainerT]):
    """Records each step on the main process, calls the `observers` with its recorded metrics, and logs `SHOWN`."""

    SHOWN: ClassVar[tuple[tuple[str, str], ...]]
    trainer: TrainerT
    recorder: StepRecorder
    observers: list[Callable[[int, Values], None]] = field(default_factory=list, init=False)
    _began: float = field(default_factory=time.perf_counter, init=False)
    """When the step began."""

    def on_train_begin(self, args: object, state: TrainerState, *_: object, **kwargs: object) -> None:
        writer = self.recorder.writer
        self.recorder.guard(
            "status", lambda: writer.status("running", step=state.global_step, total_steps=state.max_steps)
        )

    def on_step_begin(self, *_: object, **kwargs: object) -> None:
        self._began = time.perf_counter()

    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        state.log_history = state.log_history[-1:]  # the record has all of them
        if not self.trainer.accelerator.is_main_process:
            return
        step = state.global_step
        times = {metric.RECORD_SECONDS: self.recorder.take_seconds()}  # of the previous step: this one is not done yet
        values = self.record(step, logs, {**times, metric.STEP_SECONDS: time.perf_counter() - self._began})
        self.recorder.guard("status", lambda: self.recorder.writer.status("running", step=step))
        for observer in self.observers:
            observer(step, values)
        # An update on a reused batch has no reward.
        shown = (text.format(values[name]) for text, name in self.SHOWN if name in values)
        logger.info("  ".join((f"step {step}", *shown)))

    @abstractmethod
    def record(self, step: int, logs: Logs, times: Mapping[str, float]) -> Values:
        """Record a step, and return its metrics as recorded."""


@dataclass(eq=False)
class GRPORecording(StepRecording[GRPOEnvTrainer]):
    """Records the step's rollouts and all measurements. controller: of an automatic beta."""

    SHOWN = (
        ("reward {:z.3f}", metric.TRL("reward")),
        ("success {:.2f}", metric.SUCCESS_TRAIN),
        ("kl {:z.4f}", metric.KL_MEAN),
        ("{:.2f} s", metric.STEP_SECONDS),
    )
    controller: BetaController | None

    def on_train_begin(self, args: object, state: TrainerState, *_: object, **kwargs: object) -> None:
        """Record the active components and rules, again on every resume."""
        super().on_train_begin(args, state)
        self._movement = Movement(self.trainer.accelerator.unwrap_model(self.trainer.model))
        if (rewards := self.trainer.orchestrator) is not None:
            rules = {rule.id: rule.amount for rule in rewards.rules}
            self.recorder.event(
                "rewards", "rewards in force", step=state.global_step, weights=rewards.weights, rules=rules
            )

    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        """Collect the loss terms of all processes, then record the step."""
        self.trainer.loss_terms.take(self.trainer.accelerator.num_processes)
        super().after_step(state, control, logs)

    def record(self, step: int, logs: Logs, times: Mapping[str, float]) -> Values:
        """Record the step with the beta that it used."""
        trainer = self.trainer
        rollouts, judge = trainer.rollouts, trainer.runner.judge
        measured = {**trainer.mismatch.metrics(), **rollouts.metrics}
        measured |= judge.take_metrics() if isinstance(judge, Judge) else {}
        measured |= {**trainer.phases.take(), metric.BETA: trainer.beta, **times}
        now, epoch = time.perf_counter(), time.time() - time.perf_counter()
        spans = {**trainer.phases.spans.take(), "step": [(now - times.get(metric.STEP_SECONDS, 0.0), now)]}
        timeline = {name: [(start + epoch, ended + epoch) for start, ended in some] for name, some in spans.items()}
        self.recorder.guard("timeline", lambda: self.recorder.writer.timeline(step, timeline))
        if (beta := self.controller) is not None:
            measured |= {metric.KL_TARGET: beta.target_kl, metric.KL_TOLERANCE: beta.kl_tolerance}
        if trainer.entropy_coef:
            measured[metric.ENTROPY_WEIGHT] = trainer.entropy_coef
        moved = self._movement.measure(logs.get("learning_rate", 0.0), logs.get("grad_norm", 0.0))
        if moved is not None:
            measured[metric.MOVEMENT] = moved
        return self.recorder.step(
            step, logs, measured, rollouts.generated, rollouts.replayed, trainer.loss_terms.latest
        )


class SFTRecording(StepRecording[Resumable]):
    """Records the numbers of a step of supervised fine-tuning."""

    SHOWN = (
        ("loss {:.4f}", metric.LOSS),
        ("tokens right {:.3f}", metric.TOKEN_ACCURACY),
        ("{:.2f} s", metric.STEP_SECONDS),
    )

    def record(self, step: int, logs: Logs, times: Mapping[str, float]) -> Values:
        values = {NAMES[name]: float(value) for name, value in logs.items() if name in NAMES}
        values |= {**times, **memory_metrics()}
        self.recorder.values(step, values)
        return values


class Movement:
    """Follows some weights of each trainable tensor.

    Adam changes a weight by about the learning rate in each update (Kingma and Ba, arXiv 1412.6980, section 2.1). The
    mean change divided by the sum of the learning rates is therefore near 1 at first and falls as updates cancel. It
    is near 0 if updates are lost: rounded away in bfloat16, frozen, or not given to the optimiser.
    """

    def __init__(self, model: nn.Module) -> None:
        self._weights = [p for p in model.parameters() if p.requires_grad]
        self._start = [_sample(p) for p in self._weights]
        self._rates = 0.0

    def measure(self, learning_rate: float, grad_norm: float) -> float | None:
        """Return the median over tensors of the mean change, divided by the summed learning rates of updates that had a
        gradient. Returns None before the first of them."""
        self._rates += learning_rate if grad_norm > 0 else 0.0
        if not self._weights or self._rates == 0:
            return None
        changes = zip(self._weights, self._start, strict=True)
        return median(float((_sample(p) - start).abs().mean()) for p, start in changes) / self._rates


def _sample(weight: Tensor) -> Tensor:
    flat = (weight.to_local() if isinstance(weight, DTensor) else weight).detach().flatten()
    return flat[:: max(1, len(flat) // SAMPLES)][:SAMPLES].to("cpu", torch.float32, copy=True)
