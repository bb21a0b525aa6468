"""What the detectors find in a step, as events of the record."""

from __future__ import annotations

from collections.abc import Mapping

from ....configs.sections.rewards import SHAPED
from ....rewards.diagnosis import Diagnosis, batch_of
from ...record.step_recorder import StepRecorder
from ..env_trainer import GRPOEnvTrainer


class Findings:
    """Shows each recorded step to the detectors; see `StepRecording.observers`."""

    def __init__(self, trainer: GRPOEnvTrainer, recorder: StepRecorder, diagnosis: Diagnosis) -> None:
        self._trainer = trainer
        self._recorder = recorder
        self._diagnosis = diagnosis

    def __call__(self, step: int, metrics: Mapping[str, float]) -> None:
        """Look for what can go wrong; a detector that fails costs nothing but its findings."""
        self._recorder.guard("diagnosis", lambda: self._observe(step, metrics))

    def _observe(self, step: int, metrics: Mapping[str, float]) -> None:
        seen = [
            (r.trajectory, r.breakdown, r.agent_tokens)
            for r in self._trainer.rollouts.generated
            if r.trajectory is not None and r.breakdown is not None
        ]
        if not seen:
            return
        trajectories, breakdowns, tokens = zip(*seen, strict=True)
        apart = SHAPED if self._trainer.pipeline.scorer.method.shaping_apart else ()
        for finding in self._diagnosis.observe(batch_of(step, trajectories, breakdowns, metrics, tokens, apart)):
            self._recorder.event(
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
