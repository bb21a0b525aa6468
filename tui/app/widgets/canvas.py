"""Lines, bands and points in braille: dots two by four to a cell, one curve to a cell."""

from __future__ import annotations

import math
from itertools import pairwise

from ..curves import Series, clamp
from ..theme import Palette
from .line import Line

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

    def _dot_x(self, x: float) -> int:
        return round((x - self.x[0]) / (self.x[1] - self.x[0]) * (self.width * 2 - 1))

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
                found.setdefault(self._dot_x(x), []).append((clamp(y), wide))
        return [
            (column, sum(y / len(at) for y, _ in at), sum(w / len(at) for _, w in at)) for column, at in found.items()
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
