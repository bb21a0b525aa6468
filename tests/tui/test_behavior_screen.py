"""Behaviour from step to step, as a table."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean

import pytest

from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRow
from grpo_tui.tui.app.destinations import Behavior, Live, Trajectories

from .drive import Driver, running
from .terminal import opened
from .test_hostile import check, make_hostile


def rows(run: Path, filter: str) -> list[TrajectoryRow]:
    with RunReader(run) as reader:
        return reader.rollouts.page(Query(filter), limit=1000)


def line(app: Driver, name: str) -> list[str]:
    """Return the cells of the row that begins with a name."""
    return (
        next(text for text in app.text.splitlines() if f" {name} " in text[:30])
        .split(name, 1)[1]
        .strip("│")
        .replace(" %", "")
        .split()
    )


async def test_the_numbers_are_those_of_the_rollouts(run: Path) -> None:
    async with running(run.parent, Behavior(run), size=(80, 40)) as app:
        assert "1–10" in app.text and "31–40" in app.text
        first, last = rows(run, "step:1..10"), rows(run, "step:31..40")
        cells = line(app, "turns")
        assert cells[0] == f"{fmean(r.turns or 0 for r in first):.2f}"
        assert cells[3] == f"{fmean(r.turns or 0 for r in last):.2f}"
        assert cells[4] == f"{fmean(r.turns or 0 for r in last) - fmean(r.turns or 0 for r in first):+.2f}"
        for name in ("GET_PROPERTIES", "SEGMENT_OBJECT_AT"):
            actions = Counter(a for r in first for a in r.actions)
            assert line(app, name)[0] == f"{100 * actions[name] / actions.total():.0f}"
        assert line(app, "right")[0] == f"{100 * fmean(bool(r.correct) for r in first):.0f}"
        with RunReader(run) as reader:
            task = [v for s, v in reader.metrics.points("rewards/per_trajectory/task") if s <= 10]
        assert line(app, "task")[0] == f"{fmean(task):.2f}"


async def test_any_two_steps(run: Path) -> None:
    async with running(run.parent, Behavior(run), size=(80, 40)) as app:
        await app.press("s")
        await app.type("7 31")
        await app.press("enter")
        a, b = rows(run, "step=7"), rows(run, "step=31")
        assert line(app, "rollouts") == ["8", "8"]
        assert line(app, "reward")[:2] == [f"{fmean(r.reward or 0 for r in x):.2f}".replace("-", "−") for x in (a, b)]
        await app.press("s")
        await app.type("9..12")
        assert "9" in await app.press("enter") and line(app, "rollouts") == ["8"] * 4
        await app.press("0")
        assert "31–40" in app.text
        await app.press("s")
        assert "these steps" in await app.type("nonsense")


async def test_zooming_and_panning_follow_the_keys_of_the_dashboard(run: Path) -> None:
    async with running(run.parent, Behavior(run), size=(80, 40)) as app:
        await app.press("plus")
        assert "21–25" in app.text and "36–40" in app.text
        await app.press("h")
        assert "36–40" not in app.text and "16–20" in app.text
        await app.press("minus", "minus")
        assert "31–40" in app.text


async def test_a_row_leads_to_its_rollouts(run: Path) -> None:
    async with running(run.parent, Behavior(run), size=(80, 40)) as app:
        await app.press("s")
        await app.type("2 3")
        await app.press("enter")
        await app.click("SEGMENT_OBJECT_AT")
        await app.press("enter")
        assert app.view == "trajectories"
        assert app.screen.list_query.filter == 'action:"SEGMENT_OBJECT_AT" and (step=2 or step=3)'
        expected = len(rows(run, "action:SEGMENT_OBJECT_AT and step:2..3"))
        assert f"of {expected}" in app.text and 0 < expected < 16


async def test_a_row_narrows_a_filter_with_or(run: Path) -> None:
    async with running(run.parent, Behavior(run, Query("step=2 or step=3")), size=(80, 40)) as app:
        await app.click("SEGMENT_OBJECT_AT")
        await app.press("enter")
        assert f"of {len(rows(run, 'action:SEGMENT_OBJECT_AT and step:2..3'))}" in app.text


async def test_the_filter_of_a_list_stays(run: Path) -> None:
    async with running(run.parent, Trajectories(run, Query("wrong")), size=(80, 40)) as app:
        await app.press("B")
        assert app.view == "behavior" and line(app, "right")[0] == "0"
        assert "task" not in app.text, "metrics are of all rollouts of a step"
        await app.press("escape")
        assert app.view == "trajectories"


async def test_the_dashboard_leads_there(run: Path) -> None:
    async with running(run.parent, Live(run)) as app:
        await app.press("v")
        assert app.view == "behavior" and "SEGMENT_OBJECT_AT" in app.text


@pytest.mark.parametrize("size", [(20, 6), (40, 12), (80, 24), (300, 90)])
async def test_every_size_and_hostile_names(tmp_path: Path, size: tuple[int, int]) -> None:
    run = make_hostile(tmp_path / "runs")
    async with running(run.parent, Behavior(run), size=size) as app:
        assert app.app._exception is None
        check(app.text)
        await app.press("G", "k", "enter")
        check(app.text)
        await app.press("escape")
        await app.pilot.resize_terminal(100, 30)
        await app.press()
        assert len(app.text.splitlines()) == 30


async def test_a_run_without_rollouts_and_one_of_a_single_step(own_runs: Path) -> None:
    empty = own_runs / "none"
    empty.mkdir()
    (empty / "run.json").write_text('{"id": "none", "mode": "rft"}')
    async with running(own_runs, Behavior(empty)) as app:
        assert "No rollout to show." in app.text or "Nothing is recorded yet." in app.text
        assert "trajectories" in app.text
        await app.press("enter", "plus", "h", "0", "j")
        assert app.app._exception is None
    async with running(own_runs, Behavior(own_runs / "one", Query("step=2"))) as app:
        assert "change" not in app.text and line(app, "rollouts") == ["8"]


async def test_a_dump_without_steps_is_one_column(tmp_path: Path) -> None:
    dump = tmp_path / "dump.jsonl"
    dump.write_text(
        "".join(
            f'{{"prompt": "p{i % 4}", "completion": "answer {i}", "reward": {i % 2}.0, "level": {i % 5}}}\n'
            for i in range(40)
        )
    )
    run = open_dump(dump, whole=True).folder
    async with running(tmp_path, Behavior(run)) as app:
        assert " all" in app.text.splitlines()[1]
        assert line(app, "rollouts") == ["40"] and line(app, "reward") == ["0.50"]
        assert "ended by" not in app.text, "how they ended was not recorded"
        assert line(app, "level") == ["2.00"]


async def test_steps_that_were_not_recorded_are_none(run: Path) -> None:
    async with running(run.parent, Behavior(run)) as app:
        text = await app.press("s", *"500..600", "enter")
        assert "None of these steps was recorded. 0 shows all." in text and "rollouts" not in text
        await app.press("0")
        assert "ANSWER" in app.text


def test_in_a_terminal(run: Path) -> None:
    with opened(run, "Live(run)") as screen:
        screen.see("reward")
        screen.press("v")
        screen.see("31–40", "change", "GET_PROPERTIES")
        screen.press("s7 31\r")
        screen.see("single steps of 40 steps")
        screen.press("q")
        assert screen.wait() == 0
