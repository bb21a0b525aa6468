"""Run the detectors over a run's batches, during training (alerts) and over its record (`grpo-tui check`).

Both build the same `Batch` for each step, so both find the same faults at the same steps. No torch here.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from importlib import import_module

from ..configs.sections.rewards import DiagnosisConfig
from .batches import Batch, HeldOut, Need, having
from .causes import Found, ranked
from .detectors import DETECTORS, SOON, Detector, Finding

log = logging.getLogger(__name__)

for _kind in ("learning", "record", "reward", "verdict", "text", "held_out"):
    import_module(f".{_kind}_detectors", __package__)  # each registers its detectors, which report in this order

_Key = tuple[str, str, str]
"""The key of a finding: detector, subject, severity."""


class Diagnosis:
    """Runs each detector over the last `window` steps that have the data it needs."""

    def __init__(self, config: DiagnosisConfig | None = None, detectors: Mapping[str, Detector] | None = None) -> None:
        self.config = config or DiagnosisConfig()
        self.detectors = dict(DETECTORS if detectors is None else detectors)
        self._metrics = {name for d in self.detectors.values() for name in (*d.reads, *(n.metric for n in d.needs))}
        self._windows: dict[tuple[Need, ...], deque[Batch]] = {}
        self._found: dict[_Key, Found] = {}
        self._reported: dict[_Key, int] = {}
        self._seen = 0
        self._last: int | None = None
        self._held_out: HeldOut | None = None

    def observe(self, batch: Batch) -> list[Finding]:
        """Add a step. Returns the findings to report, each at most once per window, even if it comes and goes.

        If a detector fails, log it and continue with the others.
        """
        metrics = {n: v for n, v in batch.metrics.items() if self.reads(n, v)}
        batch = replace(batch, metrics=metrics, held_out=self._held_out)
        self._seen += 1
        self._last = batch.step
        fresh: set[tuple[Need, ...]] = set()
        for needs in {d.needs for d in self.detectors.values()}:
            if (usable := having(batch, needs)) is not None:
                self._windows.setdefault(needs, deque(maxlen=self.config.window)).append(usable)
                fresh.add(needs)
        found: list[Finding] = []
        for name, detector in self.detectors.items():
            if detector.needs not in fresh:
                continue
            batches = list(self._windows[detector.needs])
            if not detector.share:
                found += self._look(name, batches)
            elif len(batches) == self.config.window:
                found += self._look(name, batches[len(batches) // 2 :])
            elif len(batches) >= SOON and detector.urgent < 1:
                found += [f for f in self._look(name, batches) if f.value > detector.urgent]
        return self._new(found)

    def evaluated(self, held_out: HeldOut) -> None:
        """Set the latest evaluation, which detectors compare with the batches of later steps."""
        self._held_out = held_out

    def reads(self, name: str, value: float) -> bool:
        """Return whether any detector uses this metric, because it reads the name or the value is not finite."""
        return name in self._metrics or not math.isfinite(value)

    def noted(self, message: str, step: int, data: Mapping[str, object]) -> None:
        """Add an alert from another part of the program, with its recorded data."""
        if data.get("detector") and data["detector"] not in self.detectors:
            known = {f.name: data[f.name] for f in fields(Finding) if f.name in data}
            self._last = step
            self._new([Finding(**{"value": 0.0, "threshold": 0.0, **known, "message": message})])

    def end(self) -> list[Finding]:
        """Return the final findings: from the last evaluation, and from a run that ended before the window was full."""
        short = {needs: list(w) for needs, w in self._windows.items() if len(w) < self.config.window}
        shares = [name for name, d in self.detectors.items() if d.share and d.needs in short]
        found = [f for name in shares for f in self._look(name, list(short[self.detectors[name].needs]))]
        for needs, window in self._windows.items():
            if any(n.held_out for n in needs) and window[-1].held_out is not self._held_out:
                batches = [*list(window)[:-1], replace(window[-1], held_out=self._held_out)]
                found += [f for n, d in self.detectors.items() if d.needs == needs for f in self._look(n, batches)]
        return self._new(found)

    def found(self) -> list[Found]:
        """Return all findings with their causes, likeliest cause first (see `causes.py`)."""
        return ranked(self._found.values())

    def unchecked(self) -> dict[str, str]:
        """Return the detectors that never had their data, each with the data it needs."""
        return {
            name: " and ".join(n.name for n in detector.needs) or "rollouts"
            for name, detector in self.detectors.items()
            if detector.needs not in self._windows
        }

    def _look(self, name: str, batches: list[Batch]) -> list[Finding]:
        try:
            return self.detectors[name](batches, self.config)
        except Exception:
            log.exception("detector %s failed at step %s", name, self._last)
            return []

    def _new(self, found: Iterable[Finding]) -> list[Finding]:
        """Store findings and return those not reported within the window."""
        new = []
        for finding in found:
            key = (finding.detector, finding.subject, finding.severity)
            began = self._last if finding.began is None else finding.began
            kept = self._found.get(key) or Found(finding, self._last, self._last, 0, began)
            if finding.strength > kept.finding.strength:
                kept = replace(kept, finding=finding, strongest=self._last)
            self._found[key] = replace(kept, count=kept.count + 1)
            if key not in self._reported or self._seen - self._reported[key] >= self.config.window:
                self._reported[key] = self._seen
                new.append(finding)
        return new
