"""Trainers whose checkpoints follow the protocol of `checkpoints`: atomic, complete, and without pickle."""

from __future__ import annotations

import inspect
import json
import logging
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from accelerate.utils import gather_object, is_peft_model
from peft import get_peft_model_state_dict
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import Trainer
from trl.trainer.grpo_trainer import GRPOTrainer

from . import TrainingError, checkpoints
from .optimizer_state import load_optimizer, save_optimizer
from .sharding import shard, whole

logger = logging.getLogger(__name__)

Hooks = Mapping[str, tuple[tuple[str, ...], tuple[str, ...]] | None]
"""Methods of a library's class, each with the arguments of its calls: by position, and by name (None: any)."""
HOOKS: Hooks = {
    "_get_grad_norm": (("model", "grad_norm"), ()),
    "_inner_training_loop": None,
    "_load_from_checkpoint": (("resume_from_checkpoint", "model"), ()),
    "_load_optimizer_and_scheduler": (("checkpoint",), ()),
    "_load_rng_state": (("checkpoint",), ()),
    "_run_epoch": None,
    "_save_checkpoint": (("model", "trial"), ()),
    "_save_optimizer_and_scheduler": (("output_dir",), ()),
    "_save_rng_state": (("output_dir",), ()),
    "_save_scaler": (("output_dir",), ()),
    "create_optimizer": None,
    "create_scheduler": None,
    "save_model": (("output_dir",), ("_internal_call",)),
}
"""What `Resumable` replaces or calls of transformers' Trainer."""


def check_hooks(kind: type, hooks: Hooks, message: Callable[[str], str]) -> None:
    """Raise TrainingError unless every method exists and takes its arguments."""
    for name, arguments in hooks.items():
        positions, names = arguments or ((), ())
        try:
            signature = inspect.signature(getattr(kind, name))
            if arguments is not None:
                signature.bind(None, *positions, **dict.fromkeys(names))
        except (AttributeError, TypeError) as error:
            raise TrainingError(message(f"{name}({', '.join((*positions, *names))})")) from error


def _message(hook: str) -> str:
    return (
        f"transformers {transformers.__version__} has no Trainer.{hook}, which training needs; install a tested one: "
        "pip install 'transformers>=5.16,<6'"
    )


@dataclass(frozen=True)
class StatePart:
    """How to save one part of the run's state into a folder and load it again.

    Only the main process saves. Only it loads, unless the part exists on every process (`everywhere`).
    """

    save: Callable[[Path], object]
    load: Callable[[Path], object]
    everywhere: bool = False


class FiniteUpdates(Trainer):
    """Leaves out updates whose gradient is not finite, which would replace all weights with NaN."""

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        norm: Any = super()._get_grad_norm(model, grad_norm)
        if not math.isfinite(norm):
            logger.warning(
                "the gradient of step %d is not finite, so its update is left out", self.state.global_step + 1
            )
            model.zero_grad()
        return norm


class Resumable(FiniteUpdates):
    """Mix in before a trainer class. Saves to `args.output_dir/checkpoint-N`, from which
    `train(resume_from_checkpoint=…)` continues.

    The main process saves `state_parts` in addition to the trainer's own state. It runs `before_commit` after writing
    everything and before publishing anything. If the disk refuses a save, the run loses the checkpoint and continues.
    `on_trouble` is called then, and for each part of the state that a checkpoint lacks.
    """

    model: Any  # transformers declares these wider than they are here
    args: Any
    accelerator: Any
    num_generations: Any

    sharded = False
    """Whether the weights are sharded over the processes (`sharding`)."""
    updates_per_batch = 1
    keep_checkpoints = 2
    keep_adapters = 0
    before_commit: Callable[[], None] | None = None
    on_trouble: Callable[[str], None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_hooks(Trainer, HOOKS, _message)
        with _naming_fields():
            super().__init__(*args, **kwargs)
        self.state_parts: list[StatePart] = []
        self.last_checkpoint: Path | None = None

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        with _naming_fields():
            return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        with _naming_fields():
            return super().create_scheduler(*args, **kwargs)

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Shard the weights before training if configured. Weights of a checkpoint are loaded by then."""
        if self.sharded:
            shard(self.model, self.accelerator)
        return super()._inner_training_loop(*args, **kwargs)

    def _run_epoch(self, *args: object, **kwargs: object) -> Any:
        """Stop if all steps are done. transformers checks this only after one more step."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return None
        return super()._run_epoch(*args, **kwargs)

    @property
    def between_batches(self) -> bool:
        """Whether the last batch of rollouts has served all its updates. Checkpoints hold no rollouts."""
        return self.state.global_step % self.updates_per_batch == 0 or self.state.global_step >= self.state.max_steps

    def checkpoint_of(self, step: int) -> Path | None:
        """Return the checkpoint of this step if it is the last one saved."""
        path = self.last_checkpoint
        return path if path is not None and path.name == f"{checkpoints.PREFIX}{step}" else None

    def save_checkpoint(self) -> None:
        self._save_checkpoint(self.model, None)

    def tell_saved(self) -> None:
        """Notify the callbacks of `save_checkpoint`."""
        self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _save_checkpoint(self, model: object, trial: object) -> None:
        folder, step, main = Path(self.args.output_dir), self.state.global_step, self.accelerator.is_main_process
        temporary = folder / f"{checkpoints.TEMPORARY}{checkpoints.PREFIX}{step}"
        stages = (
            lambda: checkpoints.begin(folder, step) if main else None,
            lambda: self._write_parts(temporary, main),
            lambda: self._publish(temporary) if main else None,
        )
        problem = next((problem for stage in stages if (problem := self._on_all(stage)) is not None), None)
        if problem is None:
            self.last_checkpoint = folder / f"{checkpoints.PREFIX}{step}"
            return
        if main:
            checkpoints.discard(folder)
        logger.error("the checkpoint of step %d could not be saved: %s", step, problem)
        if self.on_trouble is not None:
            kept = self.last_checkpoint.name if self.last_checkpoint is not None else "there is none before it"
            self.on_trouble(
                f"the checkpoint of step {step} could not be saved ({problem}); training continues, and the last one "
                f"is {kept}"
            )

    def _on_all(self, stage: Callable[[], object]) -> str | None:
        """Run one stage on every process. Return the first problem of any of them."""
        problem = None
        try:
            stage()
        except (OSError, SafetensorError) as error:  # safetensors raises its own error for a full disk
            logger.exception("saving a checkpoint")
            problem = error.strerror or str(error) if isinstance(error, OSError) else str(error)
        if self.accelerator.num_processes > 1:
            problem = next((p for p in gather_object([problem]) if p is not None), None)
        return problem

    def _write_parts(self, temporary: Path, main: bool) -> None:
        with whole(self.model):
            self._save_weights(temporary)
        self._save_optimizer_and_scheduler(str(temporary))
        self._save_scaler(str(temporary))
        self._save_rng_state(str(temporary))
        if main:
            self.state.save_to_json(str(temporary / "trainer_state.json"))
            for part in self.state_parts:
                part.save(temporary)

    def _publish(self, temporary: Path) -> None:
        if self.before_commit is not None:
            self.before_commit()
        checkpoints.commit(temporary, self.keep_checkpoints, self.keep_adapters)

    def _save_weights(self, folder: Path) -> None:
        """Save the trained adapter or the whole model. The frozen copy is rebuilt on a resume."""
        model = self.accelerator.unwrap_model(self.model)
        if is_peft_model(model):
            if self.accelerator.is_main_process:
                model.save_pretrained(str(folder), selected_adapters=["default"], save_embedding_layers=False)
        else:
            self.save_model(str(folder), _internal_call=True)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        main = self.accelerator.is_main_process
        save_optimizer(cast(Optimizer, self.optimizer), Path(output_dir), main)
        if main:
            state = cast(LRScheduler, self.lr_scheduler).state_dict()
            (Path(output_dir) / "scheduler.json").write_text(json.dumps(state))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        policy = self.accelerator.unwrap_model(self.model)
        with _naming(resume_from_checkpoint):
            if is_peft_model(policy):  # PEFT would pass over other weights
                with safe_open(Path(resume_from_checkpoint, "adapter_model.safetensors"), "pt") as saved:
                    if set(saved.keys()) != set(get_peft_model_state_dict(policy, save_embedding_layers=False)):
                        raise ValueError("it has adapters of other modules; keep model.lora.target_modules")
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None:
            return
        folder = Path(checkpoint)
        optimizer = cast(Optimizer, self.optimizer)
        settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        with _naming(checkpoint):
            load_optimizer(optimizer, folder)
            # Settings may have changed since.
            for group, configured in zip(optimizer.param_groups, settings, strict=True):
                change = configured["initial_lr"] / group["initial_lr"] if group["initial_lr"] else 1.0
                group.update({**configured, "lr": group["lr"] * change})
            state = json.loads((folder / "scheduler.json").read_text())
            state["base_lrs"] = [group["initial_lr"] for group in optimizer.param_groups]
            state["_last_lr"] = [group["lr"] for group in optimizer.param_groups]
            cast(LRScheduler, self.lr_scheduler).load_state_dict(state)
            for part in self.state_parts:
                if part.everywhere or self.accelerator.is_main_process:
                    try:
                        part.load(folder)
                    except (FileNotFoundError, KeyError) as lost:  # it is whole: a setting or the format has changed
                        why = str(lost) if isinstance(lost, OSError) else f"another version wrote it, without {lost}"
                        logger.warning("a part of the state starts empty: %s", why)
                        if self.on_trouble is not None:
                            self.on_trouble(f"a part of the state starts empty: {why}")

    def _save_rng_state(self, output_dir: str) -> None:
        """Save the random states of Python, numpy and torch in this process."""
        file = Path(output_dir) / f"rng_{self.accelerator.process_index}"
        tensors = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available():
            tensors |= {f"cuda.{i}": s for i, s in enumerate(torch.cuda.get_rng_state_all())}
        save_file(tensors, file.with_suffix(".safetensors"))
        name, keys, *rest = np.random.get_state()
        facts = {"python": random.getstate(), "numpy": [name, keys.tolist(), *rest]}  # type: ignore[union-attr]
        file.with_suffix(".json").write_text(json.dumps(facts))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Restore the states, unless fewer processes wrote the checkpoint."""
        file = Path(checkpoint or "") / f"rng_{self.accelerator.process_index}"
        if checkpoint is None or not file.with_suffix(".json").is_file():
            return
        facts = json.loads(file.with_suffix(".json").read_text())
        version, internal, gauss = facts["python"]
        random.setstate((version, tuple(internal), gauss))
        np.random.set_state(tuple(facts["numpy"]))
        tensors = load_file(file.with_suffix(".safetensors"))
        torch.set_rng_state(tensors["cpu"])
        for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            if f"cuda.{i}" in tensors:
                torch.cuda.set_rng_state(tensors[f"cuda.{i}"], i)


@contextmanager
def _naming_fields() -> Iterator[None]:
    """Turn an error about a field that was passed to TRL, or about adapters that it refuses, into a sentence."""
    try:
        yield
    except (ImportError, TypeError, ValueError) as problem:
        reason = " ".join(str(problem).split())
        raise TrainingError(f"a field of training.trl, sft.trl or model.lora cannot be used: {reason}") from problem


@contextmanager
def _naming(checkpoint: str) -> Iterator[None]:
    """Turn a loading error into a sentence that names the checkpoint."""
    try:
        yield
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as problem:
        raise TrainingError(
            f"the checkpoint {checkpoint} does not fit this run's configuration; set back with --set what has changed "
            f"({type(problem).__name__}: {problem})"
        ) from problem


class ResumableTrainer(Resumable, GRPOTrainer):
    """TRL's GRPO trainer with these checkpoints."""
