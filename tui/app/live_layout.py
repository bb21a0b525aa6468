"""Place the panels of the dashboard: a pure function of the kind of run, the size and the focused pane."""

from __future__ import annotations

from dataclasses import dataclass

from .live_data import Kind
from .widgets.frame import Box, SplitPart, split

PANES: dict[Kind, tuple[str, ...]] = {
    "rft": ("chart", "writing", "components", "kl", "actions", "learning", "versions", "speed", "log", "alerts"),
    "sft": ("chart", "writing", "learning", "versions", "speed", "log", "alerts"),
    "online": ("chart", "writing", "serving", "learning", "components", "kl", "actions", "versions", "log", "alerts"),
}
"""The panels of each kind of run, in the order of the tab key."""


@dataclass(frozen=True)
class LayoutInputs:
    """Inputs of the layout apart from the size.

    components: rows of the component table. findings: their number. focus: the pane that gets the keys. whole: show
    only that pane. writing: the run may be writing texts. empty: panes without content.
    """

    kind: Kind = "rft"
    components: int = 0
    findings: int = 0
    focus: str = "chart"
    whole: bool = False
    writing: bool = False
    empty: frozenset[str] = frozenset()


def plan(inputs: LayoutInputs, width: int, height: int) -> list[Box]:
    """Return the boxes. Neighbours share border lines. If room is short, log, speed and versions go first."""
    if inputs.whole and inputs.focus in PANES[inputs.kind]:
        return [Box(inputs.focus, 0, 0, width, height)]
    if width < 64 or height < 14:
        return _small(inputs, width, height)
    alerts = 4 if height < 30 else 5 if height < 45 else 7
    if not inputs.findings:
        alerts = 3
    if inputs.focus == "alerts":  # focused: room to read them
        alerts = max(alerts, min(12, height // 2, inputs.findings + 5))
    body = height - alerts + 1
    if inputs.kind != "online" and {"learning", "speed"} <= inputs.empty:
        return [*_before_the_first_step(inputs, width, body), Box("alerts", 0, body - 1, width, alerts)]
    boxes = {"rft": _rft, "online": _online, "sft": _sft}[inputs.kind](inputs, width, body)
    return [*boxes, Box("alerts", 0, body - 1, width, alerts)]


def _columns(width: int) -> list[tuple[int, int]]:
    table = 38 if width < 80 else 44 if width < 110 else 60 if width < 150 else min(86, int(width * 0.42))
    table = min(table, width - 34)
    return split(width, [SplitPart(width - table + 1, 0), SplitPart(table, 0)])


def _before_the_first_step(inputs: LayoutInputs, width: int, height: int) -> list[Box]:
    known = [name for name in ("chart", "versions") if name not in inputs.empty]
    if not inputs.writing:
        rows = split(height, [SplitPart(8, 1.0)] * (len(known) + 1))
        return [Box(name, 0, y, width, h) for name, (y, h) in zip([*known, "log"], rows, strict=True)]
    if width < 100:
        if height < 16:
            return [Box("writing", 0, 0, width, height)]
        (y1, h1), (y2, h2) = split(height, [SplitPart(9, 2.0), SplitPart(6, 1.0, 10)])
        return [Box("writing", 0, y1, width, h1), Box("chart" if "chart" in known else "log", 0, y2, width, h2)]
    (x1, w1), (x2, w2) = split(width, [SplitPart(60, 1.6), SplitPart(36, 1.0)])
    sizes = {"chart": SplitPart(9, 1.0), "versions": SplitPart(4, 0.2, 6), "log": SplitPart(6, 0.6)}
    names = [*known, "log"] if height >= 20 else [*known[:1], *(["log"] if not known else [])]
    rows = split(height, [sizes[name] for name in names])
    return [Box("writing", x1, 0, w1, height), *(Box(n, x2, y, w2, h) for n, (y, h) in zip(names, rows, strict=True))]


def _rft(inputs: LayoutInputs, width: int, height: int) -> list[Box]:
    rows = [SplitPart(9, 1.2), SplitPart(9, 1.0)] if inputs.writing else [SplitPart(9, 1.5), SplitPart(7, 0.55, 13)]
    (y, h), second, *third = split(height, [*rows, *([SplitPart(8, 0.3, 10)] if height >= 34 else [])])
    (_, cw), (_, tw) = _columns(width)
    need = inputs.components + 5
    boxes = _first_row(width, y, h, "components", need, "kl" if h >= need + 7 and "kl" not in inputs.empty else "")
    first = "writing" if inputs.writing else "speed" if "actions" in inputs.empty else "actions"
    if width >= 100:
        parts = [SplitPart(cw, 0.0), SplitPart(30, 1.0), SplitPart(26, 0.7)]
        if width < 110 or tw < 58:
            parts = [SplitPart(34, 1.2), SplitPart(32, 1.0), SplitPart(30, 0.8)]
        boxes += _row((first, "learning", "versions"), split(width, parts), *second)
    elif inputs.writing:
        boxes += _row(("writing",), [(0, width)], *second)
    else:
        boxes += _row((first, "learning"), _columns(width), *second)
    for row in third:
        if first == "writing" and "actions" not in inputs.empty and width >= 120:
            parts = [SplitPart(40, 1.0), SplitPart(34, 0.8), SplitPart(40, 1.0)]
            boxes += _row(("speed", "actions", "log"), split(width, parts), *row)
        elif first == "speed":
            boxes += _row(("log",), [(0, width)], *row)
        else:
            boxes += _row(("speed", "log"), _columns(width), *row)
    return boxes


def _online(inputs: LayoutInputs, width: int, height: int) -> list[Box]:
    rows = [SplitPart(9, 1.4), SplitPart(7, 0.7, 14), *([SplitPart(8, 0.3, 10)] if height >= 34 else [])]
    (y, h), second, *third = split(height, rows)
    boxes = _first_row(width, y, h, "serving", 9, "kl" if h >= 18 else "")
    if width >= 100:
        parts = [SplitPart(34, 1.0), SplitPart(40, 1.2), SplitPart(28, 0.8)]
        boxes += _row(("learning", "components", "versions"), split(width, parts), *second)
    else:
        boxes += _row(("learning", "versions"), _columns(width), *second)
    for row in third:
        boxes += _row(("actions", "log"), _columns(width), *row)
    return boxes


def _sft(inputs: LayoutInputs, width: int, height: int) -> list[Box]:
    (y, h), second = split(height, [SplitPart(9, 1.4), SplitPart(7, 0.6, 12)])
    boxes = _first_row(width, y, h, "learning", 10, "log" if h >= 18 else "")
    return boxes + _row(("speed", "versions"), _columns(width), *second)


def _first_row(width: int, y: int, height: int, upper: str, rows: int, lower: str) -> list[Box]:
    """Place the chart and, to its right, `upper`, with `rows` lines if `lower` goes below it."""
    (cx, cw), (tx, tw) = _columns(width)
    boxes = [Box("chart", cx, y, cw, height), Box(upper, tx, y, tw, rows if lower else height)]
    return [*boxes, Box(lower, tx, y + rows - 1, tw, height - rows + 1)] if lower else boxes


def _row(names: tuple[str, ...], columns: list[tuple[int, int]], y: int, height: int) -> list[Box]:
    return [Box(name, x, y, w, height) for name, (x, w) in zip(names, columns, strict=True)]


def _small(inputs: LayoutInputs, width: int, height: int) -> list[Box]:
    """Plan a terminal of a few lines: chart, one panel and alerts, the focused pane first."""
    if height < 10:
        return [Box(inputs.focus, 0, 0, width, height)]
    waits = {"learning", "speed"} <= inputs.empty and inputs.kind != "online"
    second = {"rft": "components", "sft": "learning", "online": "serving"}[inputs.kind]
    if waits:
        second = "writing" if inputs.writing else "log"
    if inputs.focus not in ("chart", "alerts"):
        second = inputs.focus
    if waits:
        (y1, h1), (y2, h2) = split(height, [SplitPart(6, 1.0), SplitPart(4, 0.3)])
        return [Box(second, 0, y1, width, h1), Box("alerts", 0, y2, width, h2)]
    half = max(6, height // 2)
    boxes = [Box("chart", 0, 0, width, half)]
    if height - half >= 9:
        (y1, h1), (y2, h2) = split(height - half + 1, [SplitPart(6, 1.0), SplitPart(4, 0.3)])
        return [*boxes, Box(second, 0, half - 1 + y1, width, h1), Box("alerts", 0, half - 1 + y2, width, h2)]
    third = "alerts" if inputs.focus == "alerts" else second
    return [*boxes, Box(third, 0, half - 1, width, height - half + 1)]
