"""The curves of a chart as data: smoothing, and scales that curves share. Nothing here draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .axes import clamp

SMOOTHING = (0.0, 0.6, 0.9, 0.97)
"""Weights of the moving average that a person may choose from."""
_APART = 8.0
"""A curve that would fill less than this part of the common range is drawn in a panel of its own."""


@dataclass(frozen=True)
class Series:
    """One curve. `spread` is one standard deviation a point, drawn as a band. `dots` draws points only. `last` is the
    newest recorded value, shown in the legend. The axis of a `share` runs from 0 to 1."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    spread: Sequence[float] | None = None
    dots: bool = False
    last: float | None = None
    share: bool = False

    @classmethod
    def of(
        cls,
        name: str,
        points: Sequence[tuple[float, float]],
        *,
        dots: bool = False,
        last: float | None = None,
        share: bool = False,
    ) -> Series:
        return cls(name, [x for x, _ in points], [y for _, y in points], dots=dots, last=last, share=share)

    @property
    def newest(self) -> float | None:
        return self.last if self.last is not None else self.ys[-1] if self.ys else None

    @property
    def range(self) -> tuple[float, float] | None:
        finite = [clamp(y) for y in self.ys if math.isfinite(y)]
        return (min(finite), max(finite)) if finite else None


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """Apply an exponential moving average, debiased at the start. `weight` 0 keeps the values."""
    if weight <= 0:
        return list(values)
    out: list[float] = []
    total = norm = 0.0
    for value in values:
        if math.isfinite(value):
            total = weight * total + (1 - weight) * clamp(value)
            norm = weight * norm + (1 - weight)
        out.append(total / norm if norm else math.nan)
    return out


def positive(series: Series) -> Series:
    """Return the decimal logarithm of a curve without its spread. Values that have none are left out."""
    ys = [math.log10(clamp(y)) if math.isfinite(y) and y > 0 else math.nan for y in series.ys]
    return replace(series, ys=ys, spread=None, last=series.newest, share=False)


def by_scale(series: Sequence[Series]) -> list[list[Series]]:
    """Group curves that one axis can show. Each other scale gets an axis of its own."""
    groups: list[tuple[tuple[float, float] | None, list[Series]]] = []
    for each in series:
        own = each.range
        for index, (known, members) in enumerate(groups):
            if own is None or known is None or _readable(own, known):
                both = own if known is None else known if own is None else _union(own, known)
                groups[index] = (both, [*members, each])
                break
        else:
            groups.append((own, [each]))
    return [members for _, members in groups]


def _union(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    return min(a[0], b[0]), max(a[1], b[1])


def _readable(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Return whether both curves visibly move on one axis. A constant only needs to be near."""
    low, high = _union(a, b)
    spans = [s for s in (a[1] - a[0], b[1] - b[0]) if s > 1e-9 * max(abs(low), abs(high))]
    if not spans:
        return high - low <= _APART * max(min(abs(a[1]), abs(b[1])), 1e-12)
    return high - low <= _APART * min(spans)
