"""All rollouts of a group in columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import Step, Trajectory
from grpo_tui.tui.app.destinations import SideBySide, Stepper, Trajectories

from .demo_run import make_run
from .drive import running
from .terminal import opened
from .test_hostile import check, make_hostile


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with groups of eight."""
    return make_run(tmp_path_factory.mktemp("eight") / "runs", "eight", steps=2, rollouts=8)


@pytest.mark.parametrize(("width", "columns"), [(30, 1), (80, 2), (150, 5), (250, 8), (400, 8)])
async def test_as_many_columns_as_fit(eight: Path, width: int, columns: int) -> None:
    async with running(eight.parent, SideBySide(eight, 1), size=(width, 45)) as app:
        assert f"1–{columns} of 8 rollouts" in app.text or width == 30
        assert len(app.screen.heads.shown_rows) == columns
        calls = [text for text in app.text.splitlines() if "ANSWER(text=" in text]
        assert sum(text.count("ANSWER(text=") for text in calls) == columns, "each column ends with its answer"


async def test_columns_hold_their_own_rollouts(eight: Path) -> None:
    with RunReader(eight) as reader:
        group = reader.rollouts.group(reader.rollouts.rows([9])[0].group)
    async with running(eight.parent, SideBySide(eight, 9), size=(250, 45)) as app:
        line = next(text for text in app.text.splitlines() if "▸9 " in text[:8])
        for at, (part, row) in enumerate(zip(line.split("│")[1:], group, strict=False)):
            assert f"{row.n} {'✓' if row.correct else '✗'} {row.reward:.2f}".replace("-", "−") in part, at
        differing = [r for r in group if r.actions[0] == "GET_PROPERTIES"]
        first = next(text for text in app.text.splitlines() if "GET_PROPERTIES(mask=7)" in text)
        assert first.count("GET_PROPERTIES(mask=7)") == len(differing)
        assert 0 < len(differing) < 4 and first.count("≠ GET_PROPERTIES") == len(differing)


async def test_moving_paging_and_opening(eight: Path) -> None:
    async with running(eight.parent, Trajectories(eight), size=(80, 24)) as app:
        await app.press("j", "j", "a")
        assert app.view == "side by side" and "▸3 " in app.text and "3–4 of 8" in app.text
        await app.press("l", "l")
        assert "▸5 " in app.text and "4–5 of 8" in app.text
        await app.press("L")
        assert "▸7 " in app.text and "6–7 of 8" in app.text
        assert "7–8 of 8" in await app.press("L", "L")
        assert "1–2 of 8" in await app.press("H", "H", "H", "H")
        await app.press("l", "enter")
        assert app.view == "stepper" and app.screen.n == 2
        await app.press("right_square_bracket", "escape")
        assert app.view == "side by side" and "▸3 " in app.text, "the column of the rollout that was left"
        await app.click(" 4 ✗" if " 4 ✗" in app.text else " 4 ✓", 1)
        assert "▸4 " in app.text
        await app.press("escape")
        assert app.view == "trajectories"


async def test_whole_texts(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "long"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"id": "long", "mode": "rft"}')
    writer = RunWriter(run)
    text = "\n".join(f"line {i}" for i in range(40))
    huge = "word " * 600_000
    steps = (Step(0, text, needs_call=False), Step(1, huge, "", "HUGE", {"x": "y" * 100_000}, observation=huge))
    writer.trajectories(1, [TrajectoryRecord(Trajectory(f"t{n}", "e", "p", "g", n, "Q?", steps)) for n in range(2)])
    writer.close()
    async with running(run.parent, SideBySide(run, 1), size=(80, 24)) as app:
        assert "line 4" in app.text and "line 7" not in app.text and "✂ more" in app.text
        assert "line 15" in await app.press("z")
        await app.press("G", "k", "pageup", "g", "z")
        assert "line 7" not in app.text


@pytest.mark.parametrize(
    ("size", "numbers"),
    [
        ((20, 6), (17, 18)),
        ((80, 24), (18, 10**9)),
        ((300, 90), (17,)),
        pytest.param((20, 6), (10**9,), marks=pytest.mark.stress),
        pytest.param((80, 24), (17,), marks=pytest.mark.stress),
        pytest.param((300, 90), (18, 10**9), marks=pytest.mark.stress),
    ],
)
async def test_a_group_of_one_and_an_unreadable_number(
    tmp_path: Path, size: tuple[int, int], numbers: tuple[int, ...]
) -> None:
    run = make_hostile(tmp_path / "runs")
    for n in numbers:
        async with running(run.parent, SideBySide(run, n), size=size) as app:
            check(app.text)
            await app.press("l", "L", "h", "H", "j", "G", "z", "enter")
            check(app.text)
            await app.press("escape")
            await app.pilot.resize_terminal(100, 30)
            await app.press()
            check(app.text)


async def test_from_the_stepper_and_the_groups(run: Path) -> None:
    async with running(run.parent, Stepper(run, 6), size=(120, 40)) as app:
        await app.press("a")
        assert app.view == "side by side" and "▸6 " in app.text and "1–4 of 4" in app.text
    async with running(run.parent, Trajectories(run), size=(120, 40)) as app:
        await app.press("z", "j", "a")
        assert app.view == "side by side" and "group 1.1" in app.text


def test_in_a_terminal(run: Path) -> None:
    with opened(run, "Stepper(run, 6)") as screen:
        screen.see("step 1/")
        screen.press("a")
        screen.see("▸6 ", "of 4 rollouts", "step 1 ─")
        screen.press("l\r")
        screen.see("ab12 · 7")
        screen.press("q")
        assert screen.wait() == 0
