"""Format numbers, times and sizes for people."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ..configs.errors import count as count

if TYPE_CHECKING:
    from ..engine.runs.types import RunInfo

SPARK = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
TRUE_MARK, FALSE_MARK, UNKNOWN_MARK = "✓", "✗", "·"
MINUS = "−"
_RESIDUE = 1e-12
"""Smaller absolute values are rounding errors of sums and are shown as zero."""
_CUT_SHORT = re.compile("limit|max|length|trunc|error|exception|timeout|exceed|fail|abort|cancel|cost", re.IGNORECASE)


def is_cut_short(stop_reason: str) -> bool:
    """Return whether a stop reason (of any program) means that the agent did not end the rollout itself."""
    return _CUT_SHORT.search(stop_reason) is not None


def number(value: float | int | None, digits: int = 3, signed: bool = False) -> str:
    """Format a value in few characters: `0.78`, `−1.3`, `12.4k`, `3e-05`, and `–` for None."""
    if value is None:
        return "–"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    size = abs(value)
    if size < _RESIDUE:
        text = "0" if isinstance(value, int) else "0.00"
    elif size >= 1e12:
        text = f"{size:.1e}".replace("e+", "e")
    elif size >= 1e9:
        text = f"{size / 1e9:.1f}G"
    elif size >= 1e6:
        text = f"{size / 1e6:.1f}M"
    elif size >= 1e5:
        text = f"{size / 1e3:.0f}k"
    elif isinstance(value, int):
        text = f"{size:d}"
    elif size >= 1e4:
        text = f"{size / 1e3:.1f}k"
    elif size >= 100:
        text = f"{size:.0f}"
    elif size >= 10:
        text = f"{size:.1f}"
    elif size >= 1 or digits <= 2:
        text = f"{size:.2f}" if size >= 0.005 else f"{size:.0e}"
    elif size >= 0.0005:
        text = f"{size:.{digits}f}" if size < 0.1 else f"{size:.2f}"
    else:
        text = f"{size:.0e}".replace("e-0", "e-")
    if value < 0 and size >= _RESIDUE:
        return MINUS + text
    return "+" + text if signed and value >= _RESIDUE else text


def fixed(value: float | None, places: int = 2, signed: bool = False) -> str:
    """Format a value with a fixed number of decimals, for columns that people compare by eye."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return number(float(value))
    text = f"{abs(value):.{places}f}"
    if len(text) > 8:
        return number(float(value), signed=signed)
    zero = float(text) == 0
    return (MINUS if value < 0 and not zero else "+" if signed and value > 0 and not zero else "") + text


def fitted(value: float | None, cells: int, places: int = 2, signed: bool = False) -> str:
    """Format a value in at most `cells`, with as many decimals as fit; empty if not even the shortest form fits.

    A number is whole or absent, because half of one would be another number.
    """
    forms = [fixed(value, places, signed)]
    if value is not None and math.isfinite(value):
        forms += [fixed(value, fewer, signed) for fewer in range(places - 1, -1, -1) if abs(value) >= 10**-fewer]
        forms += [number(float(value), signed=signed), f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")]
    return next((form for form in forms if len(form) <= cells), "")


def whole(value: int | None, cells: int) -> str:
    """Format a whole number for a column: all its digits, or `1.2M` if they do not fit, and `–` for None."""
    return str(value) if value is not None and len(str(value)) <= cells else fitted(value, cells)


def step_text(run: RunInfo) -> str:
    """Format the last step, with the total if it is known, and `–` for a dump without steps."""
    if run.mode == "dump" and run.facts.get("last_step") is None and not run.step:
        return "–"
    return f"{count(run.step)}/{count(run.total_steps)}" if run.total_steps else count(run.step)


def percent(share: float | None) -> str:
    """Format `0.41` as `41 %`."""
    if share is None or not math.isfinite(share):
        return "–"
    return f"{100 * share:.0f} %" if abs(share) < 1e4 else f"{number(float(share))} × 100 %"


def percent_number(share: float) -> str:
    """Format `0.41` as `41`."""
    return f"{100 * share:.0f}".replace("-", MINUS)


def within(interval: tuple[float, float] | None, written: Callable[[float], str]) -> str:
    """Format an interval as ` (0.31 to 0.52)`. Empty for None."""
    return "" if interval is None else f" ({written(interval[0])} to {written(interval[1])})"


def whole_percents(shares: Sequence[float]) -> list[str]:
    """Format shares as whole percents that add up to their rounded sum. The largest remainders are rounded up."""
    exact = [100 * min(max(s, 0.0), 1.0) if math.isfinite(s) else 0.0 for s in shares]
    percents = [math.floor(e) for e in exact]
    missing = round(sum(exact)) - sum(percents)
    for index in sorted(range(len(exact)), key=lambda i: percents[i] - exact[i])[: max(0, missing)]:
        percents[index] += 1
    return [f"{value} %" for value in percents]


def duration(seconds: float | None) -> str:
    """Format seconds as `8:41`, `1:02:03`, `3d 4h`; under a minute as `12 s`."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "–"
    if seconds >= 1e9:
        return f"{number(seconds / 86400)} d"
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24}h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def version_text(version: int | None) -> str:
    """Format the policy version of a rollout: `v3`, or a dash if it was not recorded."""
    return "–" if version is None else f"v{version}"


def ago(seconds: float | None) -> str:
    """Format an age in one unit: `14 s`, `3 min`, `2 h`, `5 d`."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    seconds = max(0.0, seconds)
    if seconds >= 1e9:
        return f"{number(seconds / 86400)} d"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{seconds:.0f} s"


def sparkline(values: list[float], cells: int) -> str:
    """Format values as block characters, scaled to their own range. A flat line is low, a missing value is blank."""
    if cells <= 0:
        return ""
    if len(values) > cells:
        step = len(values) / cells
        chunks = [values[int(i * step) : max(int((i + 1) * step), int(i * step) + 1)] for i in range(cells)]
        values = [finite_mean(chunk) for chunk in chunks]
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ""
    scale = max(1.0, max(map(abs, finite)) / 1e300)  # keeps differences from overflowing
    low, high = min(finite) / scale, max(finite) / scale
    span = high - low
    if span <= 1e-12 * max(1.0, abs(high)):
        return "".join(SPARK[0] if math.isfinite(v) else " " for v in values)
    return "".join(
        SPARK[min(7, max(0, int((v / scale - low) / span * 8)))] if math.isfinite(v) else " " for v in values
    )


def trend(points: Sequence[tuple[float, float]], cells: int) -> str:
    """Format (step, value) points as a sparkline whose cells are equal spans of steps. Empty spans are blank."""
    if len(points) < 2 or cells <= 0:
        return sparkline([value for _, value in points], cells)
    steps = [step for step, _ in points]
    first, gap = steps[0], min(b - a for a, b in pairwise(steps))
    if gap <= 0:
        return sparkline([value for _, value in points], cells)
    spans = min(cells, round((steps[-1] - first) / gap) + 1)
    found: list[list[float]] = [[] for _ in range(spans)]
    for step, value in points:
        found[min(spans - 1, int((step - first) / (steps[-1] - first + gap) * spans))].append(value)
    return sparkline([finite_mean(values) for values in found], cells)


def finite_mean(values: Sequence[float]) -> float:
    """Return the mean of the finite values, or NaN without any."""
    finite = [v for v in values if math.isfinite(v)]
    return sum(v / len(finite) for v in finite) if finite else math.nan


def _share(value: float) -> float:
    return min(max(value, 0.0), 1.0) if math.isfinite(value) else 0.0


def bar(share: float, cells: int) -> str:
    """Draw a horizontal bar over `share` (0 to 1) of `cells`, in eighths of a cell, padded with spaces."""
    if cells <= 0:
        return ""
    eighths = round(_share(share) * cells * 8)
    full, rest = divmod(eighths, 8)
    return (("█" * full) + (EIGHTHS[rest] if rest else "")).ljust(cells)


def progress(share: float, cells: int) -> str:
    """Draw a progress bar with a visible track: `████░░░░`."""
    full = round(_share(share) * max(0, cells))
    return "█" * full + "░" * (cells - full)


def mark(correct: bool | None) -> str:
    """Return right, wrong or unknown as one character."""
    return UNKNOWN_MARK if correct is None else TRUE_MARK if correct else FALSE_MARK
