"""The commands under "Train" in the README, typed along up to a reward curve of one's own, and beyond."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_tui.engine.launch.find import find_run
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.tui.app.destinations import Stepper
from tests.tui.drive import running

from .world import grpo_tui

ROOT = Path(__file__).parents[2]
SMALL = ("prompts_per_step=2", "num_generations=2", "max_turn_tokens=8", "max_steps=2", "save_every=1", "eval_every=0")
SHORT = [word for setting in SMALL for word in ("--set", f"training.{setting}")]


def typed() -> tuple[list[list[str]], str]:
    """The commands of the section, word by word, and the file of reward functions."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.split("\n## Train\n")[1].split("\n## ")[0]
    shell, python = (re.search(rf"```{kind}\n(.*?)```", section, re.S) for kind in ("sh", "python"))
    assert shell and python
    lines = shell[1].replace("\\\n", " ").strip().splitlines()
    return [shlex.split(line) for line in lines], python[1]


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """The folder in which all of it was typed, and what each command said, by its last words. Only the model is a tiny
    one, and the training short."""
    folder = tmp_path_factory.mktemp("typed")
    commands, functions = typed()
    assert len(commands) <= 5 and len(functions.splitlines()) <= 10
    (folder / "larger.py").write_text(functions)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    said = {}
    for program, *words in commands:
        if program == "pip":
            assert words == ["install", "grpo-tui[train]"] and "train" in extras
            continue
        if program == "python":
            script, _, out = words
            rows = subprocess.run([sys.executable, script], cwd=folder, stdout=subprocess.PIPE, check=True).stdout
            (folder / out).write_bytes(rows)
            continue
        words = [str(model) if word == "HuggingFaceTB/SmolLM2-135M-Instruct" else word for word in words]
        if words[0] == "train":
            words += SHORT
        if words[0] == "train" and "--dry-run" not in words:  # as the section says
            words += ["--reward", "trl.rewards.think_format_reward:0.2"]
        done = grpo_tui(folder, *words)
        assert done.returncode == 0, done.stderr
        said[words[0] if "--dry-run" not in words else "--dry-run"] = done.stdout
        if "--dry-run" in words:
            assert {path.name for path in folder.iterdir()} - {"__pycache__"} == {"larger.py", "larger.jsonl"}
    return folder, said


def test_data_and_reward_are_shown_before_they_are_trained_with(trained: tuple[Path, dict[str, str]]):
    _, said = trained
    counts = re.search(r"(\d+) rows to train on, (\d+) to evaluate on", said["data"])
    assert counts is not None and sum(map(int, counts.groups())) == 150
    assert 10 <= int(counts[2]) <= 20, "a tenth, where equal questions stay together"
    assert "tokens of a prompt" in said["data"]
    for words in (
        "the prompt as the policy reads it",
        "Which number is larger, ",
        "component          raw",
        "Σ step",
        "larger: expected ",
        "advantage",
        "a step of 2 × 2 rollouts takes at most",
    ):
        assert words in said["--dry-run"], words


def test_the_curve_of_each_function_is_there_with_the_reason_of_each_score(trained: tuple[Path, dict[str, str]]):
    folder, said = trained
    assert "finished at step 2" in said["train"]
    with RunReader(Path(find_run(folder / "runs", "latest").path)) as reader:
        for name in ("larger", "think_format_reward"):
            assert len(reader.metrics.points(f"rewards/raw/{name}")) >= 2
        row = next(r for r in reader.rollouts.page(limit=100) if r.split == "train")
        record = reader.bodies.trajectory(row.n)
    assert record.breakdown is not None and record.trajectory.judged_by == "larger"
    components = record.breakdown.steps[-1].components
    assert list(components)[:2] == ["larger", "think_format_reward"]
    assert components["think_format_reward"].weight == 0.2
    assert record.breakdown.total == pytest.approx(sum(v.contribution or 0 for v in components.values()))
    assert record.trajectory.steps[-1].scores[0].why.startswith("expected ")


async def test_such_a_run_is_gone_on_with_searched_and_compared(
    trained: tuple[Path, dict[str, str]], monkeypatch: pytest.MonkeyPatch
):
    from grpo_tui.tui.cli.main import command_line

    folder, _ = trained
    done = grpo_tui(folder, "train", "--resume", "latest", "--set", "training.max_steps=3")
    assert done.returncode == 0 and "finished at step 3" in done.stdout, done.stdout + done.stderr
    monkeypatch.chdir(folder)
    found = CliRunner().invoke(command_line(), ["inspect", "latest", "--search", "larger", "--json"])
    assert found.exit_code == 0, found.output
    steps = {json.loads(line)["step"] for line in found.stdout.splitlines()}
    assert {1, 2, 3} <= steps
    path = Path(find_run(folder / "runs", "latest").path)
    with RunReader(path) as reader:
        trained_on = next(row.n for row in reader.rollouts.page(limit=100) if row.split == "train")
        held_out = next(row.n for row in reader.rollouts.page(limit=100) if row.split == "eval")
    async with running(folder / "runs", Stepper(path, held_out)) as app:
        assert "judged by" in app.text and "expected" in app.text
    async with running(folder / "runs", Stepper(path, trained_on)) as app:
        assert "larger" in app.text and "think_" in app.text
        assert "diff" in await app.press("d")
