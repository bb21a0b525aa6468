"""What happens around the optimiser steps of a run: recording, evaluation, beta, findings, and requests of people."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from ..policy.prepared import acting
from ..record.step_recorder import StepRecorder
from ..rollouts.evaluation import Evaluation, evaluate
from ..rollouts.runner import Row
from .step_progress import StepProgress

if TYPE_CHECKING:
    from .env_trainer import GRPOEnvTrainer

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2


class RunCallback(TrainerCallback):
    """One for a run, on every process; only the main one records and listens to requests.

    eval_rows: held-out tasks; evaluated before the first step, every `eval_every` steps (0: not in between) and after
    the last. save_every, save_minutes: a checkpoint is due after so many steps or minutes (0: not for that reason), and
    always at the start, after the first step and after the last. control: `engine.runs.control.ControlChannel` (None:
    nobody asks for anything). diagnosis: `rewards.diagnosis.Diagnosis` (None: no detectors). on_progress: called with
    (step, metrics) after each step.
    """

    def __init__(
        self,
        trainer: GRPOEnvTrainer,
        recorder: StepRecorder,
        *,
        eval_rows: Sequence[Row] = (),
        eval_every: int = 0,
        save_every: int = 0,
        save_minutes: float = 0.0,
        control: Any = None,
        diagnosis: Any = None,
        seed: int = 0,
        on_progress: Callable[[int, dict[str, Any]], None] | None = None,
    ) -> None:
        self.trainer = trainer
        self.recorder = recorder
        self.eval_rows = list(eval_rows)
        self.eval_every = eval_every
        self.save_every = save_every
        self.save_minutes = save_minutes
        self.control_channel = control
        self.diagnosis = diagnosis
        self.seed = seed
        self.on_progress = on_progress
        self.stopped = False
        """A person or a signal asked the run to stop."""
        self.last_evaluation: dict[str, float] = {}
        self.evaluated_at = -1
        """The last step whose evaluation is recorded."""
        self._asked_checkpoint: list[Any] = []
        self.progress = StepProgress(recorder)
        trainer.runner.on_progress = self.progress.rollouts
        self._saved_at = time.monotonic()

    @property
    def main(self) -> bool:
        """Whether this is the process that records."""
        return self.trainer.accelerator.is_main_process

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A first checkpoint, status, and where the policy stands before the first step."""
        total = state.max_steps
        self._saved_at = time.monotonic()
        if self.trainer.last_checkpoint is None:  # whoever is killed from here on has something to go on from
            self.trainer._save_checkpoint(self.trainer.model, None)
        self.recorder.guard(
            "status", lambda: self.recorder.writer.status("running", step=state.global_step, total_steps=total)
        )
        if state.global_step == 0:
            self.evaluate(0)
        self.recorder.event("phase", "training", step=state.global_step, name="training")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """After each optimiser step, before a checkpoint: record it, move beta, evaluate, and do what people ask."""
        if not logs or "loss" not in logs:
            return
        step = state.global_step
        state.log_history = state.log_history[-1:]  # the record has all of them
        self._record(step, logs)
        last = step >= state.max_steps
        if last or (self.eval_every and step % self.eval_every == 0):
            self.evaluate(step)
        if self._save_is_due(step, last):
            control.should_save = True
        self._serve(step, control)
        if self.stopped:
            control.should_training_stop = True
            control.should_save = True
        if control.should_save and self._saved(step) is not None:  # during a pause
            control.should_save = False
            self._answer_saved(step)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """A checkpoint was written (or the disk refused it)."""
        self._saved_at = time.monotonic()
        step = state.global_step
        path = self._saved(step)
        if path is not None:
            self.recorder.event("checkpoint", f"checkpoint of step {step}", step=step, path=str(path))
        self._answer_saved(step)

    def _saved(self, step: int) -> Path | None:
        """The checkpoint of this step, when there is one."""
        path = self.trainer.last_checkpoint
        return path if path is not None and path.name.endswith(f"-{step}") else None

    def _answer_saved(self, step: int) -> None:
        path = self._saved(step)
        self._answer("the checkpoint could not be saved; the log says why" if path is None else f"saved as {path.name}")

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Where the step is, for who watches."""
        self.progress.step(args.gradient_accumulation_steps)

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """One micro-batch of the step went through."""
        self.progress.micro_batch()

    def _save_is_due(self, step: int, last: bool) -> bool:
        """The same answer on every process: the main one's clock decides."""
        minutes = (time.monotonic() - self._saved_at) / 60
        due = last or step == 1 or bool(self.save_every and step % self.save_every == 0)
        due |= bool(self.save_minutes and minutes >= self.save_minutes)
        if self.trainer.accelerator.num_processes > 1:
            due = broadcast_object_list([due])[0]
        return due

    def evaluate(self, step: int) -> None:
        """Success on the held-out tasks, greedy and at temperature 1; every process takes its share."""
        if not self.eval_rows or self.evaluated_at == step:
            return
        self.evaluated_at = step
        self.recorder.event("phase", "evaluating", step=step, name="evaluating")
        began = time.perf_counter()
        trainer = self.trainer
        self.progress.acting = "evaluation"
        with acting(trainer.accelerator.unwrap_model(trainer.model)):
            greedy, sampled = (self._evaluate(step, temperature) for temperature in (0.0, 1.0))
        self.progress.acting = "rollouts"
        self.last_evaluation = {"success/eval_greedy": greedy.success, "success/eval_sampled": sampled.success}
        seconds = time.perf_counter() - began
        if self.main:
            self.recorder.values(step, {**self.last_evaluation, "time/evaluate": seconds})
            self.recorder.trajectories(step, greedy.rollouts, "eval")
            self.recorder.event(
                "eval",
                f"held-out success {greedy.success:.0%} greedy, {sampled.success:.0%} at temperature 1 "
                f"({greedy.n} tasks)",
                step=step,
                split="eval",
                greedy=greedy.success,
                sampled=sampled.success,
                n=greedy.n,
            )
        trainer.clock.forget(seconds)

    def _evaluate(self, step: int, temperature: float) -> Evaluation:
        accelerator = self.trainer.accelerator
        return evaluate(
            self.trainer.runner,
            self.eval_rows,
            temperature=temperature,
            seed=self.seed,
            step=step,
            process_index=accelerator.process_index,
            num_processes=accelerator.num_processes,
            gather=gather_object if accelerator.num_processes > 1 else None,
        )

    def _record(self, step: int, logs: dict[str, Any]) -> None:
        trainer = self.trainer
        beta = trainer.beta
        self._move_beta(step, logs)
        loss = trainer.take_loss_terms()
        if not self.main:
            return
        measured = {**trainer.step_metrics, **trainer.phases.take(), "kl/beta": beta}
        measured["time/record"] = self.recorder.take_seconds()  # of the step before: this one's is being spent
        measured["time/step"] = trainer.clock.take()
        if trainer.beta_controller is not None:
            measured["kl/target"] = trainer.beta_controller.config.target_kl
            measured["kl/tolerance"] = trainer.beta_controller.config.kl_tolerance
        values = self.recorder.step(step, logs, measured, trainer.generated, trainer.rollouts.replayed, loss)
        self.recorder.guard("status", lambda: self.recorder.writer.status("running", step=step))
        self._diagnose(step, values)
        if self.on_progress is not None:
            self.on_progress(step, values)

    def _move_beta(self, step: int, logs: dict[str, Any]) -> None:
        """The same rule on every process, from the same (already averaged) KL."""
        controller, kl = self.trainer.beta_controller, logs.get("kl")
        if controller is None or kl is None or not -1e9 < kl < 1e9:
            return
        change = controller.update(float(kl), step)
        self.trainer.beta = controller.beta
        if change is not None and self.main:
            self.recorder.event(
                "beta",
                f"beta {change.old:.4g} → {change.new:.4g}: {change.reason}",
                step=step,
                **{"from": change.old, "to": change.new},
                reason=change.reason,
                mean_kl=change.mean_kl,
                target_kl=controller.config.target_kl,
                tolerance=controller.config.kl_tolerance,
            )

    def _diagnose(self, step: int, metrics: dict[str, Any]) -> None:
        samples = [s for s in self.trainer.generated if s.trajectory is not None and s.breakdown is not None]
        if self.diagnosis is None or not samples:
            return

        def observe() -> None:
            from ...rewards.diagnosis import batch_of

            batch = batch_of(
                step,
                [s.trajectory for s in samples],  # type: ignore[misc]
                [s.breakdown for s in samples],  # type: ignore[misc]
                {k: v for k, v in metrics.items() if v is not None},
                [s.agent_tokens for s in samples],
            )
            for finding in self.diagnosis.observe(batch):
                self.recorder.event(
                    "note" if finding.grade == "good" else "alert",
                    finding.message,
                    step=step,
                    detector=finding.detector,
                    subject=finding.subject,
                    grade=finding.grade,
                    value=finding.value,
                    threshold=finding.threshold,
                    trajectories=list(finding.trajectories),
                )

        self.recorder.guard("diagnosis", observe)

    # What people ask for.

    def _serve(self, step: int, control: TrainerControl) -> None:
        """Pause, resume, checkpoint or stop, on every process alike. What is due is saved before a pause."""
        paused = False
        while True:
            for command in self._poll():
                if command == "checkpoint":
                    control.should_save = True
                    continue
                self.stopped |= command == "stop"
                paused = command == "pause"
                now = "stopping" if self.stopped else "paused" if paused else "running"
                self.recorder.guard("status", lambda now=now: self.recorder.writer.status(now, step=step))
            if not paused or self.stopped:
                return
            if control.should_save:  # the loop does not go on yet: save right now
                control.should_save = False
                if self._saved(step) is None:
                    self.progress.checkpoint()
                    self.trainer._save_checkpoint(self.trainer.model, None)
                    self.on_save(self.trainer.args, self.trainer.state, control)
                else:
                    self._answer_saved(step)
            began = time.perf_counter()
            time.sleep(PAUSE_SECONDS)
            self.trainer.clock.forget(time.perf_counter() - began)

    def _poll(self) -> list[str]:
        commands: list[str] = []
        if self.main and self.control_channel is not None:
            for request in self.control_channel.poll():
                commands.append(request.command)
                if request.command in ("checkpoint", "stop"):
                    self._asked_checkpoint.append(request)
                else:
                    self._acknowledge(request, "paused" if request.command == "pause" else "running")
        if self.trainer.accelerator.num_processes > 1:
            commands = broadcast_object_list([commands])[0]
        return commands

    def _acknowledge(self, request: Any, outcome: str) -> None:
        self.control_channel.acknowledge(request, outcome)
        self.recorder.event(
            "control",
            f"{request.command}: {outcome}",
            step=self.trainer.state.global_step,
            command=request.command,
            outcome=outcome,
        )

    def _answer(self, outcome: str) -> None:
        asked, self._asked_checkpoint = self._asked_checkpoint, []
        for request in asked:
            self._acknowledge(request, outcome if request.command == "checkpoint" else f"stopping; {outcome}")
