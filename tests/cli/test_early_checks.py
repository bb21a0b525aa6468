"""`grpo-tui train` finds wrong reward functions, columns and tools before it makes a run."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from grpo_tui.configs.checks import check_relations
from grpo_tui.configs.loading import load_config
from grpo_tui.engine.runs.control.status import look
from grpo_tui.tui.cli import dry_run
from grpo_tui.tui.cli.main import run
from grpo_tui.tui.cli.play import for_play
from grpo_tui.tui.cli.train import _shorten
from tests.forked import forked_processes

FUNCTIONS = """
def good(completions, **kwargs):
    return [0.0 for c in completions]

def by_answer(completions, answer):
    return [0.0 for c in completions]

def by_environment(completions, environments):
    return [0.0 for c in completions]
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--reward", "mine.py:god"], "there is no god; did you mean good?"),
        (["--reward", "mine.py:by_answer"], "needs `answer`, but the data has no such column; it has level"),
        (
            ["--reward", "mine.py:by_environment"],
            "needs `environments`, which TRL gives only with its `environment_factory`",
        ),
        (["--reward", "mine.py:good", "--set", "seed=5000000000"], "seed: 5000000000 is too large for NumPy"),
        (["--reward", "./nowhere"], '"./nowhere" is not a reward model'),
        (["--reward", "mine.py:good", "--set", "environment.tools=[mine.py:look]"], "mine.py has no function look"),
    ],
)
def test_what_does_not_exist_is_found_before_a_run_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], said: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    (tmp_path / "data.jsonl").write_text(json.dumps({"prompt": "2 + 2?", "level": 1}) + "\n")
    with forked_processes():
        code = run(["train", "--dataset", "data.jsonl", "--headless", "--runs-dir", str(tmp_path / "runs"), *options])
    assert code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert said in lines[-1] and "Traceback" not in "".join(lines)
    assert not (tmp_path / "runs").exists()


def test_sigterm_stops_a_dry_run(monkeypatch: pytest.MonkeyPatch):
    """As `timeout 60 grpo-tui train --dry-run` sends it."""
    run, stopped = look(Path("gone")), []
    monkeypatch.setattr(dry_run, "start_run", lambda config, runs_dir: run)
    monkeypatch.setattr(dry_run, "look", lambda path: os.kill(os.getpid(), signal.SIGTERM) or run)
    monkeypatch.setattr(dry_run, "stop_run", stopped.append)
    assert dry_run.dry_run(load_config()) == 143 and stopped == [run]


@pytest.mark.parametrize(
    "settings",
    [
        ["training.advantages=tree", "training.tree.fresh=4"],
        ["training.prompts_per_step=3", "training.num_generations=5", "training.trl.generation_batch_size=30"],
        ["rollouts.engine=vllm", "rollouts.servers=[http://127.0.0.1:8000]", "rollouts.max_staleness=2"],
    ],
)
def test_what_can_be_trained_can_be_tried_and_played(settings: list[str], tmp_path: Path):
    config = load_config(None, settings)
    assert list(check_relations(dry_run.small(config, tmp_path))) == []
    assert list(check_relations(for_play(config))) == []


@pytest.mark.parametrize(("given", "steps", "tasks"), [([], 8, 8), (["sft.max_steps=3", "sft.eval_tasks=0"], 3, 0)])
def test_quick_is_quick_in_both_modes(given: list[str], steps: int, tasks: int):
    config = load_config(None, ["mode=sft", *given])
    _shorten(config)
    assert (config.sft.max_steps, config.sft.eval_tasks) == (steps, tasks)
    assert (config.training.max_steps, config.environment.eval_tasks) == (8, 8)


def test_the_configuration_of_an_evaluation_is_no_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "config.yaml").write_text("mode: eval\n")
    assert run(["train", str(tmp_path / "config.yaml"), "--runs-dir", str(tmp_path / "runs")]) == 2
    assert "has mode: eval; start it with `grpo-tui eval`" in capsys.readouterr().err


def test_a_dry_run_needs_no_pass_rates(tmp_path: Path):
    """It makes one prompt, in a folder without other runs."""
    config = load_config(None, ["data.sampler=difficulty", "data.pass_rates=1120-0949-k3f9"])
    made = dry_run.small(config, tmp_path)
    assert made.data.pass_rates is None and list(check_relations(made)) == []
