"""The numbers of a chart's axes: the positions of ticks, and exact labels for them. Any finite range works."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from ..format import MINUS

_LARGEST_EXPONENT = 307.0
LARGEST = 8e307
"""Values beyond this are drawn at this height: a difference of two of them is still finite."""


def clamp(value: float) -> float:
    """Return a finite value within the range that can be drawn."""
    return min(max(value, -LARGEST), LARGEST)


def ticks(low: float, high: float, most: int, *, whole: bool = False) -> list[float]:
    """Return at most `most` round numbers between `low` and `high`. With `whole`, only integers."""
    span = high - low
    if most < 1 or span <= 0 or not math.isfinite(span):
        return []
    power = 10.0 ** math.floor(math.log10(span / most))
    for factor in (1, 2, 2.5, 5, 10, 20):
        step = factor * power
        if step <= 0 or (whole and step != int(step)):
            continue
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            # a multiple is rounded, too: it may lie outside by the last bit
            made = [min(max(i * step, low), high) for i in range(first, last + 1)]
            return [t for t in made if t == int(t)] if whole else made
    return [float(t) for t in (math.ceil(low), math.floor(high)) if low <= t <= high][:most] if whole else []


def decades(low: float, high: float, most: int) -> list[float]:
    """Return the exponents of at most `most` powers of ten in a range, or of 1, 2 and 5 × 10ⁿ if those are few."""
    low, high = max(low, -_LARGEST_EXPONENT), min(high, _LARGEST_EXPONENT)
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    every = max(1, math.ceil((last - first + 1) / max(1, most)))
    tens = [float(n) for n in range(first, last + 1) if n % every == 0]
    if len(tens) > 1 or most < 2:
        return tens
    finer = [n + math.log10(factor) for n in range(first - 1, last + 1) for factor in (1, 2, 5)]
    return [exponent for exponent in finer if low <= exponent <= high][:most]


def labels(at: Sequence[float]) -> list[str]:
    """Format all ticks in one notation with the fewest digits that are exact."""
    return [text.replace("-", MINUS) if text.startswith("-") and "e" not in text else text for text in _plain(at)]


def _plain(at: Sequence[float]) -> list[str]:
    apart = min((abs(b - a) for a, b in pairwise(at) if b != a), default=abs(at[0]) if at else 0.0)

    def exact(made: Sequence[str], size: float = 1.0) -> bool:
        return all(abs(float(m.replace(",", "")) * size - t) <= 1e-6 * apart for m, t in zip(made, at, strict=True))

    largest = max(map(abs, at), default=0.0)
    if largest < 1e6 and all(t == 0 or abs(t) >= 1e-4 for t in at):
        for places in range(7):
            made = [f"{t:,.{places}f}" for t in at]
            if exact(made):
                return made
    for size, unit in ((1e6, "M"), (1e9, "G")):
        if size <= largest < 1e3 * size:
            for places in range(4):
                made = [f"{t / size:.{places}f}" for t in at]
                if exact(made, size):
                    return ["0" if t == 0 else m + unit for m, t in zip(made, at, strict=True)]
    made = []
    for places in range(17):
        made = [f"{t:.{places}e}" for t in at]
        if exact(made):
            break
    return [
        "0" if t == 0 else m.replace("e+", "e").replace("e0", "e").replace("e-0", "e-")
        for m, t in zip(made, at, strict=True)
    ]
