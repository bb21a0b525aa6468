"""Boxes never overlap at any size, borders join, and charts stay inside their pane."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.tui.app.curves import Series, smooth, ticks
from grpo_tui.tui.app.destinations import Behavior, Live, Runs, Scatter, SideBySide, Stepper, Trajectories
from grpo_tui.tui.app.widgets.chart import Braille as _Canvas
from grpo_tui.tui.app.widgets.frame import Box, SplitPart, split

from .drive import running

parts = st.lists(
    st.builds(SplitPart, st.integers(3, 30), st.floats(0, 3), st.none() | st.integers(30, 90)), min_size=1, max_size=4
)


@given(st.integers(12, 300), parts)
def test_a_split_fills_its_room_and_shares_one_line_between_neighbours(total: int, wanted: list[SplitPart]) -> None:
    made = split(total, wanted)
    assert made[0][0] == 0 and made[-1][0] + made[-1][1] == total
    for (a, size), (b, _) in pairwise(made):
        assert b == a + size - 1
    assert all(size >= 3 for _, size in made)


def overlaps(boxes: list[Box]) -> list[tuple[str, str]]:
    return [(a.name, b.name) for a, b in combinations(boxes, 2) if a.inner().overlaps(b.inner())]


@pytest.mark.parametrize("view", ["runs", "live", "trajectories", "stepper", "diff", "groups"])
async def test_no_boxes_overlap_at_any_size(run: Path, view: str) -> None:
    start = {"runs": Runs(), "live": Live(run), "stepper": Stepper(run, 1)}.get(view, Trajectories(run))
    async with running(run.parent, start) as app:
        if view == "groups":
            await app.press("z")
        elif view == "diff":
            await app.press("enter", "d")
        plan = app.screen.plan
        for width in (20, 40, 59, 60, 64, 79, 80, 99, 100, 110, 120, 139, 140, 150, 180, 200, 250, 400):
            for height in (6, 10, 13, 14, 16, 18, 24, 30, 37, 38, 45, 60, 80, 120):
                boxes = plan(width, height)
                assert boxes and overlaps(boxes) == [], (width, height)
                for box in boxes:
                    assert box.x >= 0 and box.y >= 0 and box.width >= 3 and box.height >= 3, (width, height, box)
                    assert box.x + box.width <= width and box.y + box.height <= height, (width, height, box)


@pytest.mark.parametrize("size", [(20, 6), (40, 12), (60, 16), (80, 24), (300, 90)])
async def test_every_screen_paints_at_every_size_and_survives_resizing(run: Path, size: tuple[int, int]) -> None:
    for start in (
        Runs(),
        Live(run),
        Trajectories(run),
        Behavior(run),
        SideBySide(run, 1),
        Scatter(run),
        Stepper(run, 1),
    ):
        async with running(run.parent, start, size=size) as app:
            lines = app.text.splitlines()
            assert len(lines) == size[1]
            assert lines[0][0] == "╭" and lines[0][-1] == "╮" and lines[-1][0] == "╰" and lines[-1][-1] == "╯"
            await app.pilot.resize_terminal(100, 30)
            await app.press()
            assert len(app.text.splitlines()) == 30


async def test_borders_join(run: Path) -> None:
    async with running(run.parent, Stepper(run, 1), size=(120, 40)) as app:
        lines = app.text.splitlines()
        boxes = {b.name: b for b in app.screen.frame.boxes}
        image = boxes["image"]
        assert lines[image.y][image.x] == "├" and lines[image.y][image.x + image.width - 1] == "┤"
        assert lines[0][image.x] == "┬"


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(1, 12))
def test_ticks_are_round_few_and_inside(low: float, span: float, most: int) -> None:
    made = ticks(low, low + span, most)
    assert len(made) <= most
    assert all(low - 1e-6 * span <= t <= low + span * (1 + 1e-6) for t in made)


def test_smoothing_is_a_debiased_moving_average() -> None:
    assert smooth([1.0, 1.0, 1.0], 0.9) == pytest.approx([1, 1, 1])
    weight, values = 0.6, [0.0, 1.0, 0.5, 2.0]
    for i in range(4):
        weights = [weight ** (i - j) for j in range(i + 1)]
        expected = sum(w * v for w, v in zip(weights, values, strict=False)) / sum(weights)
        assert smooth(values, weight)[i] == pytest.approx(expected)
    assert smooth(values, 0) == values


@given(
    st.lists(st.floats(-1e3, 1e3) | st.just(float("nan")), min_size=1, max_size=300),
    st.integers(5, 60),
    st.integers(2, 20),
)
def test_a_canvas_takes_any_series(ys: list[float], width: int, height: int) -> None:
    canvas = _Canvas(width, height, (0.0, max(1.0, len(ys) - 1.0)), (-1000.0, 1000.0))
    series = Series("x", [float(i) for i in range(len(ys))], ys, [1.0] * len(ys))
    canvas.band(series)
    canvas.draw(0, series)
    finite = [y for y in ys if y == y]
    drawn = sum(bool(b) for row in canvas.bits for b in row) + len(canvas.points)
    assert (drawn > 0) == bool(finite)


def test_a_rising_line_rises() -> None:
    canvas = _Canvas(20, 10, (0.0, 9.0), (0.0, 9.0))
    canvas.draw(0, Series("x", list(range(10)), [float(i) for i in range(10)]))
    top = [min((y for y in range(10) if canvas.bits[y][x]), default=99) for x in range(20)]
    assert top == sorted(top, reverse=True) and top[0] == 9 and top[-1] == 0


@pytest.mark.parametrize("width", [36, 50, 78])
async def test_the_legend_names_every_curve_with_as_much_as_fits(run: Path, width: int) -> None:
    names = ["reward", "success", "held-out greedy", "held-out sampled"]
    curves = [Series(name, [1, 2], [0.25, 0.5], [0.125, 0.125]) for name in names]
    async with running(run.parent, Live(run)) as app:
        chart = app.screen.chart
        chart.put("Success", curves)
        legend = " ".join(line.plain for line in chart.build(width, 11)[: 3 if width < 50 else 2])
        drawn = chart.build(width, 6)
    assert all(name in legend for name in names) and legend.count("0.5") == 4
    assert ("±" in legend) == (width > 50)
    assert any("┤" in line.plain or "│" in line.plain for line in drawn), "curves keep their room in a low pane"


async def test_a_legend_counts_the_curves_that_it_leaves_out(run: Path) -> None:
    curves = [Series(f"component {n}", [1, 2], [0.25, 0.5]) for n in range(60)]
    async with running(run.parent, Live(run)) as app:
        chart = app.screen.chart
        chart.put("Components", curves)
        assert any(re.search(r" \+5\d more$", line.plain) for line in chart.build(78, 20))
        chart.put("a question of many words " * 9, curves[:1])
        (head, *_) = chart.lines
        assert head.plain.count("…") == 1
