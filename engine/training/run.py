"""Work before the first step and after the last step of every training."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError
from safetensors import SafetensorError
from transformers import TrainingArguments

from ...configs.schema import RunConfig
from ..evaluation.card import model_card
from ..policy.models import chosen_device
from ..policy.versions import NO_CHECKPOINTING
from ..record.step_recorder import StepRecorder
from ..runs.control.requests import ControlChannel
from ..runs.health.checkpoints import checkpoint_folder
from ..runs.paths import CONFIG_FILE, adapters_dir, links_to_latest
from . import TrainingError
from .callbacks import RunCallbacks
from .checkpoints import Start, replacing
from .processes import Processes
from .resumable import Resumable

logger = logging.getLogger(__name__)

ArgumentsT = TypeVar("ArgumentsT", bound=TrainingArguments)


def trl_arguments(kind: type[ArgumentsT], key: str, passed: Mapping[str, Any], **own: Any) -> ArgumentsT:
    """Return TRL's arguments: ours, and those passed by the section `key`. Raises TrainingError."""
    hints = get_type_hints(kind)
    for name, value in passed.items():
        try:
            with contextlib.suppress(PydanticSchemaGenerationError):
                TypeAdapter(hints.get(name, Any)).validate_python(value, strict=True)
        except ValidationError as error:
            raise TrainingError(f"{key}.{name}: {value!r} is not allowed: {error.errors()[0]['msg']}") from error
    try:
        return kind(**own, **passed)
    except (TypeError, ValueError, ImportError) as error:
        raise TrainingError(f"{key}: {str(error).strip().splitlines()[0]}") from error


def common_arguments(config: RunConfig, run_dir: Path) -> dict[str, object]:
    """Return TRL's arguments that all kinds of training share."""
    return {
        "output_dir": str(checkpoint_folder(run_dir)),
        **NO_CHECKPOINTING,  # `spare_memory` switches on a better form of it
        "fp16": config.model.compute == "float16",  # scales the loss; other models compute in their loaded format
        "use_cpu": chosen_device(config.model).type == "cpu",
        "seed": config.seed,
        "logging_steps": 1,
        "save_strategy": "no",  # `CheckpointSchedule` decides
        "report_to": "none",  # `reported` sends every recorded metric
        "run_name": config.name or run_dir.name,
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }


def begin_at(start: Start, run_dir: Path, trainer: Resumable, callbacks: RunCallbacks, recorder: StepRecorder) -> None:
    """Connect a trainer's checkpoints to the record, and record where a resumed run begins.

    Raises TrainingError if not all processes see the run's folder.
    """
    Processes(trainer.accelerator).check_one_folder(run_dir)
    trainer.last_checkpoint = start.checkpoint
    trainer.before_commit = lambda: recorder.guard("flush", lambda: recorder.writer.flush(timeout=10.0))
    trainer.on_trouble = lambda message: recorder.event("record", message, step=trainer.state.global_step)
    if start.record_from is not None:  # keep the record of this step, including its evaluation
        callbacks.evaluation.evaluated_at = start.record_from
    if start.note:
        recorder.event("record" if start.damaged else "phase", start.note, step=start.step, name="resumed")


def save_result(
    write: Callable[[Path], object],
    output_dir: str,
    run_dir: Path,
    recorder: StepRecorder,
    control: ControlChannel | None,
    *,
    step: int,
    finished: bool = True,
) -> bool:
    """Save the result into the run's own folder. After a finished run `output_dir` becomes a link to it.

    A user's folder or link at `output_dir` stays. Returns False if asked to stop while the disk refuses the result.
    """
    folder = adapters_dir(output_dir, run_dir.name)
    recorder.event("phase", f"saving the adapters to {folder}", step=step, name="saving")

    def write_card(file: Path) -> None:
        recorder.writer.flush(timeout=10.0)
        file.write_text(model_card(run_dir, folder), encoding="utf-8")

    def save() -> None:
        with replacing(folder) as temporary:
            write(temporary)
            if (run_dir / CONFIG_FILE).exists():  # false if called from Python without a recorded run
                recorder.guard("the model card", lambda: write_card(temporary / "README.md"))

    if not when_there_is_room(save, recorder, control, str(folder)):
        return False
    message = f"saved the adapters to {folder}"
    if finished:
        link = folder.with_name(Path(output_dir).name)
        try:
            _link(link, folder.name)
            message += f"; {link} is a link to them"
        except OSError as problem:
            message += f"; {link} is unchanged ({problem.strerror or problem})"
    recorder.event("checkpoint", message, step=step, path=str(folder))
    return True


def _link(link: Path, target: str) -> None:
    """Point `link` to its sibling `target`, atomically. Raises OSError if a user's file has this name."""
    if os.path.lexists(link) and not links_to_latest(link):
        link.rmdir()  # removing an empty folder loses nothing; rmdir refuses any other
    temporary = link.with_name(f".tmp-{target}-link")
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(target, target_is_directory=True)
    try:
        os.replace(temporary, link)
    finally:
        temporary.unlink(missing_ok=True)


def when_there_is_room(
    save: Callable[[], object], recorder: StepRecorder, control: ControlChannel | None, where: str
) -> bool:
    """Save the result, and retry every 10 s while the disk refuses it. Returns False if asked to stop."""
    reported = False
    while True:
        try:
            save()
            return True
        except (OSError, SafetensorError) as problem:
            logger.exception("saving to %s", where)
            if not reported:
                recorder.event("record", f"{where} cannot be written ({problem}); the run waits and retries")
                recorder.writer.progress("waiting for disk space")
                reported = True
        for _ in range(10):
            time.sleep(1.0)
            if control is not None and any(request.command == "stop" for request in control.poll()):
                recorder.event("record", f"stopped without writing {where}; the last checkpoint has the adapters")
                return False
