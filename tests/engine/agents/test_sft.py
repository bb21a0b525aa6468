"""Supervised fine-tuning: what is learned from, that it is learned, and that it goes on after an interruption."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file

from grpo_tui.configs.schema import RunConfig
from grpo_tui.engine.policy.models import load_policy
from grpo_tui.engine.runs.control.requests import ControlChannel, outcome, request
from grpo_tui.engine.runs.paths import adapters_dir
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.engine.training import TrainingError
from grpo_tui.engine.training.checkpoints import Start, find_start
from grpo_tui.engine.training.demonstrations import always, play_demonstrations, read_conversations
from grpo_tui.engine.training.sft import run_sft
from grpo_tui.envs.calculator import CalculatorEnv

from .models import model, tokenizer


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    model("qwen3", layers=1).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def config(base: Path, run_dir: Path, **sft: Any) -> RunConfig:
    return RunConfig.model_validate(
        {
            "mode": "sft",
            "model": {"base": str(base), "device": "cpu", "lora": {"r": 4}},
            "environment": {"class_path": "grpo_tui.envs.calculator.CalculatorEnv"},
            "training": {"max_turn_tokens": 8, "max_trajectory_tokens": 128},
            "sft": {
                "demonstrations": 32,
                "batch_size": 8,
                "max_steps": 6,
                "eval_tasks": 2,
                "save_every": 2,
                "output_dir": str(run_dir / "adapters"),
                **sft,
            },
        }
    )


def train(config: RunConfig, run_dir: Path, *, resume: bool = False) -> bool:
    start = find_start(run_dir) if resume else Start()
    writer = RunWriter(run_dir, resume_from_step=start.record_from)
    try:
        return run_sft(config, run_dir, writer, ControlChannel(run_dir), start)
    finally:
        writer.close()


def losses(run_dir: Path) -> list[tuple[int, float]]:
    reader = RunReader(run_dir)
    try:
        return reader.metrics.points("train/loss")
    finally:
        reader.close()


def read(tokens) -> str:
    return str(tokenizer().decode(tokens))


def test_demonstrations_count_what_the_agent_wrote_and_nothing_else():
    env = CalculatorEnv()
    task = {"start": 3, "operations": [["add", 4]], "answer": "7"}
    (shown,) = play_demonstrations(env, [task], tokenizer())
    features = shown.to_features()
    ids, labels = np.array(features["input_ids"]), np.array(features["labels"])
    assert (labels[labels != -100] == ids[labels != -100]).all()
    calls = '{"name": "CALCULATE", "arguments": {"operation": "add", "a": 3, "b": 4}}<|end|>'
    answer = '{"name": "ANSWER", "arguments": {"text": "7"}}<|end|>'
    assert read(ids[labels != -100]) == calls + answer
    assert read(ids[labels == -100]).count("<|assistant|>") == 2


def test_a_route_that_is_not_there_and_an_environment_without_any_are_said():
    tasks = CalculatorEnv().make_tasks("train", 2, 0)
    with pytest.raises(TrainingError, match="no route 'sideways' for a task; it has right, guess, stop_early"):
        play_demonstrations(CalculatorEnv(), tasks, tokenizer(), choose=always("sideways"))
    with pytest.raises(TrainingError, match="over the limit of 10"):
        play_demonstrations(CalculatorEnv(), tasks, tokenizer(), max_tokens=10)


def test_conversations_of_a_file_become_the_same_tokens(tmp_path):
    messages = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "a?"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c?"},
        {"role": "assistant", "content": "d"},
    ]
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"messages": messages}) + "\n\n")
    (found,) = read_conversations(path, tokenizer())
    ids, mask = found.tokens.token_ids, found.tokens.agent_mask
    whole = tokenizer().apply_chat_template(messages, tokenize=False)
    assert read(ids) == whole
    assert read(ids[mask]) == "b<|end|>d<|end|>"


def test_conversations_that_are_too_long_are_counted_in_the_log(tmp_path, caplog):
    path = tmp_path / "talk.jsonl"
    said = ("a", "b" * 200, "c" * 300)
    talks = [{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": x}]} for x in said]
    path.write_text("".join(f"{json.dumps(talk)}\n" for talk in talks))
    assert len(read_conversations(path, tokenizer(), max_tokens=60)) == 1
    assert "left out 2 of 3 conversations: over 60 tokens (sft.max_tokens)" in caplog.text


def test_text_with_other_line_ends_stays_in_its_line(tmp_path):
    messages = [{"role": role, "content": "a\u2028b\x85c"} for role in ("user", "assistant")]
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"messages": messages}, ensure_ascii=False) + "\r\n", encoding="utf-8-sig")
    assert len(read_conversations(path, tokenizer())) == 1


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "each line must be"),
        (
            '{"messages": [{"role": "user", "content": "a"}]}',
            "must begin with a user's message and have an assistant's",
        ),
        ('{"messages": [{"role": "user", "content": 3}, {"role": "assistant", "content": "b"}]}', "must be text"),
        (
            json.dumps({"messages": [{"role": r, "content": "x"} for r in ("user", "assistant", "assistant")]}),
            "must alternate",
        ),
        (
            json.dumps({"messages": [{"role": r, "content": "x"} for r in ("user", "assistant", "tool", "assistant")]}),
            "message 3 has the role 'tool'; .* the role user, like observations of environments",
        ),
        (
            json.dumps({"messages": [{"role": r, "content": "x"} for r in ("developer", "user", "assistant")]}),
            "message 1 has the role 'developer'",
        ),
    ],
)
def test_a_conversation_that_cannot_be_used_is_said_with_its_line(tmp_path, line, problem):
    path = tmp_path / "talk.jsonl"
    path.write_text("\n" + line + "\n")
    with pytest.raises(TrainingError, match=problem) as caught:
        read_conversations(path, tokenizer())
    assert "talk.jsonl, line 2" in str(caught.value)


def test_the_adapters_learn_and_are_saved_with_the_run_recorded(base, tmp_path):
    run = config(base, tmp_path, max_steps=10, save_every=5, learning_rate=2e-2, epochs=20)
    assert train(run, tmp_path)
    recorded = losses(tmp_path)
    assert [step for step, _ in recorded] == list(range(1, 11))
    assert recorded[-1][1] < 0.8 * recorded[0][1]

    policy, _ = load_policy(run.model, adapters=str(tmp_path / "adapters"), trainable=False)
    assert isinstance(policy, PeftModel)
    demonstration = play_demonstrations(CalculatorEnv(), CalculatorEnv().make_tasks("train", 1, 5), tokenizer())[0]
    features = {k: torch.tensor([v]) for k, v in demonstration.to_features().items()}
    with torch.no_grad():
        learned = float(policy(**features).loss)
        with policy.disable_adapter():
            before = float(policy(**features).loss)
    assert learned < 0.8 * before

    reader = RunReader(tmp_path)
    try:
        events = {event.kind for event in reader.events()}
        assert {"phase", "eval", "checkpoint"} <= events
        assert [step for step, _ in reader.metrics.points("success/eval_greedy")] == [0, 10]
    finally:
        reader.close()


@pytest.mark.parametrize(("asked", "measured"), [(2, [0, 1]), (None, [])])
def test_success_is_measured_with_a_file_of_conversations_where_tasks_are_asked_for(base, tmp_path, asked, measured):
    messages = [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    run = config(base, tmp_path, data=str(tmp_path / "talk.jsonl"), eval_tasks=asked, max_steps=1)
    assert train(run, tmp_path)
    with RunReader(tmp_path) as reader:
        assert [step for step, _ in reader.metrics.points("success/eval_greedy")] == measured


def test_a_resumed_run_is_the_run_that_was_not_interrupted(base, tmp_path):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    run = config(base, whole, eval_tasks=0)
    train(run, whole)

    # Interrupted after step 4 and its checkpoint: a request stops it there.
    writer = RunWriter(broken)
    channel = _StopsAfter(broken, polls=4)
    again = config(base, broken, eval_tasks=0)
    assert not run_sft(again, broken, writer, channel)
    writer.close()
    assert len(losses(broken)) == 4
    assert train(again, broken, resume=True)

    assert [s for s, _ in losses(broken)] == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose([v for _, v in losses(broken)], [v for _, v in losses(whole)], atol=1e-5)
    ours, theirs = (load_file(folder / "adapters" / "adapter_model.safetensors") for folder in (broken, whole))
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, atol=1e-5, rtol=0)
    with sqlite3.connect(broken / "record.sqlite") as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


def test_requests_are_answered(base, tmp_path):
    checkpoint = request(tmp_path, "checkpoint")
    stop = request(tmp_path, "stop")
    run = config(base, tmp_path, eval_tasks=0, save_every=0)
    assert not train(run, tmp_path)
    assert outcome(tmp_path, checkpoint) == "saved as checkpoint-1"
    assert outcome(tmp_path, stop) == "stopping; saved as checkpoint-1"
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["checkpoint-0", "checkpoint-1"]
    assert (adapters_dir(run.sft.output_dir, tmp_path.name) / "adapter_model.safetensors").is_file()
    assert not (tmp_path / "adapters").exists(), "a link only to those of a finished run"


class _StopsAfter(ControlChannel):
    """Asks itself to stop at the n-th look."""

    def __init__(self, run_dir: Path, polls: int):
        super().__init__(run_dir)
        self.left = polls

    def poll(self):
        self.left -= 1
        if self.left == 0:
            request(self.run_dir, "stop")
        return super().poll()
