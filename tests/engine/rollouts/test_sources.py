"""Datasets in every form that people have them, and what is said of rows that make no task."""

from __future__ import annotations

import csv
import json
from datetime import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict

from grpo_tui.configs.sections import DataConfig
from grpo_tui.engine.rollouts.runner import DataError
from grpo_tui.engine.rollouts.sources import load_tasks

ROWS = [{"question": f"what is {i} plus {i}?", "answer": str(2 * i)} for i in range(40)]


def write(folder: Path, form: str) -> str:
    path = folder / f"data.{form}"
    if form == "jsonl":
        path.write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    elif form == "json":
        path.write_text(json.dumps(ROWS))
    elif form == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, ["question", "answer"])
            writer.writeheader()
            writer.writerows(ROWS)
    elif form == "parquet":
        Dataset.from_list(ROWS).to_parquet(str(path))
    elif form == "saved":
        Dataset.from_list(ROWS).save_to_disk(str(path))
    else:
        DatasetDict({"train": Dataset.from_list(ROWS), "test": Dataset.from_list(ROWS[:3])}).save_to_disk(str(path))
    return str(path)


@pytest.mark.parametrize("form", ["jsonl", "json", "csv", "parquet", "saved", "splits"])
def test_every_form_gives_the_same_tasks(tmp_path: Path, form: str):
    tasks = load_tasks(DataConfig(source=write(tmp_path, form)), "train", 0)
    assert [t["messages"] for t in tasks] == [[{"role": "user", "content": r["question"]}] for r in ROWS]
    assert [t["row"] for t in tasks] == list(range(1, 41))
    assert str(tasks[7]["columns"]["answer"]) == "14"
    assert json.loads(json.dumps(tasks)) == tasks


def test_splits_are_named_and_without_one_a_tenth_is_held_out(tmp_path: Path):
    config = DataConfig(source=write(tmp_path, "splits"), eval_split="test")
    assert len(load_tasks(config, "eval", 100)) == 3
    assert len(load_tasks(config, "eval", 2)) == 2
    assert len(load_tasks(config, "train", 100)) == 40
    config = DataConfig(source=write(tmp_path, "jsonl"))
    train, held_out = load_tasks(config, "train", 100), load_tasks(config, "eval", 100)
    assert (len(train), len(held_out)) == (36, 4)
    assert not {t["row"] for t in train} & {t["row"] for t in held_out}
    assert held_out == load_tasks(config, "eval", 100)


def test_a_file_may_evaluate_a_configuration_of_a_hub_dataset(tmp_path: Path):
    config = DataConfig(source="x/y", name="main", revision="abc", eval_source=write(tmp_path, "jsonl"))
    assert len(load_tasks(config, "eval", 4)) == 4


def test_a_prompt_that_comes_twice_is_on_one_side_only(tmp_path: Path):
    path = tmp_path / "twice.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i % 20}"}) + "\n" for i in range(60)))
    config = DataConfig(source=str(path))
    sides = [{t["messages"][0]["content"] for t in load_tasks(config, split, 4)} for split in ("train", "eval")]
    assert len(sides[1]) == 4 and not sides[0] & sides[1]


def test_template_and_system_prompt_make_the_messages_and_other_braces_stay(tmp_path: Path):
    config = DataConfig(
        source=write(tmp_path, "jsonl"), system_prompt="Be brief.", prompt_template=r"{question} In \boxed{} or {{x}}."
    )
    task = load_tasks(config, "train", 0)[1]
    assert task["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": r"what is 1 plus 1? In \boxed{} or {x}."},
    ]


def test_content_in_parts_of_text_is_one_text(tmp_path: Path):
    path = tmp_path / "parts.jsonl"
    parts = [{"type": "text", "text": "what is "}, {"type": "text", "text": "2?"}]
    path.write_text(json.dumps({"prompt": [{"role": "user", "content": parts}]}) + "\n")
    task = load_tasks(DataConfig(source=str(path)), "train", 0)[0]
    assert task["messages"] == [{"role": "user", "content": "what is 2?"}]


def test_the_form_of_the_prompt_decides_what_functions_get(tmp_path: Path):
    def plain(row: dict[str, Any], **config: Any) -> bool:
        path = tmp_path / "one.jsonl"
        path.write_text(json.dumps(row) + "\n")
        return load_tasks(DataConfig(source=str(path), **config), "train", 0)[0]["plain"]

    assert plain({"prompt": "hello"})  # TRL's standard format
    assert not plain({"prompt": [{"role": "user", "content": "hello"}]})  # TRL's conversations
    assert not plain({"prompt": "hello"}, system_prompt="x")
    assert not plain({"question": "hello"})
    assert plain({"question": "hello"}, completions="text")
    assert not plain({"prompt": "hello"}, completions="messages")


LINES = {
    "mixed types": (
        '{"prompt": "a", "n": 1}\n{"prompt": "b", "n": "x"}\n',
        {},
        "row 2: n is text, but a number in row 1",
    ),
    "not JSON": ('{"prompt": "a"}\n{"prompt": \n', {}, "row 2: not JSON"),
    "no object": ('{"prompt": "a"}\n[1]\n', {}, "row 2: a row must be a JSON object"),
    "no prompt": ('{"text": "a"}\n', {}, "columns text, and no column of prompts: name it in data.prompt"),
    "wrong prompt": ('{"text": "a"}\n', {"prompt": "q"}, "columns text, and no column q"),
    "wrong answer": ('{"prompt": "a"}\n', {"answer": "z"}, "no column z for right answers"),
    "empty prompt": ('{"prompt": "a"}\n{"prompt": " "}\n', {}, "row 2: prompt is empty"),
    "missing prompt": ('{"prompt": "a"}\n{"prompt": null}\n', {}, "row 2: prompt must be text or a list of messages"),
    "number": ('{"prompt": 3}\n', {}, "row 1: prompt must be text or a list of messages, not a int"),
    "wrong role": (
        '{"prompt": [{"role": "human", "content": "a"}]}\n',
        {},
        "row 1: message 1 of prompt must be {role: system or user or assistant, content: text}",
    ),
    "nothing to answer": (
        '{"prompt": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n',
        {},
        "nothing is left to answer",
    ),
    "two system prompts": (
        '{"prompt": [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]}\n',
        {"system_prompt": "c"},
        "already has a system message",
    ),
    "template": ('{"q": "a"}\n', {"prompt_template": "{question}"}, "names {question}, but .* has the columns q"),
    "constant template": ('{"q": "a"}\n', {"prompt_template": "hello"}, "names no column"),
    "split": ('{"prompt": "a"}\n', {"eval_source": "gone.jsonl"}, "there is no file gone.jsonl"),
    "no rows": ("", {}, "has no rows"),
    "blank lines": ("\n\n", {}, "has no rows"),
    "a key twice": (
        '{"prompt": "a"}\n{"prompt": "a", "prompt": "b"}\n',
        {},
        "row 2: .*the key prompt occurs twice",
    ),
    "no messages": ('{"prompt": []}\n', {}, "row 1: prompt is empty"),
    "a split of a file": ('{"prompt": "a"}\n', {"eval_split": "test"}, "has no splits, but test is requested"),
    "another split of a file": ('{"prompt": "a"}\n', {"split": "test"}, "has no splits, but test is requested"),
    "a name of a file": ('{"prompt": "a"}\n', {"name": "main"}, "data.name is only for hub datasets"),
    "empty answer": ('{"prompt": "a", "y": "1"}\n{"prompt": "b", "y": ""}\n', {"answer": "y"}, "row 2: y is empty"),
    "no number": ('{"prompt": "a", "y": 1.0}\n{"prompt": "b", "y": NaN}\n', {"answer": "y"}, "row 2: y is empty"),
}


@pytest.mark.parametrize("case", LINES)
def test_a_row_that_makes_no_task_is_named_in_one_sentence(tmp_path: Path, case: str):
    lines, settings, said = LINES[case]
    path = tmp_path / "data.jsonl"
    path.write_text(lines)
    with pytest.raises(DataError, match=said) as raised:
        for split in ("train", "eval"):
            load_tasks(DataConfig(source=str(path), **settings), split, 4)
    assert "\n" not in str(raised.value)


def test_sources_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "notes.txt").write_text("hello")
    for source, said in (
        (" ", "data.source is empty"),
        (str(tmp_path / "gone.jsonl"), "there is no file"),
        (str(tmp_path), "is not a saved dataset"),
        (str(tmp_path / "notes.txt"), "ends in .txt; files that can be read: .jsonl, .json, .csv, .parquet"),
        ("nobody/nothing-of-this-name", "is not available from the hub"),
    ):
        with pytest.raises(DataError, match=said):
            load_tasks(DataConfig(source=source), "train", 0)
    (tmp_path / "wide.csv").write_text("prompt,answer\na,b\nc,d,e\n")
    with pytest.raises(DataError, match="row 2: 3 cells, but the header has 2"):
        load_tasks(DataConfig(source=str(tmp_path / "wide.csv")), "train", 0)
    for name, text, said in (
        ("short.csv", "prompt,answer\na,b\nc\n", "row 2: 1 cells, but the header has 2"),
        ("semi.csv", "prompt;answer\na;b\n", "its cells are separated by semicolons, not by commas"),
        ("numbers.json", "[1, 2]", "row 1: a row must be a JSON object"),
        ("inside.json", '{"data": [{"prompt": "a"}]}', "if its rows are in data, write only that list"),
    ):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=said):
            load_tasks(DataConfig(source=str(tmp_path / name)), "train", 0)
    (tmp_path / "latin.jsonl").write_bytes('{"prompt": "é"}\n'.encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8 text"):
        load_tasks(DataConfig(source=str(tmp_path / "latin.jsonl")), "train", 0)


@pytest.mark.parametrize(("prompts", "train", "held_out"), [(1, 60, 0), (3, 40, 20)])
def test_prompts_that_come_often_are_not_all_held_out(tmp_path: Path, prompts: int, train: int, held_out: int):
    path = tmp_path / "often.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{i % prompts}"}) + "\n" for i in range(60)))
    config = DataConfig(source=str(path))
    assert (len(load_tasks(config, "train", 64)), len(load_tasks(config, "eval", 64))) == (train, held_out)


def test_values_of_json_stay_as_they_are(tmp_path: Path):
    rows = [{"prompt": "2020-01-01", "answer": "2020-01-02", "n": 12345678901234567890}, {"prompt": "b", "answer": "c"}]
    for name, text in (
        ("lines.jsonl", "\ufeff" + "".join(json.dumps(row) + "\r\n" for row in rows)),
        ("list.jsonl", json.dumps(rows, indent=1)),
        ("lines.json", "".join(json.dumps(row) + "\n\n" for row in rows)),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8", newline="")
        tasks = load_tasks(DataConfig(source=str(tmp_path / name), answer="answer"), "train", 0)
        assert [t["messages"][0]["content"] for t in tasks] == ["2020-01-01", "b"]
        assert [t["answer"] for t in tasks] == ["2020-01-02", "c"]
        assert [t["columns"]["n"] for t in tasks] == [12345678901234567890, None]


def test_a_whole_number_beside_others_is_an_answer_without_a_point(tmp_path: Path):
    path = tmp_path / "numbers.csv"
    path.write_text("n,answer\n1,42\n2.5,3.5\n")
    config = DataConfig(source=str(path), prompt_template="What is {n}?", answer="answer")
    tasks = load_tasks(config, "train", 0)
    assert [t["messages"][0]["content"] for t in tasks] == ["What is 1?", "What is 2.5?"]
    assert [t["answer"] for t in tasks] == ["42", "3.5"]


def test_text_in_csv_stays_as_it_is_written(tmp_path: Path):
    path = tmp_path / "data[1].csv"
    path.write_text(
        "\ufeffquestion,answer,code,n,sure,,\n"
        "NA,None,007,1,True,a,\n"
        '"null, then",nan,12,+2.5e1,false,,\n'
        f"x,N/A,12345678901234567890,{10**30},TRUE,b,\n",
        encoding="utf-8",
    )
    tasks = load_tasks(DataConfig(source=str(path), answer="answer"), "train", 0)
    assert [(t["messages"][0]["content"], t["answer"]) for t in tasks] == [
        ("NA", "None"),
        ("null, then", "nan"),
        ("x", "N/A"),
    ]
    rows = [list(t["columns"].values())[2:] for t in tasks]
    assert rows == [
        ["007", 1, True, "a", None],
        ["12", 25.0, False, None, None],
        ["12345678901234567890", 10**30, True, "b", None],
    ]
    path.write_text("question,note,note\na,1,2\n" + "b,,\n" * 12_000 + "c,x,3\n")
    tasks = load_tasks(DataConfig(source=str(path)), "train", 0)
    assert tasks[0]["columns"] == {"question": "a", "note": "1", "note.1": 2}
    assert tasks[-1]["columns"] == {"question": "c", "note": "x", "note.1": 3}
    path.write_text("question,code\na,1e999\nb,1e9\n")
    assert [t["columns"]["code"] for t in load_tasks(DataConfig(source=str(path)), "train", 0)] == ["1e999", "1e9"]


def test_a_file_without_rows_is_told(tmp_path: Path):
    (tmp_path / "head.csv").write_text("question,answer\n")
    Dataset.from_list(ROWS[:1]).select([]).to_parquet(str(tmp_path / "head.parquet"))
    for name in ("head.csv", "head.parquet"):
        with pytest.raises(DataError, match=f"{name} has no rows"):
            load_tasks(DataConfig(source=str(tmp_path / name)), "train", 0)


def test_a_parquet_file_with_decimals_times_and_mappings_is_read(tmp_path: Path):
    path = tmp_path / "v[2].parquet"
    columns = {
        "question": ["a", "b"],
        "answer": pa.array([Decimal("1.50"), Decimal("2.00")]),
        "at": pa.array([time(1, 2), None]),
        "sizes": pa.array([[("x", 1)], []], type=pa.map_(pa.string(), pa.int64())),
    }
    pq.write_table(pa.table(columns), path)
    tasks = load_tasks(DataConfig(source=str(path), answer="answer"), "train", 0)
    assert [t["columns"]["answer"] for t in tasks] == [1.5, 2]
    assert tasks[0]["columns"]["at"] == "01:02:00" and tasks[1]["answer"] == "2"
    assert tasks[0]["columns"]["sizes"] == [["x", 1]]
    assert json.loads(json.dumps(tasks)) == tasks


def test_a_long_cell_of_csv_is_read(tmp_path: Path):
    (tmp_path / "long.csv").write_text(f"prompt\n{'a' * 200_000}\n")
    assert len(load_tasks(DataConfig(source=str(tmp_path / "long.csv")), "train", 0)) == 1


def test_a_saved_folder_with_splits_may_hold_tasks(tmp_path: Path):
    DatasetDict({"train": Dataset.from_list([{"task_data": {"a": 1}}])}).save_to_disk(str(tmp_path / "tasks"))
    (task,) = load_tasks(DataConfig(source=str(tmp_path / "tasks")), "train", 0)
    assert task == {"task_data": {"a": 1}, "row": 1}


def test_a_saved_folder_without_rows_or_splits_is_told(tmp_path: Path):
    for name, saved, told in (
        ("empty", Dataset.from_dict({"prompt": []}), "has no rows"),
        ("split", DatasetDict({"train": Dataset.from_dict({"prompt": []})}), "has no rows"),
        ("none", DatasetDict(), "has no split train; it has none"),
    ):
        saved.save_to_disk(str(tmp_path / name))
        with pytest.raises(DataError, match=told):
            load_tasks(DataConfig(source=str(tmp_path / name)), "train", 0)


def test_half_of_a_surrogate_pair_is_refused(tmp_path: Path):
    (tmp_path / "half.jsonl").write_text('{"prompt": "a"}\n{"prompt": "\\ud83d"}\n')
    with pytest.raises(DataError, match=r"row 2: .*surrogates"):
        load_tasks(DataConfig(source=str(tmp_path / "half.jsonl")), "train", 0)
