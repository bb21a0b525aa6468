"""Trainers whose checkpoints follow the protocol of `checkpoints`: atomic, whole, and without pickle."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from accelerate.utils import is_peft_model
from transformers import Trainer
from trl.trainer.grpo_trainer import GRPOTrainer

from . import checkpoints

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StatePart:
    """How one part of the run's state is saved into a folder and loaded from it.

    The main process saves; it alone loads, too, unless the part lives on every process (`everywhere`).
    """

    save: Callable[[Path], None]
    load: Callable[[Path], None]
    everywhere: bool = False


class Resumable(Trainer):
    """Mix into a trainer, before it: saves to `args.output_dir/checkpoint-N`, from which
    `train(resume_from_checkpoint=…)` goes on.

    `state_parts` are what the main process saves beyond the trainer's own state. `before_commit` runs on the main
    process when everything is written and nothing is published yet. A save that the disk refuses is reported to
    `on_save_failed` and costs the checkpoint, not the run.
    """

    model: Any  # transformers declares these wider than they are here
    args: Any
    accelerator: Any
    num_generations: Any

    keep_checkpoints = 2
    before_commit: Callable[[], None] | None = None
    on_save_failed: Callable[[str], None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.state_parts: list[StatePart] = []
        self.last_checkpoint: Path | None = None

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(str(self.args.output_dir))
        step = self.state.global_step
        try:
            self.last_checkpoint = self._write_checkpoint(folder, step)
        except OSError as problem:
            logger.exception("the checkpoint of step %d could not be saved", step)
            if self.on_save_failed is not None:
                self.on_save_failed(f"the checkpoint of step {step} could not be saved: {problem}")

    def _write_checkpoint(self, folder: Path, step: int) -> Path:
        main = self.accelerator.is_main_process
        temporary = folder / f"{checkpoints.TEMPORARY}{checkpoints.PREFIX}{step}"
        if main:
            checkpoints.begin(folder, step)
        self.accelerator.wait_for_everyone()
        self._save_weights(temporary)
        self._save_optimizer_and_scheduler(str(temporary))
        self._save_scaler(str(temporary))
        checkpoints.save_rng(temporary, self.accelerator.process_index)
        if main:
            self.state.save_to_json(str(temporary / "trainer_state.json"))
            for part in self.state_parts:
                part.save(temporary)
        self.accelerator.wait_for_everyone()
        if main:
            if self.before_commit is not None:
                self.before_commit()
            checkpoints.commit(temporary, self.keep_checkpoints)
        self.accelerator.wait_for_everyone()
        return folder / f"{checkpoints.PREFIX}{step}"

    def _save_weights(self, folder: Path) -> None:
        """The adapter that is trained (its frozen copy is made anew on a resume), or the whole model."""
        model = self.accelerator.unwrap_model(self.model)
        if is_peft_model(model) and not (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            if self.accelerator.is_main_process:
                model.save_pretrained(str(folder), selected_adapters=["default"], save_embedding_layers=False)
        else:
            self.save_model(str(folder), _internal_call=True)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:  # their shards are theirs to save
            super()._save_optimizer_and_scheduler(output_dir)
            return
        if self.accelerator.is_main_process:
            optimizer, scheduler = cast(Any, self.optimizer), cast(Any, self.lr_scheduler)
            checkpoints.save_optimizer(optimizer.state_dict(), Path(output_dir))
            state = scheduler.state_dict()
            (Path(output_dir) / "scheduler.json").write_text(json.dumps(state))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            super()._load_optimizer_and_scheduler(checkpoint)
        else:
            try:
                cast(Any, self.optimizer).load_state_dict(checkpoints.load_optimizer(folder))
                cast(Any, self.lr_scheduler).load_state_dict(json.loads((folder / "scheduler.json").read_text()))
            except (OSError, ValueError, KeyError) as problem:
                raise checkpoints.CheckpointError(f"the checkpoint {checkpoint} is damaged: {problem}") from problem
        for part in self.state_parts:
            if part.everywhere or self.accelerator.is_main_process:
                part.load(folder)

    def _save_rng_state(self, output_dir: str) -> None:
        checkpoints.save_rng(Path(output_dir), self.accelerator.process_index)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None:
            checkpoints.load_rng(Path(checkpoint), self.accelerator.process_index)


class ResumableTrainer(Resumable, GRPOTrainer):
    """TRL's GRPO with these checkpoints."""
