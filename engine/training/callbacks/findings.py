"""Record the detectors' findings in each step as events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import TrainerState

from ....configs.errors import ConfigError, Problem
from ....configs.sections.rewards import SHAPED
from ....rewards.batches import Batch, HeldOut, RolloutSummary, rollout_of, surprise_of
from ....rewards.causes import EXPLAINS
from ....rewards.detectors import Finding
from ....rewards.diagnosis import Diagnosis
from ....rewards.metrics import flat
from ...record.step_recorder import StepRecorder
from ...rollouts.rollout import Rollout
from ...runs.control.requests import request
from ...runs.learning import UseKind
from ...runs.types import LossTerms
from ...runs.write.writer import Values
from ..env_trainer import GRPOEnvTrainer
from .base import RunCallback


@dataclass(eq=False)
class Findings(RunCallback):
    """Shows each recorded step to the detectors (see `StepRecording.observers`). A cause listed in
    `rewards.diagnosis.stop_on` stops the run. Raises ConfigError if there is no such detector."""

    trainer: GRPOEnvTrainer
    recorder: StepRecorder
    diagnosis: Diagnosis
    run_dir: Path

    def __post_init__(self) -> None:
        self._stop_on, known = self.diagnosis.config.stop_on, {*EXPLAINS, *self.diagnosis.detectors}
        if unknown := [name for name in self._stop_on if name not in known]:
            problem = f"there is no detector {unknown[0]}"
            raise ConfigError([Problem("rewards.diagnosis.stop_on", problem, ", ".join(sorted(known)))])

    def __call__(self, step: int, metrics: Values) -> None:
        """Run the detectors. A detector that fails does not stop training."""
        self.recorder.guard("diagnosis", lambda: self._observe(step, metrics))

    def on_train_end(self, args: object, state: TrainerState, *_: object, **kwargs: object) -> None:
        """Run the detectors on a training shorter than the window."""
        self.recorder.guard("diagnosis", lambda: self._record(state.global_step, self.diagnosis.end()))

    def _observe(self, step: int, metrics: Values) -> None:
        rollouts = self._summaries(self.trainer.rollouts.generated, self.trainer.loss_terms.latest)
        self._record(step, self.diagnosis.observe(Batch(step, rollouts, flat(metrics))))
        if self._stop_on:
            causes = [f.finding.detector for f in self.diagnosis.found() if f.grave and not f.cause]
            if reason := next((name for name in causes if name in self._stop_on), ""):
                self._stop_on = []
                self.recorder.event("note", f"The run stops on {reason} (rewards.diagnosis.stop_on).", step=step)
                request(self.run_dir, "stop")

    def evaluated(self, step: int, rollouts: Sequence[Rollout], success: float | None) -> None:
        """Compare later steps with this evaluation. A failure does not stop training."""
        self.recorder.guard(
            "diagnosis", lambda: self.diagnosis.evaluated(HeldOut(step, self._summaries(rollouts, {}), success))
        )

    def _summaries(self, rollouts: Sequence[Rollout], loss: Mapping[str, LossTerms]) -> list[RolloutSummary]:
        scorer = self.trainer.pipeline.scorer
        shaped = SHAPED if scorer.method.shaping_apart else ()
        compared = not scorer.method.on_last_token and scorer.distillation is None
        firsts = {r.trajectory.group: r.key for r in reversed(rollouts) if r.trajectory is not None}
        return [
            rollout_of(
                r.trajectory,
                r.breakdown,
                r.agent_tokens,
                shaped,
                advantage=r.advantage if compared and r.advantages is not None else None,
                surprise=None
                if r.logprobs is None
                else surprise_of(r.trajectory, r.logprobs.tolist(), r.agent_mask.tolist()),
                loss=loss.get(r.key),
                selected=r.selected == UseKind.TRAINED,
                read=self._read(r) if firsts[r.trajectory.group] == r.key else None,
            )
            for r in rollouts
            if r.trajectory is not None
        ]

    def _read(self, rollout: Rollout) -> tuple[str, str] | None:
        """Return the texts of the tokens before and after the start of the first turn; None if none are before it."""
        steps = () if rollout.trajectory is None else rollout.trajectory.steps
        start, ids = steps[0].token_span[0] if steps else 0, rollout.token_ids.tolist()
        before, after = (str(self.trainer.tokenizer.decode(part)) for part in (ids[:start], ids[start:]))
        return (before, after) if start else None

    def _record(self, step: int, found: Iterable[Finding]) -> None:
        for finding in found:
            self.recorder.event(
                "note" if finding.severity == "good" else "alert",
                finding.message,
                step=step,
                detector=finding.detector,
                subject=finding.subject,
                severity=finding.severity,
                value=finding.value,
                threshold=finding.threshold,
                trajectories=list(finding.trajectories),
            )
