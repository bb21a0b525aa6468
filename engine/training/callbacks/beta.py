"""Beta that follows the measured KL: calls `BetaController` once after each step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from transformers import TrainerControl, TrainerState

from ...policy.kl import BetaController
from ...record.step_recorder import StepRecorder
from ..env_trainer import GRPOEnvTrainer
from ..resumable import StatePart
from .base import Logs, RunCallback

FILE = "beta.json"


@dataclass(eq=False)
class AutomaticBeta(RunCallback):
    """Moves the trainer's beta by the controller's rule. Every process uses the same (already averaged) KL. The
    checkpoints store the controller's state."""

    trainer: GRPOEnvTrainer
    recorder: StepRecorder
    controller: BetaController

    def __post_init__(self) -> None:
        self.trainer.state_parts.append(StatePart(self._save, self._load, everywhere=True))

    def after_step(self, state: TrainerState, control: TrainerControl, logs: Logs) -> None:
        kl, controller = logs.get("kl"), self.controller
        if kl is None or not -1e9 < kl < 1e9:
            return
        change = controller.update(float(kl), state.global_step)
        self.trainer.beta = controller.beta
        if change is not None and self.trainer.accelerator.is_main_process:
            self.recorder.event(
                "beta",
                f"beta {change.old:.4g} → {change.new:.4g}: {change.reason}",
                step=state.global_step,
                **{"from": change.old, "to": change.new},
                reason=change.reason,
                mean_kl=change.mean_kl,
                target_kl=controller.target_kl,
                tolerance=controller.kl_tolerance,
            )

    def _save(self, folder: Path) -> None:
        (folder / FILE).write_text(json.dumps(self.controller.state_dict()))

    def _load(self, folder: Path) -> None:
        self.controller.load_state_dict(json.loads((folder / FILE).read_text()))
        self.trainer.beta = self.controller.beta
