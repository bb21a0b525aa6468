"""Plot two numbers of rollouts against each other. Rollouts are counted in cells, so the output size is bounded."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ..columns import COLUMNS, WHOLE
from ..labels import Labels
from ..read.record import Connection
from .histogram import INFINITY
from .query import Selection

_NUMBERS = ("n", *(column.name for column in COLUMNS if column.numeric))
_NAMED = re.compile(r"[^\s()<>=!:\"']{1,80}")


@dataclass(frozen=True)
class Axis:
    """A value and its cells. Cell i begins at `low + i * step` and ends at the next edge."""

    name: str
    low: float = 0.0
    step: float = 1.0
    cells: int = 1

    @property
    def high(self) -> float:
        return self.low + self.step * self.cells

    def edge(self, cell: int) -> str:
        return f"{round(self.low / self.step) * self.step + cell * self.step:.10g}"

    def term(self, cell: int) -> str:
        """Return the filter that selects the rollouts of a cell."""
        return f"{self.name}>={self.edge(cell)} and {self.name}<{self.edge(cell + 1)}"


@dataclass(frozen=True)
class Cloud:
    """Rollouts by cell, (column, row) from the lower left: their count, and the number of the first."""

    x: Axis
    y: Axis
    cells: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    @property
    def rollouts(self) -> int:
        return sum(n for n, _ in self.cells.values())


def names(labels: Labels) -> list[str]:
    """Return the names of the values that a plot can show, as in filters."""
    fields = [name if name.startswith("component.") else f"extra.{name}" for name in labels.of_kind("extra")]
    return [*_NUMBERS, *(name for name in fields if _NAMED.fullmatch(name))]


def cloud(db: Connection, labels: Labels, selection: Selection, x: str, y: str, size: tuple[int, int]) -> Cloud:
    """Count the finite points of a selection in at most `size` cells. Raises KeyError for an unknown name."""
    source, params, _ = selection.source()
    columns = ", ".join(f"{_sql(labels, name)} AS {axis}" for axis, name in (("x", x), ("y", y)))
    points = f"(SELECT rows.n AS n, {columns} {source})"
    finite = f"WHERE abs(x) < {INFINITY} AND abs(y) < {INFINITY}"
    ends = db.one(f"SELECT min(x), max(x), min(y), max(y) FROM {points} {finite}", params)
    if ends is None or any(end is None for end in ends):
        return Cloud(Axis(x), Axis(y))
    across, up = _axis(x, ends[0], ends[1], size[0]), _axis(y, ends[2], ends[3], size[1])
    sql = f"SELECT {_cell('x', across)}, {_cell('y', up)}, count(*), min(n) FROM {points} {finite} GROUP BY 1, 2"
    return Cloud(across, up, {(a, b): (n, first) for a, b, n, first in db.all(sql, params)})


def _sql(labels: Labels, name: str) -> str:
    if name in _NUMBERS:
        return f"rows.{name}"
    id_ = labels.of_kind("extra")[name if name.startswith("component.") else name.removeprefix("extra.")]
    return f"(SELECT number FROM extras WHERE extras.name = {id_} AND extras.n = rows.n)"


def _axis(name: str, low: float, high: float, cells: int) -> Axis:
    """Return at most `cells` cells with round edges."""
    smallest = max((high - low) / max(1, cells - 2), abs(high) * 1e-9, 1e-300)
    power = 10.0 ** math.floor(math.log10(smallest))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0, 20.0) if factor * power >= smallest)
    step = max(1.0, math.ceil(step)) if name in WHOLE else step
    start = math.floor(low / step + 1e-9)
    return Axis(name, start * step, step, math.floor(high / step + 1e-9) - start + 1)


def _cell(column: str, axis: Axis) -> str:
    # the epsilon puts a value on an edge into the cell that its filter names
    return f"min({axis.cells - 1}, max(0, CAST(({column} - {axis.low!r}) / {axis.step!r} + 1e-9 AS INTEGER)))"
