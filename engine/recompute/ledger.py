"""The report of a recomputation: how many numbers were compared, and which differ."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

EXACT = 1e-9
"""Relative tolerance for float64 sums in another order."""
SINGLE = 1e-5
"""The same for numbers that passed through float32."""


@dataclass(frozen=True)
class Wrong:
    """A recorded number that differs from the computed one. place: the step, and the rollout or metric. kind: the name
    of the number."""

    place: str
    kind: str
    recorded: object
    computed: object

    def __str__(self) -> str:
        return f"{self.place}: {self.kind} is recorded as {_text(self.recorded)}, but comes to {_text(self.computed)}"


@dataclass
class Report:
    """The result of a recomputation. compared: the count of numbers by kind. wrong: the numbers that differ. given: the
    kinds of numbers that were taken as recorded, and why."""

    compared: Counter[str] = field(default_factory=Counter)
    wrong: list[Wrong] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)

    def number(
        self,
        place: str,
        kind: str,
        recorded: float | None,
        computed: float | None,
        *,
        tolerance: float = EXACT,
        size: float = 0.0,
    ) -> None:
        """Compare a number. The tolerance is relative to its size, or to `size` if the number is a difference of
        numbers of that size."""
        self.compared[kind] += 1
        if recorded is None or computed is None:
            if recorded is not computed:
                self.wrong.append(Wrong(place, kind, recorded, computed))
            return
        if math.isnan(recorded) and math.isnan(computed):
            return
        limit = tolerance * max(1e-3, abs(recorded), abs(computed), size)
        if not abs(recorded - computed) <= limit:
            self.wrong.append(Wrong(place, kind, recorded, computed))

    def numbers(
        self,
        place: str,
        kind: str,
        recorded: Sequence[float],
        computed: Sequence[float],
        *,
        tolerance: float,
        size: float,
    ) -> None:
        """Compare the per-token numbers of a rollout. Report only the first difference."""
        self.compared[kind] += len(recorded)
        for t, (old, new) in enumerate(zip(recorded, computed, strict=True)):
            both_nan = math.isnan(old) and math.isnan(new)
            if not (both_nan or abs(old - new) <= tolerance * max(1e-12, abs(old), abs(new), size)):
                self.wrong.append(Wrong(f"{place}, token {t + 1}", kind, old, new))
                return

    def same(self, place: str, kind: str, recorded: object, computed: object) -> None:
        """Compare values that have no rounding error."""
        self.compared[kind] += 1
        if recorded != computed:
            self.wrong.append(Wrong(place, kind, recorded, computed))


def _text(value: object) -> str:
    return "nothing" if value is None else f"{value:.9g}" if isinstance(value, float) else str(value)
