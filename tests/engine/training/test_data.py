"""Rows are read from files and refused, with their number and the reason, before anything is trained."""

from __future__ import annotations

import json

import pytest
from datasets import Dataset

from grpo_tui.configs.sections import DataConfig, EnvironmentConfig
from grpo_tui.engine.rollouts.dataset import check_rows, load_rows
from grpo_tui.engine.rollouts.runner import DataError

CALCULATOR = "grpo_tui.envs.calculator.CalculatorEnv"
TASK = {"start": 3, "operations": [["add", 4]], "answer": "7"}


def row(**changes):
    return {"env_class_path": CALCULATOR, "env_config": {}, "task_data": TASK, **changes}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (row(env_class_path="grpo_tui.envs.calculator.Calculator"), ["row 2", "did you mean", "CalculatorEnv"]),
        (row(env_class_path=None), ["row 2", "env_class_path must be text"]),
        (row(env_config={"operations": 0}), ["row 2", "operations must be at least 1"]),
        (row(env_config={"colour": "red"}), ["row 2", "colour"]),
        (row(env_config=[1]), ["row 2", "env_config must be a mapping"]),
        (row(task_data="{not json"), ["row 2", "task_data is text but not JSON"]),
        (row(task_data={"begin": 3}), ["row 2", "cannot start this task_data", "KeyError", "begin"]),
    ],
)
def test_a_bad_row_is_refused_with_its_number_and_the_reason(bad, words):
    with pytest.raises(DataError) as caught:
        check_rows([row(), bad, row()], source="tasks.jsonl")
    for word in ["tasks.jsonl", *words]:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_jsonl_file_takes_environment_and_configuration_from_the_section(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"task_data": TASK}) + "\n\n" + json.dumps(row(env_config={"operations": 3})) + "\n")
    config = EnvironmentConfig(class_path=CALCULATOR, config={"operations": 2})
    rows = load_rows(config, "train", 0, data=DataConfig(source=str(path)))
    assert [dict(r.env_config) for r in rows] == [{"operations": 2}, {"operations": 3}]
    assert load_rows(config, "eval", 0, data=DataConfig(source=str(path))) == []


def test_a_line_that_is_not_json_is_refused_with_its_number(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(row()) + "\n{oops\n")
    with pytest.raises(DataError, match="row 2: not JSON"):
        load_rows(EnvironmentConfig(), "train", 0, data=DataConfig(source=str(path)))


def test_a_saved_dataset_of_mixed_environments_keeps_its_rows(tmp_path):
    tasks = [json.dumps(TASK), json.dumps({**TASK, "start": 5})]  # a table cannot hold lists of mixed types
    table = [row(task_data=tasks[0]), row(task_data=tasks[1], env_config={"operations": 1})]
    Dataset.from_list(table).save_to_disk(tmp_path / "rows")
    rows = load_rows(EnvironmentConfig(), "train", 0, data=DataConfig(source=str(tmp_path / "rows")))
    assert [r.task_data["start"] for r in rows] == [3, 5]
    assert [dict(r.env_config) for r in rows] == [{}, {"operations": 1}]  # the table had filled in None


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"there is no file .*nothing\.jsonl"):
        load_rows(EnvironmentConfig(), "train", 0, data=DataConfig(source=str(tmp_path / "nothing.jsonl")))


def test_a_tenth_of_the_tasks_is_held_out(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(row(task_data={**TASK, "start": n})) + "\n" for n in range(40)))
    sides = [load_rows(EnvironmentConfig(), s, 0, data=DataConfig(source=str(path))) for s in ("train", "eval")]
    train, held_out = ({r.task_data["start"] for r in side} for side in sides)
    assert (len(train), len(held_out)) == (36, 4) and train | held_out == set(range(40))


def test_environments_make_their_own_tasks_apart_for_training_and_evaluation():
    config = EnvironmentConfig(class_path=CALCULATOR, train_tasks=40, eval_tasks=20)
    train, held_out = ([json.dumps(r.task_data) for r in load_rows(config, s, 0)] for s in ("train", "eval"))
    assert (len(train), len(held_out)) == (40, 20)
    assert not set(train) & set(held_out)
