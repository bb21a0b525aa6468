"""The update worker's process: it loads the policy and learns until it is stopped or the engine is gone."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn

from ....configs.schema import RunConfig
from ....configs.sections.online import OnlineConfig
from ...runs.control.requests import ControlChannel
from ...runs.write.writer import RunWriter
from ..process import EngineWatch, load_serving_policy
from ..store.folder import OnlineFolder
from ..store.opening import open_store
from ..store.update_queue import LeaseHeld, LeaseLost, QueueDamaged, QueueError
from .policy_update import PolicyUpdater
from .update_worker import UpdateWorker

TRY_AGAIN_S = 1.0
"""Pause before another attempt after a disk error."""
DAMAGED_TRIES, DAMAGED_AGAIN_S = 3, 60.0
"""The worker gives up after this many damages of the queue, each within so many seconds of the one before."""
WAITS = "Learning waits for that."
STANDS_BY = "This worker is a standby. It takes over when the other one ends or falls silent."


def work(config: RunConfig, run_dir: Path, writer: RunWriter, control: ControlChannel, resume: bool) -> bool:
    """Update until stopped; return False, since it never finishes by itself."""
    online = config.online
    torch.set_num_threads(1)  # the other cores answer
    torch.manual_seed(config.seed)
    model, _ = load_serving_policy(config)
    started = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    engine = EngineWatch(run_dir)
    damaged = 0
    while True:
        worker = _made(config, run_dir, model, writer, control, engine, check_queue=damaged > 0)
        if worker is None:
            return False
        writer.status("running", step=worker.updater.update)
        began, ended = time.monotonic(), False
        try:
            _loop(worker, writer, control, engine, online)
            ended = True
            worker.close()
            return False
        except QueueDamaged as error:
            worker.abandon()
            if ended:
                return False
            if isinstance(error, LeaseLost):
                _tell(writer, f"{error} Learning continues from the last commit, here or on another machine.")
            else:
                damaged = damaged + 1 if time.monotonic() - began < DAMAGED_AGAIN_S else 1
                if damaged > DAMAGED_TRIES:
                    raise
                _tell(writer, f"{error} Learning restarts from the last whole state.")
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name in started:
                        parameter.copy_(started[name])
        except BaseException:
            worker.close()
            raise


def _made(
    config: RunConfig,
    run_dir: Path,
    model: nn.Module,
    writer: RunWriter,
    control: ControlChannel,
    engine: EngineWatch,
    *,
    check_queue: bool,
) -> UpdateWorker | None:
    """Create the worker once the disk allows it. Returns None when the run ends before that."""
    told = ""
    folder = OnlineFolder(run_dir)
    updater: PolicyUpdater | None = None
    while True:
        try:
            updater = updater or PolicyUpdater(model, config.online, images=open_store(folder, config.online).images)
            worker = UpdateWorker(
                updater,
                folder,
                config.online,
                base_model=config.model.base,
                tell=lambda message: _tell(writer, message),
                check_queue=check_queue,
            )
            if told == STANDS_BY:
                _tell(writer, f"This worker has taken over: learning continues from update {updater.update}.")
            return worker
        except LeaseHeld as error:  # nothing was loaded into the updater
            if told != STANDS_BY:
                told = STANDS_BY
                writer.status("running")
                _tell(writer, f"{error} {STANDS_BY}")
        except QueueError as error:
            updater = None
            check_queue = check_queue or (isinstance(error, QueueDamaged) and not isinstance(error, LeaseLost))
            if not told:
                told = WAITS
                _tell(writer, f"{error} {WAITS}")
        if engine.gone() or any(r.command == "stop" for r in control.poll()):
            return None
        time.sleep(TRY_AGAIN_S)


def _loop(
    worker: UpdateWorker,
    writer: RunWriter,
    control: ControlChannel,
    engine: EngineWatch,
    online: OnlineConfig,
) -> None:
    paused = waiting = False
    looked = 0.0
    while True:
        if engine.gone():
            print("the engine is gone: updates end, the state is saved", file=sys.stderr)
            return
        for request in control.poll():
            outcome = "updates end, state saved"
            if request.command == "pause":
                paused = True
                worker.commit()
                outcome = "learning paused: tasks wait in the queue, answers continue"
            elif request.command == "resume":
                paused = False
                outcome = f"learning continues; {worker.publisher.release()}"
            elif request.command == "checkpoint":
                done = worker.publish()
                outcome = f"version {worker.writer.version} published" if done else "not published"
            control.acknowledge(request, outcome)
            said = f"{request.command}: {outcome}"
            writer.event("control", said, command=request.command, outcome=outcome)
            if request.command == "stop":
                return
            writer.status("paused" if paused else "running")
        if time.monotonic() - looked >= online.poll_interval_s:
            looked = time.monotonic()
            worker.publisher.validate()
        try:
            worked = not paused and worker.step()
            if not worked and not paused and online.validation.enabled:
                worker.publisher.finish()
            if waiting:
                waiting = False
                _tell(writer, "The update queue can be used again: learning continues.")
        except QueueDamaged:
            raise
        except QueueError as error:
            worked = False
            if not waiting:
                waiting = True
                _tell(writer, f"{error} Learning waits for that.")
            time.sleep(TRY_AGAIN_S)
        if worked:
            writer.status("running", step=worker.updater.update)
        else:
            time.sleep(online.poll_interval_s)


def _tell(writer: RunWriter, message: str) -> None:
    writer.event("alert", message, detector="update_worker")
    print(message, file=sys.stderr)
