"""The seconds that the training thread spends in each phase of a step."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ...configs import metric_names as metric
from ...configs.metric_names import Phase
from ...envs.spans import Spans


class PhaseClock:
    """Adds up seconds by phase until they are taken. On CUDA a phase ends when the device has finished its work.

    `on_begin` is called with the name of each phase that begins. `spans` holds the start and end of each phase.
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.on_begin: Callable[[str], None] | None = None
        self._seconds: dict[str, float] = defaultdict(float)
        self._device = device
        self.spans = Spans()

    @contextmanager
    def __call__(self, phase: Phase, without: Phase | None = None) -> Iterator[None]:
        """Time the block under `phase`, minus the time counted under `without` meanwhile."""
        if self.on_begin is not None:
            self.on_begin(phase)
        started, other = time.perf_counter(), self._seconds.get(without or "", 0.0)
        try:
            yield
        finally:
            if self._device is not None and self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            ended = time.perf_counter()
            self.spans.add(phase, started, ended)
            spent = ended - started - (self._seconds.get(without or "", 0.0) - other)
            self._seconds[phase] += max(spent, 0.0)

    def add(self, phase: Phase, seconds: float) -> None:
        self._seconds[phase] += seconds

    def take(self) -> dict[str, float]:
        """Return the seconds by metric name, and reset them."""
        taken = {metric.PHASE_SECONDS(phase): seconds for phase, seconds in self._seconds.items()}
        self._seconds.clear()
        return taken
