"""One's own data and reward functions from the command line: shown, tried, and refused in one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from grpo_tui.configs.loading import load_config
from grpo_tui.engine.policy import memory
from grpo_tui.engine.training.previews import rows_of
from grpo_tui.tui.cli import init
from grpo_tui.tui.cli.main import run
from tests.forked import forked_processes

from .conftest import Cli

REWARDS = """
def shorter(completions, answer, **kwargs):
    return [(-len(c[0]["content"]), f"beside {a}") for c, a in zip(completions, answer)]

def wants(completions, solution):
    return [0.0 for _ in completions]

"""
SMALL = ["--set", "training.max_turn_tokens=8", "--set", "model.device=cpu"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"question": f"what is {i} plus {i}?", "answer": str(2 * i)} for i in range(20)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (tmp_path / "rewards.py").write_text(REWARDS)
    return tmp_path


def test_data_show_prints_rows_and_columns(cli: Cli, folder: Path):
    plain = cli("data", "show", "data.jsonl", "--rows", "1")
    assert plain.returncode == 0, plain.stderr
    assert "18 rows to train on, 2 to evaluate on" in plain.stdout
    assert "[user] what is" in plain.stdout and "answer = " in plain.stdout


def test_data_show_prints_an_answer_that_the_prompt_contains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("quiz.csv").write_text("Question,right,level\n" + "Is 27 or 82 larger?,82,1\n" * 4)
    shown = list(rows_of(load_config(None, ["data.source=quiz.csv", "data.answer=right"]), 1, False))
    assert shown[-2:] == ["  right = 82", "  level = 1"], "and not the prompt, whose column may be in upper case"
    settings = ["data.source=quiz.csv", "data.answer=right", "data.prompt_template='{Question} ({level})'"]
    assert list(rows_of(load_config(None, settings), 1, False))[-1] == "  right = 82"


def test_data_show_counts_the_rows_of_either_file(folder: Path, monkeypatch: pytest.MonkeyPatch):
    """Rows of both are numbered from 1."""
    monkeypatch.chdir(folder)
    rows = [{"question": "word " * 200}, {"question": "b"}, {"question": "c"}]
    Path("long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    Path("held.jsonl").write_text('{"question": "a"}\n' * 2 + json.dumps({"question": "word " * 200}) + "\n")
    settings = ["data.source=long.jsonl", "data.eval_source=held.jsonl", "mode=sft"]
    told = list(rows_of(load_config(None, [*settings, "training.max_trajectory_tokens=100"]), 0, True))
    assert "2 rows leave no room" in told[-1 - ("leave less" in told[-1])]
    assert "row 1, 3 of held.jsonl" in " ".join(told)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--reward", "rewards.py:shorter:heavy"], "the weight 'heavy' is not a number"),
        (["--reward", "shorter"], "'shorter' names no function: write file.py:name or package.module.name"),
        (["--reward", "gone.py:shorter"], "there is no file or folder gone.py"),
        (["--reward", "rewards.py:shorter", "--model", ""], "--model: model.base: there is no file or folder ''"),
        (["--reward", "rewards.py:shorter", "--dataset", ""], "--dataset: data.source: there is no file or folder ''"),
        ([], "no reward is configured"),
        (["--reward", "rewards.py:shorter", "--dataset", "gone.jsonl"], "there is no file or folder gone.jsonl"),
        (["--reward", "rewards.py:shorter", "--set", "data.promt=x"], "nearest valid key: data.prompt"),
        (["--reward", "rewards.py:shorter", "--resume", "x"], "leave --dataset out"),
        (
            ["--reward", "rewards.py:shorter", "--reward", "other/rewards.py:shorter"],
            "are both named shorter",
        ),
    ],
)
def test_what_can_be_known_at_once_is_said_before_anything_starts(
    cli: Cli, folder: Path, options: list[str], said: str
):
    dataset = [] if "--dataset" in options else ["--dataset", "data.jsonl"]
    answer = cli("train", *dataset, *options)
    assert answer.returncode == 2
    assert said in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_what_the_users_code_lacks_is_said_by_the_dry_run(cli: Cli, folder: Path):
    answer = cli("train", "--dataset", "data.jsonl", "--reward", "rewards.py:wants", *SMALL, "--dry-run")
    assert answer.returncode == 2
    assert "needs `solution`, but the data has no such column; it has" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_init_writes_a_configuration_and_a_reward_that_train(cli: Cli, folder: Path):
    (folder / "rewards.py").unlink()
    answer = cli("init", "--model", "builtin:tiny", "--dataset", "data.jsonl", "--hardware", "cpu")
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"^accuracy +\d\.\d\d ", answer.stdout, re.M) and "accuracy: said" in answer.stdout
    assert cli("config", "check", "grpo.yaml").returncode == 0
    again = cli("init", "--model", "builtin:tiny", "--dataset", "data.jsonl")
    assert again.returncode == 2 and "--force overwrites it" in again.stderr


def test_init_writes_nothing_that_cannot_be_right_and_takes_a_weight(cli: Cli, folder: Path):
    given = ("init", "--model", "builtin:tiny", "--dataset", "data.jsonl", "--no-check")
    for wrong in (["--reward", "gone.py:f"], ["--reward", "shorter"], ["--model", "./gone"]):
        answer = cli(*given, *wrong)
        assert answer.returncode == 2 and answer.stderr.count("\n") == 1
        assert not (folder / "grpo.yaml").exists()
    assert cli(*given, "--reward", "rewards.py:shorter:0.5").returncode == 0
    assert load_config(folder / "grpo.yaml").environment.reward_funcs == {"rewards.py:shorter": 0.5}


def test_a_function_that_is_there_may_be_named_when_init_asks(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(init, "on_terminal", lambda: True)
    answers = iter(["rewards.py:shorter"])
    monkeypatch.setattr("typer.prompt", lambda question, **_: next(answers))
    given = ["--model", "builtin:tiny", "--dataset", "data.jsonl", "--hardware", "cpu"]
    with forked_processes():
        assert run(["init", "--no-check", *given]) == 0
    assert load_config("grpo.yaml").environment.reward_funcs == {"rewards.py:shorter": 1.0}
    assert (folder / "rewards.py").read_text() == REWARDS
    (folder / "grpo.yaml").unlink()
    answers = iter([""])
    with forked_processes():
        assert run(["init", "--no-check", *given]) == 2


def test_init_without_answers_or_data_says_so(cli: Cli, folder: Path):
    (folder / "plain.jsonl").write_text('{"prompt": "a"}\n' * 4)
    answer = cli("init", "--dataset", "plain.jsonl", "--no-check", "--force")
    assert answer.returncode == 0, answer.stderr
    assert "def quality(completions" in (folder / "rewards.py").read_text()
    assert "cannot ask questions" in cli("init", "--force").stderr
    for option, key in (("--model", "model.base"), ("--dataset", "data.source")):
        empty = cli("init", "--dataset", "plain.jsonl", "--no-check", "--force", option, "")
        assert (empty.returncode, f"{key}: there is no file or folder ''" in empty.stderr) == (2, True)
    gone = cli("init", "--force", "--dataset", "gone.jsonl")
    assert gone.returncode == 2 and "there is no file or folder gone.jsonl" in gone.stderr


def test_doctor_says_the_memory_of_a_model_from_its_config(cli: Cli):
    answer = cli("doctor", "--model", "builtin:tiny")
    assert answer.returncode == 0, answer.stderr
    assert "million in float32" in answer.stdout and "at the peak, about" in answer.stdout


def test_a_model_whose_config_cannot_be_had_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "config.yaml").write_text("model: {base: nobody/nothing}\n")
    assert memory.main([str(tmp_path / "config.yaml")]) == 1
    assert "the config of nobody/nothing cannot be loaded" in capsys.readouterr().err


def test_init_and_online_take_a_name_with_any_character(cli: Cli, folder: Path):
    name = "dä 🙂 'x' \"y\" #.jsonl"
    (folder / "data.jsonl").rename(folder / name)
    made = cli("init", "--dataset", name, "--model", "builtin:tiny", "--no-check", "--force")
    assert made.returncode == 0, made.stderr
    assert load_config(folder / "grpo.yaml").data.source == name
    wrong = cli("online", "--requests", name, "--set", "online.samples=1")
    assert wrong.returncode == 2 and wrong.stderr.count("\n") == 1 and "online.samples" in wrong.stderr
