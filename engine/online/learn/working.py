"""The update worker's process: it loads the policy and learns until it is stopped or the engine is gone."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from ....configs.schema import RunConfig
from ...runs.control.requests import ControlChannel, Request
from ...runs.write.writer import RunWriter
from ..process import EngineWatch, load_serving_policy
from ..store.folder import OnlineFolder
from ..store.opening import open_store
from ..store.update_queue import LeaseHeld, LeaseLost, QueueDamaged, QueueError, Trouble
from .policy_update import PolicyUpdater
from .update_worker import UpdateWorker

TRY_AGAIN_S = 1.0
"""Pause before another attempt after a disk error."""
DAMAGED_TRIES, DAMAGED_AGAIN_S = 3, 60.0
"""The worker gives up after this many damages of the queue, each within so many seconds of the one before."""


def work(config: RunConfig, run_dir: Path, writer: RunWriter, control: ControlChannel, resume: bool) -> bool:
    """Update until stopped; return False, since it never finishes by itself."""
    torch.set_num_threads(1)  # the other cores answer
    torch.manual_seed(config.seed)
    model, _ = load_serving_policy(config)
    return Working(config, OnlineFolder(run_dir), model, writer, control).run()


@dataclass
class Working:
    """Runs one worker after the other: after damage, the next one continues from the last commit."""

    config: RunConfig
    folder: OnlineFolder
    model: nn.Module
    writer: RunWriter
    control: ControlChannel

    def __post_init__(self) -> None:
        self.online = self.config.online
        self.engine = EngineWatch(self.folder.run_dir)
        self._paused = False

    def tell(self, message: str) -> None:
        self.writer.event("alert", message, detector="update_worker")
        print(message, file=sys.stderr)

    def run(self) -> bool:
        started = {n: p.detach().clone() for n, p in self.model.named_parameters() if p.requires_grad}
        damaged = 0
        while (worker := self._begin(check_queue=damaged > 0)) is not None:
            self.writer.status("running", step=worker.updater.update)
            began, ended = time.monotonic(), False
            try:
                self._learn(worker)
                ended = True
                worker.close()
                return False
            except QueueDamaged as error:
                worker.abandon()
                if ended:
                    return False
                if isinstance(error, LeaseLost):
                    self.tell(f"{error} Learning continues from the last commit, here or on another machine.")
                else:
                    damaged = damaged + 1 if time.monotonic() - began < DAMAGED_AGAIN_S else 1
                    if damaged > DAMAGED_TRIES:
                        raise
                    self.tell(f"{error} Learning restarts from the last whole state.")
                with torch.no_grad():
                    for name, parameter in self.model.named_parameters():
                        if name in started:
                            parameter.copy_(started[name])
            except BaseException:
                worker.close()
                raise
        return False

    def _begin(self, *, check_queue: bool) -> UpdateWorker | None:
        """Create a worker once the disk and the lease allow it. Returns None when the run ends before that."""
        standby, trouble = Trouble(self.tell), Trouble(self.tell)
        updater: PolicyUpdater | None = None
        images = open_store(self.folder, self.online).images
        while True:
            try:
                updater = updater or PolicyUpdater(self.model, self.online, images=images)
                worker = UpdateWorker(
                    updater,
                    self.folder,
                    self.online,
                    base_model=self.config.model.base,
                    tell=self.tell,
                    check_queue=check_queue,
                )
                standby.ends(f"This worker has taken over: learning continues from update {updater.update}.")
                return worker
            except LeaseHeld as error:  # nothing was loaded into the updater
                self.writer.status("running")
                standby.begins(
                    f"{error} This worker is a standby. It takes over when the other one ends or falls silent."
                )
            except QueueError as error:
                updater = None
                check_queue = check_queue or (isinstance(error, QueueDamaged) and not isinstance(error, LeaseLost))
                if not standby.lasts:
                    trouble.begins(f"{error} Learning waits for that.")
            if self.engine.gone() or any(r.command == "stop" for r in self.control.poll()):
                return None
            time.sleep(TRY_AGAIN_S)

    def _learn(self, worker: UpdateWorker) -> None:
        self._paused = False
        trouble = Trouble(self.tell)
        looked = 0.0
        while True:
            if self.engine.gone():
                print("the engine is gone: updates end, the state is saved", file=sys.stderr)
                return
            for command in self.control.poll():
                self._obey(command, worker)
                if command.command == "stop":
                    return
            if time.monotonic() - looked >= self.online.poll_interval_s:
                looked = time.monotonic()
                worker.publisher.validate()
            try:
                worked = not self._paused and worker.step()
                if not worked and not self._paused and self.online.validation.enabled:
                    worker.publisher.finish()
                trouble.ends("The update queue can be used again: learning continues.")
            except QueueDamaged:
                raise
            except QueueError as error:
                worked = False
                trouble.begins(f"{error} Learning waits for that.")
                time.sleep(TRY_AGAIN_S)
            if worked:
                self.writer.status("running", step=worker.updater.update)
            else:
                time.sleep(self.online.poll_interval_s)

    def _obey(self, request: Request, worker: UpdateWorker) -> None:
        outcome = "updates end, state saved"
        if request.command == "pause":
            self._paused = True
            worker.commit()
            outcome = "learning paused: tasks wait in the queue, answers continue"
        elif request.command == "resume":
            self._paused = False
            outcome = f"learning continues; {worker.publisher.release()}"
        elif request.command == "checkpoint":
            done = worker.publish()
            outcome = f"version {worker.writer.version} published" if done else "not published"
        self.control.acknowledge(request, outcome)
        self.writer.event("control", f"{request.command}: {outcome}", command=request.command, outcome=outcome)
        if request.command != "stop":
            self.writer.status("paused" if self._paused else "running")
