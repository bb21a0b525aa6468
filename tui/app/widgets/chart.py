"""Line charts in braille: axes with round numbers, a band for ± std, marks that distinguish lines without colour."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

from ...format import number
from ..curves import Series, by_scale, clamp, decades, labels, positive, smooth, ticks
from ..theme import Palette
from .pane import Line, Pane

MARKS = "●◆▲■★▼○◇"
_DOT = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


class Braille:
    """A plot of `width` × `height` cells over finite ranges of x and y."""

    def __init__(self, width: int, height: int, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.width, self.height = width, height
        self.x, self.y = x, y
        self.bits = [[0] * width for _ in range(height)]
        self.owner = [[-1] * width for _ in range(height)]
        self.points: dict[tuple[int, int], int] = {}
        self.shade: list[set[int]] = [set() for _ in range(height)]

    def _dot_y(self, y: float) -> int:
        y = min(max(y, self.y[0]), self.y[1])
        return round((self.y[1] - y) / (self.y[1] - self.y[0]) * (self.height * 4 - 1))

    def row_of(self, y: float) -> int:
        return max(0, min(self.height - 1, self._dot_y(y) // 4))

    def columns(self, series: Series) -> list[tuple[int, float, float]]:
        found: dict[int, list[tuple[float, float]]] = {}
        for index, (x, y) in enumerate(zip(series.xs, series.ys, strict=True)):
            if math.isfinite(y) and math.isfinite(x):
                wide = series.spread[index] if series.spread is not None else 0.0
                wide = clamp(wide) if math.isfinite(wide) else 0.0
                dot = round((x - self.x[0]) / (self.x[1] - self.x[0]) * (self.width * 2 - 1))
                found.setdefault(dot, []).append((clamp(y), wide))
        return [
            (column, sum(y / len(points) for y, _ in points), sum(w / len(points) for _, w in points))
            for column, points in found.items()
        ]

    def band(self, series: Series) -> None:
        if series.spread is None:
            return
        columns = self.columns(series)
        for (a, y0, w0), (b, y1, w1) in pairwise([columns[0], *columns] if columns else []):
            for cell in range(a // 2 + (b > a), b // 2 + 1):
                t = 1.0 if b == a else min(1.0, (2 * cell + 1 - a) / (b - a))
                y, wide = (1 - t) * y0 + t * y1, (1 - t) * w0 + t * w1
                top, bottom = round(self._dot_y(y + wide) / 4), round(self._dot_y(y - wide) / 4)
                for row in range(max(0, top), min(self.height, bottom)):
                    self.shade[row].add(cell)

    def draw(self, order: int, series: Series) -> None:
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
        text, style = "", None
        for x in range(self.width):
            order = self.points.get((y, x))
            shaded = x in self.shade[y]
            if order is not None:
                char, tone = MARKS[order % len(MARKS)], p.series[order % len(p.series)]
            elif self.bits[y][x]:
                order = self.owner[y][x]
                char, tone = chr(0x2800 + self.bits[y][x]), p.series[order % len(p.series)]
            else:
                char, tone = ("⠐" if no_color and shaded and (x + y) % 2 else " "), p.faint
            if shaded:
                tone = tone + p.band
            if tone is not style:
                if text:
                    line.add(text, style)
                text, style = "", tone
            text += char
        if text:
            line.add(text, style)


class Chart(Pane):
    """Curves over the step (or `x_name`), on one scale or in one panel per scale."""

    heading = ""
    series: Sequence[Series] = ()
    window: tuple[float, float] | None = None
    smoothing = 0.0
    note = "nothing recorded yet"
    x_name = "step"
    x_whole = True
    log = False
    panels = False
    """Whether curves of different scales get separate panels."""

    def put(self, heading: str, series: Sequence[Series], note: str = "") -> None:
        self.heading = heading
        self.series = series
        self.note = note or self.note
        self.changed()

    def build(self, width: int, height: int) -> list[Line]:
        p = self.palette
        shown = [_within(s, self.window, self.smoothing) for s in self.series]
        lines = self._heading(shown, width, height)
        if height < len(lines) + 4 or width < 16:
            return lines[:height]
        drawn = [(order, s) for order, s in enumerate(shown) if s.xs]
        if self.log:
            drawn = [(order, positive(s)) for order, s in drawn]
            drawn = [(order, s) for order, s in drawn if s.range is not None]
        rows = height - len(lines)
        if not drawn:
            note = "no value is above 0" if self.log and any(s.xs for s in shown) else self.note
            blank = [Line(p) for _ in range(max(0, (rows - 1) // 2))]
            return [*lines, *blank, Line(p).add(note, p.faint, cells=width, align="^")]
        orders = {id(s): order for order, s in drawn}
        groups = by_scale([s for _, s in drawn]) if self.panels else [[s for _, s in drawn]]
        while len(groups) > 1 and rows // len(groups) < 5:  # with its axis
            groups = [*groups[:-2], [*groups[-2], *groups[-1]]]
        xs = self.window or (
            min(clamp(s.xs[0]) for _, s in drawn),
            max(clamp(s.xs[-1]) for _, s in drawn),
        )
        if xs[1] <= xs[0]:
            wide = max(1.0, 1e-12 * xs[1])  # a huge step plus 1 is the same number
            xs = (max(0.0, xs[0] - wide), xs[1] + wide)
        share, rest = divmod(rows, len(groups))
        y_axes = [_YAxis(group, share + (i < rest) - 1, self.log) for i, group in enumerate(groups)]
        margin = max(axis.width for axis in y_axes) + 1
        for i, (group, axis) in enumerate(zip(groups, y_axes, strict=True)):
            members = [(orders[id(s)], s) for s in group]
            lines += self._plot(members, axis, xs, margin, width, named=i == len(groups) - 1)
        return lines

    def _plot(
        self,
        members: list[tuple[int, Series]],
        axis: _YAxis,
        xs: tuple[float, float],
        margin: int,
        width: int,
        named: bool,
    ) -> list[Line]:
        p = self.palette
        many = len(self.series) > 1
        plot = max(2, width - margin - 1 - (2 if many else 0))
        canvas = Braille(plot, axis.rows, xs, axis.range)
        for _, series in members:
            canvas.band(series)
        for order, series in reversed(members):  # where curves meet, the first one stays visible
            canvas.draw(order, series)
        row_labels = {canvas.row_of(t): text for t, text in axis.labels}
        ends = {canvas.row_of(s.ys[-1]): order for order, s in members if many and math.isfinite(s.ys[-1])}
        lines = []
        for y in range(axis.rows):
            label = row_labels.get(y)
            line = Line(p).add(label or "", p.muted, cells=margin, align=">").add("┤" if label else "│", p.border)
            canvas.paint(line, y, p, self.app.no_color)
            if y in ends:
                line.gap().add(MARKS[ends[y] % len(MARKS)], p.series[ends[y] % len(p.series)])
            lines.append(line)
        return [*lines, self._x_axis(margin, plot, *xs, named)]

    def _heading(self, shown: list[Series], width: int, height: int) -> list[Line]:
        """Return the heading and the legend. To fit all curves, drop spreads, then add a line, then drop values."""
        max_lines, wide = 2 if height < 12 else 3, width >= 52
        for more, spreads, values in ((0, wide, True), (0, False, True), (1, False, True), (1, False, False)):
            lines, fits = self._legend(shown, width, max_lines + more, spreads, values)
            if fits and (not more or height >= len(lines) + 4):  # an added line must leave room for the curves
                return lines
        return self._legend(shown, width, max_lines, wide, True)[0]

    def _legend(
        self, shown: list[Series], width: int, max_lines: int, spreads: bool, values: bool
    ) -> tuple[list[Line], bool]:
        """Return at most `max_lines` lines, and whether they contain every curve."""
        p = self.palette
        first = Line(p)
        if self.heading and (width >= 52 or len(shown) < 2):
            first.add(self.heading, p.title, most=width - 2).gap(2)
        lines = [first]
        for order, series in enumerate(shown):
            value = series.newest
            item = Line(p).add(MARKS[order % len(MARKS)] + " ", p.series[order % len(p.series)])
            room = max(4, width - item.width - 12)
            item.add(series.name, p.text, most=room, click=("series", series.name))
            if values:
                item.gap().add(number(value), p.muted)
            if spreads and series.spread and value is not None:
                item.add(f" ± {number(series.spread[-1])}", p.faint)
            if lines[-1].width and lines[-1].width + item.width > width:
                if len(lines) >= max_lines:
                    more = Line(p).add(f" +{len(shown) - order} more", p.muted)
                    lines[-1] = lines[-1].cropped(width - more.width).extend(more)
                    return lines, False
                lines.append(Line(p))
            lines[-1].offer(item, width)
            lines[-1].offer(Line(p).gap(2), width)
        return lines, True

    def _x_axis(self, margin: int, plot: int, low: float, high: float, named: bool) -> Line:
        p = self.palette
        line = Line(p).gap(margin).add("╰", p.border)
        cells = ["─"] * plot
        suffix = f" {self.x_name}" if named else ""
        end = -2
        values = ticks(low, high, max(2, plot // 12), whole=self.x_whole)
        for tick, text in zip(values, labels(values), strict=True):
            x = round((tick - low) / (high - low) * (plot - 1))
            start = min(max(0, x - len(text) // 2), plot - len(text) - len(suffix) - bool(suffix))
            if start > end + 1 and start >= 0:
                cells[start : start + len(text)] = text
                end = start + len(text)
        if suffix and max(end, 0) + len(suffix) + 1 <= plot:
            cells[plot - len(suffix) :] = suffix
        # numbers are in the axis line itself, which saves a row
        for rule, part in groupby(cells, key="─".__eq__):
            line.add("".join(part), p.border if rule else p.muted)
        return line


class _YAxis:
    """Range and labels of a panel's y axis with `rows` rows. On a log scale the range holds exponents."""

    def __init__(self, group: Sequence[Series], rows: int, log: bool) -> None:
        self.rows = max(1, rows)
        self.range = _extent(group)
        low, high = self.range
        limit = max(2, self.rows // 3)
        if log:
            values = decades(low, high, limit)
            texts = [label for exponent in values for label in labels([float(f"{10.0**exponent:.3g}")])]
        else:
            values = ticks(low, high, limit)
            texts = labels(values)
        self.labels = list(zip(values, texts, strict=True))

    @property
    def width(self) -> int:
        return max((len(text) for _, text in self.labels), default=1)


def _within(series: Series, window: tuple[float, float] | None, weight: float) -> Series:
    ys = series.ys if series.dots else smooth(series.ys, weight)
    xs, spread = series.xs, series.spread
    if window is not None:
        a, b = bisect_left(xs, window[0]), bisect_left(xs, window[1] + 1e-9)
        xs, ys = xs[a:b], ys[a:b]
        spread = spread[a:b] if spread is not None else None
    return replace(series, xs=xs, ys=ys, spread=spread)


def _extent(drawn: Sequence[Series]) -> tuple[float, float]:
    """Return the range to draw, including a margin. Its size is finite and positive."""
    low, high = (0.0, 1.0) if any(series.share and series.range for series in drawn) else (math.inf, -math.inf)
    for series in drawn:
        for index, y in enumerate(series.ys):
            if math.isfinite(y):
                wide = series.spread[index] if series.spread is not None else 0.0
                wide = wide if math.isfinite(wide) else 0.0
                low, high = min(low, clamp(y - wide)), max(high, clamp(y + wide))
    if not math.isfinite(low):
        return 0.0, 1.0
    if (low, high) == (0.0, 1.0):
        return low, high
    size = max(abs(low), abs(high))
    if high - low <= max(1e-9 * size, 1e-300):
        pad = size * 0.1
        return (low - pad, high + pad) if size else (0.0, 1.0)
    pad = 0.04 * (high - low)
    if 0 <= low < 0.25 * high:
        return 0.0, high + pad
    return low - pad, high + pad
