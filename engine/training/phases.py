"""Where a step's time goes, by phase, on the clock of whoever waits for it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class PhaseClock:
    """Adds up seconds by phase until they are taken. On CUDA a phase ends when the device has done its work."""

    def __init__(self, device: torch.device | None = None) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._device = device

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count what happens inside under `phase`."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._settle()
            self._seconds[phase] += time.perf_counter() - began

    def add(self, phase: str, seconds: float) -> None:
        """Count seconds that were measured elsewhere."""
        self._seconds[phase] += seconds

    def seconds(self, phase: str) -> float:
        """So far under `phase`."""
        return self._seconds.get(phase, 0.0)

    def take(self) -> dict[str, float]:
        """Everything so far as `time/<phase>`, and start again from zero."""
        taken = {f"time/{phase}": seconds for phase, seconds in self._seconds.items()}
        self._seconds.clear()
        return taken

    def _settle(self) -> None:
        if self._device is not None and self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
