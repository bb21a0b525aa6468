"""The comparison of two evaluations in the app: the numbers of `grpo-tui eval`, and the tasks that flipped."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from grpo_tui.engine.evaluation.results import compare, evaluations_of, read_evaluation
from grpo_tui.engine.launch.find import find_run
from grpo_tui.tui.evaluation_text import difference, summary

from .demo_run import make_run
from .drive import running
from .evaluation_run import make_evaluation


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    """Two training runs, and an evaluation of each; task 3 is lost and task 5 is gained."""
    folder = tmp_path / "runs"
    make_run(folder, "one", steps=3)
    make_run(folder, "two", steps=3, seed=1)
    source = random.Random(4)
    first = [[source.random() < 0.5 for _ in range(2)] for _ in range(12)]
    second = [list(samples) for samples in first]
    first[3], second[3] = [True, True], [True, False]
    first[5], second[5] = [False, False], [True, True]
    make_evaluation(folder, "eval-one", "one@3", first, created=2.0)
    make_evaluation(folder, "eval-two", "two", second, created=3.0)
    return folder


@pytest.mark.parametrize("size", [(80, 24), (150, 45)])
@pytest.mark.parametrize("keys", ["training", "evaluations"])
async def test_flipped_tasks_open_side_by_side_in_five_keys(evaluated: Path, size: tuple[int, int], keys: str) -> None:
    async with running(evaluated, size=size) as app:
        rows = [row.info.id for row in app.screen.rows]
        assert rows == ["two", "one", "eval-two", "eval-one"]
        if keys == "evaluations":
            await app.press("j", "j")
        text = await app.press("space", "space", "c")
        c = compare(*(read_evaluation(evaluated / f"eval-{name}") for name in ("two", "one")))
        for line in difference(c):
            assert line.strip() in " ".join(text.split("│")), (line, text)
        assert summary([c.first, c.second])["success"][0] in text
        assert "training.learning_rate" in text or keys == "evaluations"
        assert "gained" in text and "2/2 → 1/2" not in text and "1/2 → 2/2" in text
        await app.press("enter")
        assert app.view == "diff" and "eval-two │ eval-one" in app.text
        assert app.screen.n == c.shown(3)[0][1] and app.screen.candidates.current.n == c.shown(3)[1][1]
        assert app.screen.left.trajectory.correct is False and "right" in app.text
        await app.press("right_square_bracket", "p", "escape", "j", "enter")
        assert "other 1 of 2" in app.text and app.screen.left.trajectory.extra["task_number"] == 5


async def test_runs_without_evaluations_in_common_show_the_command(evaluated: Path) -> None:
    make_evaluation(evaluated, "eval-two-new", "two@3", [[True]], created=9.0, seed=7)
    infos = [find_run(evaluated, name) for name in ("one", "two")]
    assert [path.name for path in evaluations_of(infos)] == ["eval-one", "eval-two"]
    make_run(evaluated, "three", steps=2, seed=3)
    async with running(evaluated, size=(150, 45)) as app:
        text = await app.press("j", "space", "k", "k", "space", "c")
        assert "grpo-tui eval" in text and app.screen.flips == []
        await app.press("enter", "m")
        assert app.view == "compare"
