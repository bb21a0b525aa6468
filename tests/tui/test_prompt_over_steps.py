"""One prompt over all steps: its groups, one row a step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.tui.app.destinations import Groups, Stepper, Trajectories

from .drive import running
from .terminal import opened
from .test_hostile import check, make_hostile


async def test_from_a_rollout_to_its_prompt_and_to_another_step(run: Path) -> None:
    async with running(run.parent, Stepper(run, 13)) as app:
        await app.press("u")
        assert app.view == "groups" and "1 of 40" not in app.text and "2 of 40" in app.text, "at its own step"
        with RunReader(run) as reader:
            rows = reader.rollouts.page(Query("prompt:p1 and step=9"))
        routes = Counter(r.actions for r in rows)
        line = next(text for text in app.text.splitlines() if " 9.1 " in text)
        assert f"{sum(bool(r.correct) for r in rows)}/4" in line
        for route, n in routes.items():
            assert f"{n}× {' ▸ '.join(a.split('_')[0] for a in route)}" in line
        assert "reward" in app.text and "± " in app.text, "the curve with its spread"
        await app.press("G", "enter")
        assert app.view == "stepper" and app.screen.cursor.opened.group[0].step == 40
        assert app.screen.cursor.record.trajectory.prompt_id == "p1"


async def test_from_the_lists(run: Path) -> None:
    async with running(run.parent, Trajectories(run)) as app:
        await app.press("j", "u")
        assert app.screen.list_query.filter == 'prompt:"p0"'
        await app.press("c")
        assert "of 80" in app.text and "routes or answers" not in app.text, "without the filter, all groups"
        await app.press("j", "u")
        assert "routes or answers" in app.text


@pytest.mark.parametrize("prompt", ["plain", 'a"b', "it's", "both ' and \"", "star*[x]?", "[red]\x1b[2J", "日本語 🙂"])
async def test_any_prompt_id(tmp_path: Path, prompt: str) -> None:
    run = tmp_path / "runs" / "ids"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"id": "ids", "mode": "rft"}')
    writer = RunWriter(run)
    for step in (1, 2, 3):
        records = [
            TrajectoryRecord(Trajectory(f"{step}{id_}{n}", "e", id_, f"{step}{id_}", n, "Q?", (Step(0, f"text {n}"),)))
            for id_ in (prompt, "other")
            for n in range(2)
        ]
        writer.trajectories(step, records)
    writer.close()
    async with running(run.parent, Stepper(run, 1), size=(80, 24)) as app:
        await app.press("u")
        assert "1 of 3" in app.text
        check(app.text)


@pytest.mark.parametrize("size", [(20, 6), (80, 24), (300, 90)])
async def test_hostile_answers_at_every_size(tmp_path: Path, size: tuple[int, int]) -> None:
    run = make_hostile(tmp_path / "runs")
    async with running(run.parent, Trajectories(run), size=size) as app:
        await app.press("G", "u", "G")
        assert app.view == "groups"
        check(app.text)
        await app.pilot.resize_terminal(100, 30)
        await app.press()
        check(app.text)


async def test_one_step_is_a_point(own_runs: Path) -> None:
    async with running(own_runs, Groups.of_prompt(own_runs / "one", "p0", 1), size=(80, 24)) as app:
        assert "1 of 3" in app.text
    async with running(own_runs, Groups.of_prompt(own_runs / "one", "no such prompt", 1), size=(80, 24)) as app:
        assert "No group to show." in app.text


def test_in_a_terminal(run: Path) -> None:
    with opened(run, "Stepper(run, 5)") as screen:
        screen.see("step 1/")
        screen.press("u")
        screen.see("1 of 40", "routes or answers", "SEGMENT ▸ GET ▸ ANSWER")
        screen.press("q")
        assert screen.wait() == 0
