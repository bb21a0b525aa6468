"""The comparison of two evaluations in the app: the numbers of `grpo-tui eval`, and the tasks that flipped."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_tui.engine.evaluation.results import compare, evaluations_of, read_evaluation
from grpo_tui.engine.evaluation.statistics import mean_interval
from grpo_tui.engine.launch.find import find_run
from grpo_tui.tui.cli.main import command_line
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
        assert app.screen.n == c.shown(3)[0][1] and app.screen.rows[app.screen.at].n == c.shown(3)[1][1]
        assert app.screen.left.trajectory.correct is False and "right" in app.text
        await app.press("right_square_bracket", "p", "escape", "j", "enter")
        assert (
            app.view == "diff" and "other 1 of 2" in app.text and app.screen.left.trajectory.extra["task_number"] == 5
        )
        text = await app.press("escape", "m")
        assert app.view == "compare" and "points (" not in text and app.screen.metric in text
        await app.press("m")
        assert "points (" in await app.press("enter") and app.view == "compare"


def test_one_task_has_no_interval_over_tasks(tmp_path: Path) -> None:
    for name, right in (("one", True), ("two", False)):
        make_evaluation(tmp_path, name, name, [[right]], created=2.0)
    c = compare(*(read_evaluation(tmp_path / name) for name in ("one", "two")))
    said = [*difference(c), *(text for texts in summary([c.first, c.second]).values() for text in texts)]
    assert "  success −100.0 points, p = 1.000" in said and not any("nan" in text for text in said)


@pytest.mark.parametrize("size", [(80, 24), (150, 45)])
async def test_the_list_shows_intervals_of_evaluations_and_over_seeds(evaluated: Path, size: tuple[int, int]) -> None:
    for seed, name in enumerate(("one", "two")):
        file = evaluated / name / "run.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {"facts": {"configuration": "c", "seed": seed}}))
    success = read_evaluation(evaluated / "eval-two").success
    assert success is not None
    shown = f"{100 * success.estimate:.0f} % ({100 * success.low:.0f} to {100 * success.high:.0f})"
    async with running(evaluated, size=size) as app:
        assert shown in app.text
        headlines = [app.screen.all[str(evaluated / name)].headline for name in ("two", "one")]
        i = mean_interval([h.success for h in headlines])
        over = f"success {100 * i.estimate:.0f} % ({100 * i.low:.0f} to {100 * i.high:.0f})".replace("-", "−")
        if size[0] == 150:
            assert "2 seeds: " + over in app.text
        assert "● 2 marked: " + over in await app.press("space", "space")
    rows = CliRunner().invoke(command_line(), ["runs", "--runs-dir", str(evaluated)]).stdout.splitlines()
    assert f"{success.estimate:.2f} ({success.low:.2f} to {success.high:.2f})" in next(
        r for r in rows if "eval-two" in r
    )
    assert rows[-1].startswith("2 seeds: " + over) and rows[-1].endswith("· one, two")


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
