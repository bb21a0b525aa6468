"""Each format of `grpo-tui export`, opened by the reader that it is for."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest

from grpo_tui import Message, Recorder, Rollout
from grpo_tui.engine.imports.readers import open_reader
from grpo_tui.engine.imports.rollout import Call, Score
from grpo_tui.engine.runs.types import Step, TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.envs.trajectory import ComponentScore
from grpo_tui.tui.cli.dumps import run_or_dump
from grpo_tui.tui.cli.main import run
from grpo_tui.tui.exporting.chat import turn
from tests.cli.record import record, trajectory

REWARDS = {"a": (0.2, 1.0, 0.95, 1.0), "b": (0.5, 0.5, 0.5, 0.5), "c": (0.0, float("nan"), 0.3, 0.1)}
TOOL = {
    "type": "function",
    "function": {"name": "price", "description": "The price of an item.", "parameters": {"type": "object"}},
}


def rollout(group: str, index: int, reward: float) -> Rollout:
    """Two calls at once, one of which fails, a call whose arguments are no JSON, a thought, and an answer in words."""
    calls = (Call("price", {"item": "apple", "n": 2}, "x1"), Call("price", {"item": "plum"}, "x2"))
    return Rollout(
        id=f"{group}/{index}",
        prompt=(Message("system", "You shop."), Message("user", f"What does {group} cost?")),
        completion=(
            Message("assistant", "I look it up.", thought="Two items.", calls=calls),
            Message("tool", "6", call_id="x1"),
            Message("tool", "no plum here", call_id="x2", error="no plum here"),
            Message("assistant", "", calls=(Call("price", "{item: pear", "x3", problem="no JSON"),)),
            Message("tool", "cannot be read", call_id="x3"),
            Message("assistant", f"It costs {index}. \u202e\x1b[2J"),
        ),
        group=group,
        index=index,
        reward=reward,
        components={"correct": Score(reward, 1.0)},
        expected="6",
        answer=str(index),
        correct=reward == 1.0,
        step=1,
        tools=(TOOL,),
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    with Recorder("shop", runs_dir=tmp_path / "runs", environment="shop", model="tiny") as recorder:
        recorder.rollouts(1, [rollout(g, i, r) for g, rewards in REWARDS.items() for i, r in enumerate(rewards)])
    record(tmp_path / "runs", "own")
    return tmp_path


def export(name: str, form: str, *options: str) -> Path:
    assert run(["export", name, "--format", form, "--out", f"out.{form}", *options]) == 0
    return Path(f"out.{form}")


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def turns(place: Path, home: Path) -> list[list[Step]]:
    """The turns of a dump as our importer reads them."""
    with open_reader(Path(run_or_dump(str(place), home).path)) as reader:
        rows = reader.rollouts.page(limit=100)
        return [list(reader.bodies.trajectory(row.n).trajectory.steps) for row in rows]


@pytest.mark.parametrize("name", ["shop", "own"])
def test_openai_lines_are_messages_of_its_api(home: Path, name: str):
    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
    from pydantic import TypeAdapter

    made = lines(export(name, "openai"))
    assert len(made) == 12
    for line in made:
        TypeAdapter(list[ChatCompletionMessageParam]).validate_python(line["messages"], strict=False)
        TypeAdapter(list[ChatCompletionToolParam]).validate_python(line.get("tools", []))
        assert line["messages"][-1]["role"] == "assistant"
        asked = [call["id"] for m in line["messages"] for call in m.get("tool_calls", ())]
        answered = [m["tool_call_id"] for m in line["messages"] if m["role"] == "tool"]
        assert answered == asked[: len(answered)] and len(set(asked)) == len(asked)
    if name == "shop":
        _, _, first, apple, plum, second, *_ = made[0]["messages"]
        assert (first["content"], first["reasoning_content"]) == ("I look it up.", "Two items.")
        assert json.loads(first["tool_calls"][0]["function"]["arguments"]) == {"item": "apple", "n": 2}
        assert (apple["content"], plum["content"]) == ("6", "no plum here")
        assert second["tool_calls"][0]["function"]["arguments"] == "{item: pear"
    else:  # the words before a call that our own environments parsed
        assert made[0]["messages"][1]["content"] == "think"


@pytest.mark.parametrize(
    ("thought", "content", "reasoning"), [("I add.", "I add.", None), ("<think>Hm.</think>", "", "Hm.")]
)
def test_calls_that_our_environments_parsed_are_not_in_the_text(thought: str, content: str, reasoning: str | None):
    calls = (Call("add", {"a": 1}, result="2"), Call("add", {"a": 2}, result="3"))
    written = f'{thought} {{"name": "add", "arguments": {{"a": 1}}}} {{"name": "add", "arguments": {{"a": 2}}}}'
    step = Step(0, written, thought, "add", {"a": 1}, observation="2\n\n3", calls=calls)
    said, first, second = turn(step)
    assert (said["content"], said.get("reasoning_content")) == (content, reasoning)
    assert [call["function"]["arguments"] for call in said["tool_calls"]] == ['{"a": 1}', '{"a": 2}']
    assert (first["content"], second["content"]) == ("2", "3")


@pytest.mark.parametrize("form", ["openai", "atif", "inspect", "jsonl", "parquet", "sts"])
def test_a_rollout_comes_back_from_its_export(home: Path, form: str):
    """The importer returns texts, thoughts, calls with arguments, and results, turn by turn."""
    export("shop", form)
    (home / "out").mkdir()
    suffix = {"openai": "openai.jsonl", "inspect": "log.eval"}.get(form, form)
    Path(f"out.{form}").rename(home / "out" / suffix)
    found = turns(home / "out", home)
    assert len(found) == 12
    for steps in found:
        first, second, last = steps
        assert (first.text, first.thought) == ("I look it up.", "Two items.")
        assert [(c.name, c.arguments, c.result) for c in first.calls] == [
            ("price", {"item": "apple", "n": 2}, "6"),
            ("price", {"item": "plum"}, "no plum here"),
        ]
        assert second.calls[0].name == "price" and second.calls[0].result == "cannot be read"
        assert last.text.startswith("It costs ") and last.text.endswith(". \u202e\x1b[2J")


@pytest.mark.parametrize("form", ["jsonl", "parquet", "atif", "sts", "inspect"])
def test_rewards_of_evaluations_are_exported(home: Path, form: str):
    """Nothing shapes them: they have no breakdown, and lists show the reward of the environment or of the judges."""
    writer = RunWriter(home / "runs" / "own")
    own, score = replace(trajectory(1).trajectory, env_reward=0.25), ComponentScore("words", 0.75, 0.5)
    judged = replace(own, id="judged", judged_by="words", steps=(replace(own.steps[0], scores=(score,)),))
    writer.trajectories(4, [TrajectoryRecord(t, split="eval") for t in (replace(own, id="env"), judged)])
    writer.close()
    place = run_or_dump(str(export("own", form, "--filter", "split:eval")), home).path
    with open_reader(Path(place)) as found:
        if form == "inspect":
            assert sorted(row.extra["component.reward"] for row in found.rollouts.page()) == [0.25, 0.375]
        else:
            assert {row.id: row.reward for row in found.rollouts.page()} == {"env": 0.25, "judged": 0.375}


@pytest.mark.parametrize("form", ["jsonl", "parquet", "atif", "sts"])
@pytest.mark.parametrize("name", ["shop", "own"])
def test_numbers_come_back_from_an_export(home: Path, name: str, form: str):
    place = run_or_dump(str(export(name, form)), home).path
    names = ["step", "turns", "reward", "advantage", "actions"]
    names += ["correct", "answer", "rollout", "split", "stop_reason"] * (form in ("jsonl", "parquet"))
    names += ["tokens"] * (form == "jsonl")
    with open_reader(home / "runs" / name) as own, open_reader(Path(place)) as found:
        again = {row.id: row for row in found.rollouts.page(limit=100)}
        for row in own.rollouts.page(limit=100):
            for value in names:
                now, before = getattr(again[row.id], value), getattr(row, value)
                assert now == before or now == pytest.approx(before, nan_ok=True), (row.id, value)
            if form != "sts":
                parts = [r.bodies.trajectory(row.id).breakdown for r in (found, own)]
                now, before = (None if p is None else p.contributions for p in parts)
                assert now == pytest.approx(before, nan_ok=True)
                assert again[row.id].penalties == row.penalties
                now, before = (() if p is None else p.penalties for p in parts)
                assert now == before


def test_sharegpt_becomes_the_conversation_that_trl_trains_on(home: Path):
    from trl.data_utils import is_conversational_from_value, maybe_convert_to_chatml

    for line in lines(export("shop", "sharegpt")):
        assert is_conversational_from_value(line)
        roles = [m["role"] for m in maybe_convert_to_chatml(line)["messages"]]
        assert roles == ["system", "human", "gpt", "tool", "tool", "gpt", "tool", "gpt"]
        texts = [m["content"] for m in line["messages"]]
        assert texts[2].startswith("<think>\nTwo items.\n</think>\nI look it up.\n<tool_call>\n")
        assert json.loads(texts[2].split("<tool_call>\n")[2].split("\n</tool_call>")[0])["arguments"] == {
            "item": "plum"
        }
        assert texts[3] == "<tool_response>\n6\n</tool_response>"


def test_the_best_of_each_group_that_match(home: Path):
    best = lines(export("shop", "jsonl", "--best-of-group", "--filter", "reward>0.2"))
    assert [(row["trajectory"]["id"], row["breakdown"]["total"]) for row in best] == [
        ("a/1", 1.0),
        ("b/0", 0.5),
        ("c/2", 0.3),
    ]


def test_preference_pairs_train_a_policy_with_trl(home: Path):
    """DPOTrainer reads the file and takes a step. The chosen side is the one with the higher reward."""
    from datasets import load_dataset
    from trl.trainer.dpo_config import DPOConfig
    from trl.trainer.dpo_trainer import DPOTrainer

    from tests.engine.training.parts import policy, tokenizer

    made = lines(export("shop", "dpo"))
    assert [(line["score_chosen"], line["score_rejected"]) for line in made] == [(1.0, 0.2), (0.3, 0.0)]
    assert made[0]["chosen"][-1]["content"].startswith("It costs 1.")
    assert made[0]["rejected"][-1]["content"].startswith("It costs 0.")
    dataset = load_dataset("json", data_files="out.dpo", split="train", cache_dir=str(home / "datasets"))
    reader = tokenizer()
    reader.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    cpu = {"use_cpu": True, "bf16": False, "report_to": "none"}
    settings = DPOConfig(output_dir=str(home / "dpo"), max_steps=1, per_device_train_batch_size=2, **cpu)
    policy(seed=1).save_pretrained(home / "policy")
    trainer = DPOTrainer(str(home / "policy"), args=settings, train_dataset=dataset, processing_class=reader)
    assert trainer.train().training_loss > 0


def test_atif_is_valid_for_its_models(home: Path):
    atif = pytest.importorskip("atif", reason="needs the package atif")
    files = sorted(export("shop", "atif").iterdir())
    assert len(files) == 12
    for file in files:
        made = atif.Trajectory.model_validate_json(file.read_text())
        assert [step.source for step in made.steps] == ["system", "user", "agent", "agent", "agent"]
        assert made.steps[2].reasoning_content == "Two items."
        assert [r.content for r in made.steps[2].observation.results] == ["6", "no plum here"]
    assert json.loads(files[1].read_text())["extra"]["breakdown"]["total"] == 1.0
    assert sum(1 for f in export("own", "atif", "--out", "own.atif").parent.glob("own.atif/*.json")) == 12


def test_an_inspect_log_opens_in_inspect(home: Path):
    log = pytest.importorskip("inspect_ai.log", reason="needs the package inspect-ai")
    for name, groups in (("shop", 3), ("own", 3)):
        path = home / f"{name}.eval"
        assert run(["export", name, "--format", "inspect"]) == 0
        header = log.read_eval_log(str(path), header_only=True)
        assert header.eval.dataset.samples == groups and header.eval.config.epochs == 4
        whole = log.read_eval_log(str(path))
        assert len(whole.samples) == 12 == len(log.read_eval_log_sample_summaries(str(path)))
    sample = log.read_eval_log_sample(str(home / "shop.eval"), id="a", epoch=2)
    assert sample.scores["reward"].value == 1.0 and sample.scores["correct"].value == "C"
    assert sample.messages[2].tool_calls[0].arguments == {"item": "apple", "n": 2}
    assert sample.messages[4].content == "no plum here"


def test_sessions_have_the_lines_of_the_trace_viewer(home: Path):
    """https://huggingface.co/docs/hub/session-traces-format: a header, then messages; arguments are JSON text."""
    files = sorted(export("shop", "sts").iterdir())
    assert [f.suffix for f in files] == [".jsonl"] * 12
    for file in files:
        header, *rest = lines(file)
        assert header["type"] == "session" and header["harness"] and header["id"]
        assert {line["type"] for line in rest} == {"message"}
        messages = [line["message"] for line in rest]
        assert {m["role"] for m in messages} == {"system", "user", "assistant", "tool"}
        assert all(isinstance(m["content"], str) for m in messages)
        calls = {call["id"] for m in messages for call in m.get("toolCalls", ())}
        assert all(isinstance(c["function"]["arguments"], str) for m in messages for c in m.get("toolCalls", ()))
        assert {m["toolCallId"] for m in messages if m["role"] == "tool"} <= calls


def test_a_pipe_gets_the_lines_of_the_file(home: Path, capfdbinary: pytest.CaptureFixture[bytes]):
    written = export("shop", "openai").read_bytes()
    capfdbinary.readouterr()
    assert run(["export", "shop", "--format", "openai", "--out", "-"]) == 0
    assert capfdbinary.readouterr().out == written
    assert run(["export", "shop", "--format", "sts", "--out", "-"]) == 2
    (home / "link").symlink_to("/dev/null")
    assert run(["export", "shop", "--out", "link"]) == 2, "a device is not replaced"
    assert (home / "link").is_symlink()


def test_a_folder_that_is_there_is_not_replaced(home: Path, capsys: pytest.CaptureFixture[str]):
    assert run(["export", "shop", "--format", "sts"]) == 0
    kept = sorted(Path("shop.sts").iterdir())
    assert run(["export", "own", "--format", "sts", "--out", "shop.sts"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert sorted(Path("shop.sts").iterdir()) == kept
    assert list(home.glob(".*part")) == []


def test_any_text_is_exported_as_other_programs_read_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Half of a UTF-16 pair, a group that is a long text, and a reward function called `reward`."""
    monkeypatch.chdir(tmp_path)
    odd = Rollout((Message("user", "p\ud83d"),), (Message("assistant", "c\ude00"),), group="g\0\ud800" * 40_000)
    named = Rollout(
        (Message("user", "q"),), (Message("assistant", "a"),), reward=0.5, components={"reward": Score(0.5)}
    )
    with Recorder("odd", runs_dir=tmp_path / "runs") as recorder:
        recorder.rollouts(1, [odd, named])
    for line in export("odd", "jsonl").read_bytes().splitlines():
        orjson.loads(line)
    assert pq.read_table(export("odd", "parquet")).column("prompt").to_pylist() == ["p\ufffd", "q"]
    with zipfile.ZipFile(export("odd", "inspect")) as archive:
        samples = [json.loads(archive.read(name)) for name in archive.namelist() if name.startswith("samples/")]
    assert [len(sample["id"]) < 200 for sample in samples] == [True, True]
    assert samples[1]["scores"]["reward"]["value"] == 0.5
