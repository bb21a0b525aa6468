"""`python -m grpo_tui.engine.online.learn.worker RUN_DIR [--resume]`: the update worker, at low priority."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...launch.children import spawn
from ..process import EngineWatch, load_serving_policy, run_process

if TYPE_CHECKING:
    from ....configs.schema import RunConfig
    from ...runs.control import ControlChannel
    from ...runs.writer import RunWriter
    from .update_worker import UpdateWorker


def work(config: RunConfig, run_dir: Path, writer: RunWriter, control: ControlChannel, resume: bool) -> bool:
    """Update until told to stop; returns False (it never finishes by itself)."""
    online = config.online
    with contextlib.suppress(OSError):
        os.nice(online.worker_nice)
    import torch

    from ..store.folder import OnlineFolder
    from .policy_update import PolicyUpdater
    from .update_worker import UpdateWorker

    torch.set_num_threads(online.worker_threads)
    torch.manual_seed(config.seed)
    model, _ = load_serving_policy(config)
    folder = OnlineFolder(run_dir)
    worker = UpdateWorker(
        PolicyUpdater(model, online),
        folder,
        online,
        base_model=config.model.base,
        tell=lambda message: _tell(writer, message),
    )
    writer.status("running", step=worker.updater.update)
    validator = _start_validation(run_dir) if online.updates and online.validation.enabled else None
    try:
        _loop(worker, writer, control, EngineWatch(run_dir), online.poll_interval_s)
    finally:
        if validator is not None:
            validator.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                validator.wait(timeout=3)  # it holds nothing that a kill could harm
            if validator.poll() is None:
                validator.kill()
        worker.close()
    return False


def _loop(worker: UpdateWorker, writer: RunWriter, control: ControlChannel, engine: EngineWatch, poll_s: float) -> None:
    paused = False
    looked = 0.0
    while True:
        if engine.gone():
            print("the engine is gone; updates end, the state is saved", file=sys.stderr)
            return
        for request in control.poll():
            outcome = "updates end; state saved"
            if request.command == "pause":
                paused = True
                worker.commit()
                outcome = "learning paused; tasks wait in the queue, answers go on"
            elif request.command == "resume":
                paused = False
                outcome = f"learning goes on; {worker.release()}"
            elif request.command == "checkpoint":
                done = worker.publish()
                outcome = f"version {worker.writer.version} published" if done else "not published"
            control.acknowledge(request, outcome)
            told: dict[str, Any] = {"command": request.command, "outcome": outcome}
            writer.event("control", f"{request.command}: {outcome}", **told)
            if request.command == "stop":
                return
            writer.status("paused" if paused else "running")
        if time.monotonic() - looked >= poll_s:
            looked = time.monotonic()
            worker.validate()
        if paused or not worker.step():
            time.sleep(poll_s)
        else:
            writer.status("running", step=worker.updater.update)


def _tell(writer: Any, message: str) -> None:
    writer.event("alert", message, detector="update_worker")
    print(message, file=sys.stderr)


def _start_validation(run_dir: Path) -> subprocess.Popen[bytes]:
    """Background validation, a child that ends with this process: see `process.end_with_parent`."""
    module = "grpo_tui.engine.online.learn.validation"
    return spawn(run_dir, "validation", [sys.executable, "-m", module, str(run_dir), "--child"], stdin=subprocess.PIPE)


if __name__ == "__main__":
    sys.exit(run_process("worker", work))
