"""The scatter plot: moving among points, and from a point to its rollouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.tui.app.destinations import Scatter, Trajectories

from .drive import running
from .terminal import opened
from .test_hostile import check, make_hostile


async def test_a_point_leads_to_its_rollouts(run: Path) -> None:
    async with running(run.parent, Trajectories(run, Query("correct"))) as app:
        await app.press("x")
        assert app.view == "scatter" and "reward over tokens" in app.text
        plot = app.screen.plot
        x, y = plot.cursor
        n, first = plot.cloud.cells[x, y]
        assert f"{n} rollouts" in app.text and n == max(n for n, _ in plot.cloud.cells.values())
        await app.press("enter")
        assert app.view == "stepper" and app.screen.n == first
        await app.press("escape", "t")
        assert app.view == "trajectories" and f"of {n}" in app.text
        filter = app.screen.list_query.filter
        assert filter == f"(correct) and {plot.cloud.x.term(x)} and {plot.cloud.y.term(y)}"
        with RunReader(run) as reader:
            rows = reader.rollouts.page(Query(filter), limit=500)
        assert len(rows) == n and all(row.correct for row in rows)


async def test_keys_go_from_point_to_point(run: Path) -> None:
    async with running(run.parent, Scatter(run), size=(80, 24)) as app:
        plot = app.screen.plot
        cells = set(plot.cloud.cells)
        await app.press("h", "h", "h", "h", "h")
        assert plot.cursor[0] == min(x for x, _ in cells)
        await app.press("l")
        assert plot.cursor[0] > min(x for x, _ in cells)
        for _ in range(30):
            await app.pilot.press("k")
        await app.press()
        assert plot.cursor[1] == max(y for _, y in cells) and plot.cursor in cells
        before = plot.cursor
        await app.press("j")
        assert plot.cursor[1] < before[1]


async def test_a_click_moves_and_a_second_one_opens(run: Path) -> None:
    async with running(run.parent, Scatter(run)) as app:
        plot = app.screen.plot
        y, hit = next(
            (y, hit) for y, line in enumerate(plot.lines) for hit in line.hits if hit[2] != ("point", plot.cursor)
        )
        place = (plot.region.x + hit[0], plot.region.y + y)
        await app.pilot.click(offset=place)
        await app.press()
        assert plot.cursor == hit[2][1] and app.view == "scatter"
        await app.pilot.click(offset=place)
        await app.press()
        assert app.view == "stepper" and app.screen.n == plot.cloud.cells[plot.cursor][1]


async def test_any_two_values(run: Path) -> None:
    async with running(run.parent, Scatter(run), size=(80, 24)) as app:
        await app.press("m", "space", "space")
        await app.type("step")
        await app.press("space")
        await app.type("turns")
        await app.press("enter")
        assert app.screen.plot.cloud.rollouts == 320
        assert {app.screen.x, app.screen.y} & {"step", "turns"}
        await app.press("m", "escape")
        assert app.view == "scatter"


@pytest.mark.parametrize("size", [(20, 6), (40, 12), (80, 24), (300, 90)])
async def test_every_size_and_hostile_records(tmp_path: Path, size: tuple[int, int]) -> None:
    run = make_hostile(tmp_path / "runs")
    async with running(run.parent, Scatter(run), size=size) as app:
        check(app.text)
        await app.press("j", "k", "h", "l", "pageup", "pagedown", "g", "G", "enter")
        check(app.text)
        await app.press("escape")
        await app.pilot.resize_terminal(100, 30)
        await app.press()
        assert "rollouts" in app.text
        check(app.text)


async def test_nothing_to_plot(own_runs: Path) -> None:
    empty = own_runs / "none"
    empty.mkdir()
    (empty / "run.json").write_text('{"id": "none", "mode": "rft"}')
    async with running(own_runs, Scatter(empty), size=(80, 24)) as app:
        assert "No rollout has numbers for tokens and reward." in app.text
        await app.press("j", "h", "enter", "t", "m", "escape")
        assert app.app._exception is None
    async with running(own_runs, Scatter(own_runs / "one", Query("n=3")), size=(80, 24)) as app:
        assert "1 rollout" in app.text


def test_in_a_terminal(run: Path) -> None:
    with opened(run, "Trajectories(run)") as screen:
        screen.see("1 of 320")
        screen.press("x")
        screen.see("reward over tokens", "320 rollouts")
        screen.press("t")
        screen.see("tokens>=", "trajectories")
        screen.press("q")
        assert screen.wait() == 0
