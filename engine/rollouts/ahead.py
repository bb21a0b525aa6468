"""Rollouts of later steps, made while the trainer works.

The batch of step j may begin once there is a version of the policy that is at most `max_staleness` steps behind j:

    version 0   step 0 waits for its own rollouts; those of steps 1 … s begin
    version k   (step k begins) those of step k + s begin; step k takes its own, made by version k − s or a later one

All rollouts of a batch are made by one version, so groups are never split. Each batch has a thread and a runner (with
environments) of its own. Nothing of it is in a checkpoint: a resumed run makes its next batch anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

from .rollout import Rollout

Plan = TypeVar("Plan")
Version = TypeVar("Version")


@dataclass
class _Batch(Generic[Plan]):
    step: int
    plan: Plan
    result: Future[list[Rollout]] | None = None


@dataclass(frozen=True)
class Taken:
    """Rollouts of a step, and how they came: idle_s: how long the trainer waited for them; wait_s: how long they had
    been ready before that."""

    rollouts: list[Rollout]
    idle_s: float
    wait_s: float


class RolloutsAhead(Generic[Plan, Version]):
    """make(plan, step, version): the rollouts of a batch; called on threads, several at once. holding(version): entered
    when a version is given to a batch, left when that is made."""

    def __init__(
        self,
        make: Callable[[Plan, int, Version], list[Rollout]],
        max_staleness: int,
        holding: Callable[[Version], AbstractContextManager[None]] = lambda version: nullcontext(),
    ) -> None:
        self.max_staleness = max_staleness
        self._make = make
        self._holding = holding
        self._batches: dict[int, _Batch[Plan]] = {}
        self._ready: dict[int, float] = {}

    def plan(self, step: int, plan: Plan) -> None:
        """The batch of a later step is known; it begins when its turn comes."""
        self._batches.setdefault(step, _Batch(step, plan))

    def version(self, number: int, version: Version) -> None:
        """There is a version of the policy that has made `number` steps: whatever it may make begins."""
        for batch in list(self._batches.values()):
            if batch.step < number:
                del self._batches[batch.step]
            elif batch.result is None and batch.step > number and batch.step - number <= self.max_staleness:
                self._begin(batch, version)

    def take(self, step: int) -> Taken | None:
        """The rollouts of a step, when they are there; None where none were begun. Raises what making them raised."""
        batch = self._batches.pop(step, None)
        if batch is None or batch.result is None:
            return None
        began = time.perf_counter()
        rollouts = batch.result.result()
        ended = time.perf_counter()
        ready = self._ready.pop(step, ended)
        return Taken(rollouts, max(ended - began, 0.0), max(began - ready, 0.0))

    def _begin(self, batch: _Batch[Plan], version: Version) -> None:
        batch.result = Future()
        held = ExitStack()
        held.enter_context(self._holding(version))  # here: the next version may come before the thread runs
        arguments = (batch, batch.result, version, held)
        threading.Thread(target=self._run, args=arguments, name=f"rollouts of step {batch.step}", daemon=True).start()

    def _run(self, batch: _Batch[Plan], result: Future[list[Rollout]], version: Version, held: ExitStack) -> None:
        try:
            with held:
                made = self._make(batch.plan, batch.step, version)
        except BaseException as problem:  # it is raised where the step asks for its rollouts
            result.set_exception(problem)
            return
        self._ready[batch.step] = time.perf_counter()
        result.set_result(made)
