"""The histogram above the list: its values, and bars that filter by click or key."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.rewards.breakdown import RewardBreakdown
from grpo_tui.tui.app.destinations import Trajectories

from .drive import running
from .terminal import opened


async def test_keys_choose_bars_one_after_the_other(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        histogram, seen = app.screen.histogram, 0
        bins = histogram.bins
        for at in [i for i, (_, _, n) in enumerate(bins) if n]:
            text = await app.press("right_square_bracket")
            assert histogram.chosen == at and "▲" in text and f" of {bins[at][2]} " in text
            assert histogram.bins == bins, "the other bars stay"
            seen += bins[at][2]
        assert seen == 320
        text = await app.press("right_square_bracket")
        assert "of 320" in text and app.screen.list_query.filter == "" and "▲" not in text.splitlines()[7]
        await app.press("left_square_bracket")
        assert histogram.chosen == max(i for i, (_, _, n) in enumerate(bins) if n)


@pytest.mark.parametrize(("presses", "column"), [(1, "tokens"), (2, "turns"), (3, "reward")])
async def test_other_values(run: Path, presses: int, column: str) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press(*["m"] * presses)
        with RunReader(run) as reader:
            rows = reader.rollouts.page(Query(), limit=1000)
        values = [getattr(row, column) for row in rows]
        for low, high, n in app.screen.histogram.bins[:-1]:
            assert n == sum(low <= value < high for value in values)
        assert sum(n for _, _, n in app.screen.histogram.bins) == 320
        await app.press("right_square_bracket")
        assert app.screen.list_query.filter.startswith(f"{column}>=")
        assert app.screen.table.total == app.screen.histogram.bins[0][2] > 0


async def test_a_bar_joins_the_filter_and_leaves_it(run: Path) -> None:
    async with running(run.parent, Trajectories(run, Query("step<5 or step>35"))) as app:
        histogram = app.screen.histogram
        tallest = max(range(len(histogram.bins)), key=lambda i: histogram.bins[i][2])
        start, _, _ = next(h for h in histogram.lines[-2].hits if h[2] == ("bin", tallest))
        place = (histogram.region.x + start, histogram.region.y + histogram.region.height - 2)
        await app.pilot.click(offset=place)
        text = await app.press("g")
        assert app.screen.list_query.filter.startswith("(step<5 or step>35) and reward>=")
        assert f"of {histogram.bins[tallest][2]} " in text
        await app.pilot.click(offset=place)
        await app.press("g")
        assert app.screen.list_query.filter == "step<5 or step>35"
        await app.press("right_square_bracket", "m", "right_square_bracket")
        filter = app.screen.list_query.filter
        assert "reward<" in filter and "and tokens>=" in filter, "a bar of another value joins as well"
        await app.press("c")
        assert "of 320" in app.text and histogram.chosen is None


async def test_the_value_is_remembered(run: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.json"
    async with running(run.parent, Trajectories(run), memory=memory) as app:
        await app.press("m", "m")
        app.app.memory.save()
    async with running(run.parent, Trajectories(run), memory=memory) as app:
        assert app.screen.histogram.what == "turns"


async def test_the_outer_bars_hold_the_extremes(tmp_path: Path) -> None:
    run, rng = tmp_path / "runs" / "r", random.Random(5)
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"id": "r", "mode": "rft"}')
    rewards = [rng.uniform(-1 / 3, 1e6 / 7) for _ in range(50)]
    writer = RunWriter(run)
    writer.trajectories(
        1,
        [
            TrajectoryRecord(
                Trajectory(f"t{i}", "e", "p", "g", i, "Q", (Step(0, "x"),)), RewardBreakdown(f"t{i}", (), reward)
            )
            for i, reward in enumerate(rewards)
        ],
    )
    writer.close()
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("right_square_bracket")
        assert app.screen.table.total == app.screen.histogram.bins[0][2]
        await app.press("c", "left_square_bracket")
        assert app.screen.table.total == app.screen.histogram.bins[-1][2]


async def test_nothing_to_choose(own_runs: Path) -> None:
    empty = own_runs / "none"
    empty.mkdir()
    (empty / "run.json").write_text('{"id": "none", "mode": "rft"}')
    async with running(own_runs, Trajectories(empty)) as app:
        await app.press("right_square_bracket", "left_square_bracket", "m")
        assert app.screen.list_query == Query()


def test_in_a_terminal(run: Path) -> None:
    with opened(run, "Trajectories(run)") as screen:
        screen.see("1 of 320", "rewards")
        screen.press("m")
        screen.see("tokens")
        screen.press("]")
        screen.see("tokens>=28", "▲28")
        screen.press("q")
        assert screen.wait() == 0
