"""The curves of a chart as data: smoothing, common scales, ticks and exact labels. Nothing here draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..format import MINUS

_LARGEST_EXPONENT = 307.0
LARGEST = 8e307
"""Larger values are drawn at this height, so that a difference of two of them is still finite."""


def clamp(value: float) -> float:
    """Clamp a finite value to the range that can be drawn."""
    return min(max(value, -LARGEST), LARGEST)


def ticks(low: float, high: float, limit: int, *, whole: bool = False) -> list[float]:
    """Return at most `limit` round numbers between `low` and `high`. With `whole`, only integers."""
    span = high - low
    if limit < 1 or span <= 0 or not math.isfinite(span):
        return []
    power = 10.0 ** math.floor(math.log10(span / limit))
    for factor in (1, 2, 2.5, 5, 10, 20):
        step = factor * power
        if step <= 0 or (whole and step != int(step)):
            continue
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= limit:
            # a multiple has a rounding error, too, and may be outside by the last bit
            values = [min(max(i * step, low), high) for i in range(first, last + 1)]
            return [t for t in values if t == int(t)] if whole else values
    return [float(t) for t in (math.ceil(low), math.floor(high)) if low <= t <= high][:limit] if whole else []


def decades(low: float, high: float, limit: int) -> list[float]:
    """Return the exponents of at most `limit` powers of ten in a range, or of 1, 2 and 5 × 10ⁿ if these are few."""
    low, high = max(low, -_LARGEST_EXPONENT), min(high, _LARGEST_EXPONENT)
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    every = max(1, math.ceil((last - first + 1) / max(1, limit)))
    tens = [float(n) for n in range(first, last + 1) if n % every == 0]
    if len(tens) > 1 or limit < 2:
        return tens
    finer = [n + math.log10(factor) for n in range(first - 1, last + 1) for factor in (1, 2, 5)]
    return [exponent for exponent in finer if low <= exponent <= high][:limit]


def labels(values: Sequence[float]) -> list[str]:
    """Format all ticks in one notation with the fewest digits that are exact."""
    gap = min((abs(b - a) for a, b in pairwise(values) if b != a), default=abs(values[0]) if values else 0.0)
    largest = max(map(abs, values), default=0.0)
    plain = largest < 1e6 and all(t == 0 or abs(t) >= 1e-4 for t in values)
    forms = [(f",.{places}f", 1.0, "") for places in range(7)] if plain else []
    for size, unit in ((1e6, "M"), (1e9, "G")):
        forms += [(f".{places}f", size, unit) for places in range(4)] if size <= largest < 1e3 * size else []
    texts: list[str] = []
    for form, size, unit in (*forms, *((f".{places}e", 1.0, "") for places in range(17))):
        numbers = [format(t / size, form) for t in values]
        texts = numbers if "," in form else ["0" if t == 0 else m + unit for m, t in zip(numbers, values, strict=True)]
        errors = (abs(float(m.replace(",", "")) * size - t) for m, t in zip(numbers, values, strict=True))
        if all(error <= 1e-6 * gap for error in errors):
            break
    texts = [text.replace("e+", "e").replace("e0", "e").replace("e-0", "e-") for text in texts]
    return [text.replace("-", MINUS) if "e" not in text else text for text in texts]


SMOOTHING = (0.0, 0.6, 0.9, 0.97)
"""Weights of the moving average that the user can choose."""
_APART = 8.0
"""A curve whose range is less than the common range divided by this gets its own panel."""


@dataclass(frozen=True)
class Series:
    """One curve. `spread`: one standard deviation per point, drawn as a band. `dots`: draw only points. `last`: the
    newest recorded value, for the legend. The axis of a `share` runs from 0 to 1."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    spread: Sequence[float] | None = None
    dots: bool = False
    last: float | None = None
    share: bool = False

    @classmethod
    def of(cls, name: str, points: Sequence[tuple[float, float]], share: bool = False) -> Series:
        return cls(name, [x for x, _ in points], [y for _, y in points], share=share)

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
    """Return the decimal logarithm of a curve without its spread. Values without a logarithm are left out."""
    ys = [math.log10(clamp(y)) if math.isfinite(y) and y > 0 else math.nan for y in series.ys]
    return replace(series, ys=ys, spread=None, last=series.newest, share=False)


def by_scale(series: Sequence[Series]) -> list[list[Series]]:
    """Group curves that can share an axis. Every other scale gets its own axis."""
    groups: list[list[Series]] = []
    for one in series:
        shared = next((group for group in groups if _readable(one, group)), None)
        if shared is not None:
            shared.append(one)
        else:
            groups.append([one])
    return groups


def _readable(one: Series, group: Sequence[Series]) -> bool:
    """Return whether all curves visibly move on a shared axis. A constant only needs to be near."""
    a, ranges = one.range, [known for series in group if (known := series.range)]
    if a is None or not ranges:
        return True
    b = min(low for low, _ in ranges), max(high for _, high in ranges)
    low, high = min(a[0], b[0]), max(a[1], b[1])
    spans = [s for s in (a[1] - a[0], b[1] - b[0]) if s > 1e-9 * max(abs(low), abs(high))]
    if not spans:
        return high - low <= _APART * max(min(abs(a[1]), abs(b[1])), 1e-12)
    return high - low <= _APART * min(spans)
