"""Numbers, times and sizes as people read them."""

from __future__ import annotations

import math

SPARK = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
TRUE_MARK, FALSE_MARK, UNKNOWN_MARK = "✓", "✗", "·"
MINUS = "−"


def number(value: float | int | None, digits: int = 3, signed: bool = False) -> str:
    """A value in few characters: `0.78`, `−1.3`, `12.4k`, `3e-05`; `–` when there is none."""
    if value is None:
        return "–"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("∞" if value > 0 else f"{MINUS}∞")
    size = abs(value)
    if size == 0:
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
    if value < 0:
        return MINUS + text
    return "+" + text if signed and value > 0 else text


def fixed(value: float | None, places: int = 2, signed: bool = False) -> str:
    """A value with a fixed number of decimals, for columns that are compared by eye."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return number(float(value))
    text = f"{abs(value):.{places}f}"
    if len(text) > 8:
        return number(float(value), signed=signed)
    zero = float(text) == 0
    return (MINUS if value < 0 and not zero else "+" if signed and value > 0 and not zero else "") + text


def count(value: int) -> str:
    """A whole number with thousands separated: `1,000,000`."""
    return f"{value:,}"


def percent(share: float | None, places: int = 0) -> str:
    """`0.41` as `41 %`."""
    return "–" if share is None or not math.isfinite(share) else f"{100 * share:.{places}f} %"


def duration(seconds: float | None) -> str:
    """`8:41`, `1:02:03`, `3d 4h`; seconds under a minute as `12 s`."""
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "–"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24}d {hours % 24}h"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def ago(seconds: float | None) -> str:
    """How long ago, in one unit: `14 s`, `3 min`, `2 h`, `5 d`."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    seconds = max(0.0, seconds)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def size(value: float) -> str:
    """Bytes as `3.2 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def sparkline(values: list[float], cells: int) -> str:
    """The last values as block characters, scaled to their own range; a flat line is drawn low."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite or cells <= 0:
        return ""
    if len(values) > cells:
        step = len(values) / cells
        chunks = [values[int(i * step) : max(int((i + 1) * step), int(i * step) + 1)] for i in range(cells)]
        values = [sum(c) / len(c) for c in chunks]
    low, high = min(finite), max(finite)
    span = high - low
    if span <= 1e-12 * max(1.0, abs(high)):
        return SPARK[0] * len(values)
    return "".join(SPARK[min(7, max(0, int((v - low) / span * 8)))] if math.isfinite(v) else " " for v in values)


def bar(share: float, cells: int) -> str:
    """A horizontal bar of `share` (0 to 1) of `cells`, in eighths of a cell, padded with spaces."""
    if cells <= 0:
        return ""
    eighths = max(0, min(cells * 8, round((share if math.isfinite(share) else 0) * cells * 8)))
    full, rest = divmod(eighths, 8)
    return (("█" * full) + (EIGHTHS[rest] if rest else "")).ljust(cells)


def progress(share: float, cells: int) -> str:
    """A progress bar with a visible track: `████░░░░`."""
    full = max(0, min(cells, round((share if math.isfinite(share) else 0) * cells)))
    return "█" * full + "░" * (cells - full)


def mark(correct: bool | None) -> str:
    """Right, wrong or unknown, as one character."""
    return UNKNOWN_MARK if correct is None else TRUE_MARK if correct else FALSE_MARK
