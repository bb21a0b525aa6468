"""Line charts in braille: axes with round numbers, a band for ± std, marks that tell lines apart without colour."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...format import number
from ..theme import Palette
from .line import Line
from .pane import Pane

MARKS = "●◆▲■★▼○◇"
SMOOTHING = (0.0, 0.6, 0.9, 0.97)
"""Weights of the moving average that a person may choose from."""
_DOT = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


@dataclass(frozen=True)
class Series:
    """One line. `spread`: one standard deviation per point, drawn as a band. `dots`: points instead of a line."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]
    spread: Sequence[float] | None = None
    dots: bool = False


def smooth(values: Sequence[float], weight: float) -> list[float]:
    """Exponential moving average, debiased at the start; `weight` 0 keeps the values as they are."""
    if weight <= 0:
        return list(values)
    out: list[float] = []
    total = norm = 0.0
    for value in values:
        if math.isfinite(value):
            total = weight * total + (1 - weight) * value
            norm = weight * norm + (1 - weight)
        out.append(total / norm if norm else math.nan)
    return out


def ticks(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers between `low` and `high`."""
    span = high - low
    if most < 1 or span <= 0 or not math.isfinite(span):
        return []
    raw = span / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in (1, 2, 2.5, 5, 10, 20):
        step = factor * power
        first = math.ceil(low / step - 1e-9)
        last = math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            return [min(max(i * step, low), high) for i in range(first, last + 1)]  # a multiple is rounded, too
    return []


class Chart(Pane):
    """Several series over the training step."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.heading = ""
        self.series: list[Series] = []
        self.window: tuple[float, float] | None = None
        self.smoothing = 0.0
        self.note = "nothing recorded yet"
        self.x_name = "step"
        self.cursor_x: float | None = None

    def put(self, heading: str, series: list[Series], note: str = "") -> None:
        """Show these series."""
        self.heading = heading
        self.series = series
        self.note = note or self.note
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        """Heading with legend, the plot, and the axis of steps."""
        p = self.palette
        shown = [_within(s, self.window, self.smoothing) for s in self.series]
        lines = self._heading(shown, width)
        if height < len(lines) + 4 or width < 16:
            return lines[:height]
        rows = height - len(lines) - 1
        drawn = [s for s in shown if s.xs]
        if not drawn:
            blank = [Line(p) for _ in range(max(0, rows // 2))]
            return [*lines, *blank, Line(p).add(self.note, p.faint, cells=width, align="^")]
        low_x, high_x = self.window or (min(s.xs[0] for s in drawn), max(s.xs[-1] for s in drawn))
        if high_x <= low_x:
            low_x, high_x = low_x - 1, high_x + 1
        low_y, high_y = _extent(drawn)
        y_ticks = ticks(low_y, high_y, max(2, rows // 3))
        labels = {t: number(float(f"{t:.6g}"), 3) for t in y_ticks}
        margin = max((len(text) for text in labels.values()), default=1) + 1
        plot_width = width - margin - 1 - (2 if len(drawn) > 1 else 0)
        canvas = _Canvas(plot_width, rows, (low_x, high_x), (low_y, high_y))
        for series in drawn:
            canvas.band(series)
        for series in reversed(drawn):  # where lines meet, the first one stays
            canvas.draw(self._order(series), series)
        at_row = {canvas.row_of(t): labels[t] for t in y_ticks}
        ends = (
            {canvas.row_of(s.ys[-1]): self._order(s) for s in drawn if math.isfinite(s.ys[-1])}
            if len(drawn) > 1
            else {}
        )
        for y in range(rows):
            label = at_row.get(y)
            line = Line(p).add(label or "", p.muted, cells=margin, align=">")
            line.add("┤" if label else "│", p.border)
            canvas.paint(line, y, p, self.app.no_color)
            if y in ends:
                line.gap().add(MARKS[ends[y] % len(MARKS)], p.series[ends[y] % len(p.series)])
            lines.append(line)
        lines.append(self._x_axis(margin, plot_width, low_x, high_x))
        return lines

    def _order(self, series: Series) -> int:
        return next((i for i, s in enumerate(self.series) if s.name == series.name), 0)

    def _heading(self, shown: list[Series], width: int) -> list[Line]:
        p = self.palette
        first = Line(p)
        narrow = width < 52
        if self.heading and not (narrow and len(shown) > 1):
            first.add(self.heading, p.title, cells=min(len(self.heading), width - 1)).gap(2)
        lines = [first]
        for index, series in enumerate(shown):
            value = next((y for y in reversed(series.ys) if math.isfinite(y)), None)
            item = Line(p).add(MARKS[index % len(MARKS)] + " ", p.series[index % len(p.series)])
            item.add(series.name + " ", p.text, click=("series", series.name)).add(number(value), p.muted)
            if series.spread and value is not None and not narrow:
                item.add(f" ± {number(series.spread[-1])}", p.faint)
            if lines[-1].width and lines[-1].width + item.width > width:
                if len(lines) >= 2:
                    break
                lines.append(Line(p))
            lines[-1].extend(item.gap(2))
        return lines

    def _x_axis(self, margin: int, plot_width: int, low: float, high: float) -> Line:
        p = self.palette
        line = Line(p).gap(margin).add("╰", p.border)
        cells = ["─"] * plot_width
        labels: list[tuple[int, str]] = []
        end = -2
        suffix = f" {self.x_name}"
        for tick in ticks(low, high, max(2, plot_width // 12)):
            text = f"{tick:,.0f}" if abs(tick) >= 1 or tick == 0 else number(tick)
            x = round((tick - low) / (high - low) * (plot_width - 1))
            start = min(max(0, x - len(text) // 2), plot_width - len(text) - len(suffix))
            if start > end + 1 and start >= 0:
                labels.append((start, text))
                end = start + len(text)
        for start, text in labels:
            cells[start : start + len(text)] = text
        if end + len(suffix) + 1 <= plot_width:
            cells[plot_width - len(suffix) :] = suffix
        # numbers stand in the axis line itself: no row is spent on them
        text = "".join(cells)
        for part in _runs(text):
            line.add(part, p.border if set(part) <= {"─"} else p.muted)
        return line


def _runs(text: str) -> list[str]:
    parts: list[str] = []
    for char in text:
        if parts and (parts[-1][-1] == "─") == (char == "─"):
            parts[-1] += char
        else:
            parts.append(char)
    return parts


def _within(series: Series, window: tuple[float, float] | None, weight: float) -> Series:
    ys = series.ys if series.dots else smooth(series.ys, weight)
    xs, spread = series.xs, series.spread
    if window is not None:
        a, b = bisect_left(xs, window[0]), bisect_left(xs, window[1] + 1e-9)
        xs, ys = xs[a:b], ys[a:b]
        spread = spread[a:b] if spread is not None else None
    return Series(series.name, xs, ys, spread, series.dots)


def _extent(drawn: list[Series]) -> tuple[float, float]:
    low, high = math.inf, -math.inf
    for series in drawn:
        spread = series.spread or [0.0] * len(series.ys)
        for y, s in zip(series.ys, spread, strict=True):
            if math.isfinite(y):
                s = s if math.isfinite(s) else 0.0
                low, high = min(low, y - s), max(high, y + s)
    if not math.isfinite(low):
        return 0.0, 1.0
    if high - low < 1e-9 * max(1.0, abs(high)):
        pad = abs(high) * 0.1 or 1.0
        return low - pad, high + pad
    pad = 0.04 * (high - low)
    if 0 <= low < 0.25 * high:
        return 0.0, high + pad
    return low - pad, high + pad


class _Canvas:
    """Braille dots, two by four to a cell, with one series to a cell."""

    def __init__(self, width: int, height: int, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.width, self.height = width, height
        self.x, self.y = x, y
        self.bits = [[0] * width for _ in range(height)]
        self.owner = [[-1] * width for _ in range(height)]
        self.points: dict[tuple[int, int], int] = {}
        self.shade: list[set[int]] = [set() for _ in range(height)]

    def _dot_x(self, x: float) -> int:
        return round((x - self.x[0]) / (self.x[1] - self.x[0]) * (self.width * 2 - 1))

    def _dot_y(self, y: float) -> int:
        return round((self.y[1] - y) / (self.y[1] - self.y[0]) * (self.height * 4 - 1))

    def row_of(self, y: float) -> int:
        return max(0, min(self.height - 1, self._dot_y(y) // 4))

    def columns(self, series: Series) -> list[tuple[int, float, float]]:
        """Per dot column: the mean value and the mean spread of the points that fall on it."""
        out: list[tuple[int, float, float]] = []
        spread = series.spread
        n, total, wide, at = 0, 0.0, 0.0, None
        for index, (x, y) in enumerate(zip(series.xs, series.ys, strict=True)):
            if not math.isfinite(y):
                continue
            column = self._dot_x(x)
            if at is not None and column != at:
                out.append((at, total / n, wide / n))
                n, total, wide = 0, 0.0, 0.0
            at = column
            n += 1
            total += y
            if spread is not None and math.isfinite(spread[index]):
                wide += spread[index]
        if at is not None and n:
            out.append((at, total / n, wide / n))
        return out

    def band(self, series: Series) -> None:
        """Shade mean ± spread."""
        if series.spread is None:
            return
        columns = self.columns(series)
        for (a, y0, w0), (b, y1, w1) in pairwise([columns[0], *columns] if columns else []):
            for cell in range(a // 2 + (b > a), b // 2 + 1):
                t = 1.0 if b == a else min(1.0, (2 * cell + 1 - a) / (b - a))
                y, wide = y0 + t * (y1 - y0), w0 + t * (w1 - w0)
                top, bottom = round(self._dot_y(y + wide) / 4), round(self._dot_y(y - wide) / 4)
                for row in range(max(0, top), min(self.height, bottom)):
                    self.shade[row].add(cell)

    def draw(self, order: int, series: Series) -> None:
        """A line through the columns, or one mark per point."""
        columns = self.columns(series)
        if series.dots or len(columns) == 1:
            for column, y, _ in columns:
                cell = min(self.width - 1, max(0, column // 2))
                self.points[(self.row_of(y), cell)] = order
            if series.dots:
                return
        for (x0, y0, _), (x1, y1, _) in pairwise(columns):
            a, b = self._dot_y(y0), self._dot_y(y1)
            steps = max(1, x1 - x0, abs(b - a))
            for i in range(steps + 1):
                self._dot(x0 + (x1 - x0) * i // steps, a + round((b - a) * i / steps), order)

    def _dot(self, x: int, y: int, order: int) -> None:
        if 0 <= x < self.width * 2 and 0 <= y < self.height * 4:
            row, cell = y // 4, x // 2
            if self.owner[row][cell] not in (-1, order):
                self.bits[row][cell] = 0
            self.owner[row][cell] = order
            self.bits[row][cell] |= _DOT[x & 1][y & 3]

    def paint(self, line: Line, y: int, p: Palette, no_color: bool) -> None:
        """Append row `y` to a line."""
        text, style = "", None
        for x in range(self.width):
            order = self.points.get((y, x))
            shaded = x in self.shade[y]
            if order is not None:
                char, here = MARKS[order % len(MARKS)], p.series[order % len(p.series)]
            elif self.bits[y][x]:
                order = self.owner[y][x]
                char, here = chr(0x2800 + self.bits[y][x]), p.series[order % len(p.series)]
            else:
                char, here = ("⠐" if no_color and shaded and (x + y) % 2 else " "), p.faint
            if shaded:
                here = here + p.band
            if here is not style:
                if text:
                    line.add(text, style)
                text, style = "", here
            text += char
        if text:
            line.add(text, style)
