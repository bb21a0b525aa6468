"""What a training of either kind does before its first step and after its last."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError

from ..record.step_recorder import StepRecorder
from ..runs.control import ControlChannel
from .callbacks import RunCallbacks
from .checkpoints import Start
from .processes import Processes
from .resumable import Resumable

logger = logging.getLogger(__name__)

ROOM_SECONDS = 10
"""How long a run that has nowhere to write its result waits before it tries again."""


def begin_at(start: Start, run_dir: Path, trainer: Resumable, callbacks: RunCallbacks, recorder: StepRecorder) -> None:
    """Tie a trainer's checkpoints to the record, and say where a resumed run goes on.

    Raises UnsupportedProcessesError where not all processes see the run's folder.
    """
    Processes(trainer.accelerator).check_one_folder(run_dir)
    trainer.last_checkpoint = start.checkpoint
    trainer.before_commit = lambda: recorder.guard("flush", lambda: recorder.writer.flush(timeout=10.0))
    trainer.on_save_failed = lambda message: recorder.event("record", message, step=trainer.state.global_step)
    if start.record_from is not None:  # what is recorded of this step, its evaluation too, stays
        callbacks.evaluation.evaluated_at = start.record_from
    if start.note:
        recorder.event("record" if start.damaged else "phase", start.note, step=start.step, name="resumed")


def when_there_is_room(
    save: Callable[[], object], recorder: StepRecorder, control: ControlChannel | None, where: str
) -> bool:
    """Save what the whole run was for, and wait while the disk refuses it. False when asked to stop meanwhile."""
    told = False
    while True:
        try:
            save()
            return True
        except (OSError, SafetensorError) as problem:
            logger.exception("saving to %s", where)
            if not told:
                recorder.event(
                    "record", f"{where} cannot be written ({problem}); the run waits and tries again until it can be"
                )
                told = True
        for _ in range(ROOM_SECONDS):
            time.sleep(1.0)
            if control is not None and any(request.command == "stop" for request in control.poll()):
                recorder.event("record", f"stopped without writing {where}; the last checkpoint has the adapters")
                return False
