"""Shapes that the writers' own code can make beside those of the samples: other versions, optional fields, failures."""

from __future__ import annotations

import json
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.templates import flat, stripped_completion, stripped_prompt
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRecord

from .conftest import PEERS

Open = Callable[[Path | str], RunReader]
USER, AGENT = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
ATIF = {"schema_version": "ATIF-v1.4", "session_id": "s", "agent": {"name": "terminus"}}
STEPS = [{"source": "user", "message": "q"}, {"source": "agent", "message": "a"}]
TRIAL = {"trial_name": "t__1", "task_name": "t", "agent_info": {"name": "terminus"}}


def write(file: Path, *documents: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(d) + "\n" for d in documents))
    return file


def read(reader: RunReader) -> list[TrajectoryRecord]:
    return [reader.bodies.trajectory(row.n) for row in reader.rollouts.page(limit=100)]


def turns(messages: Any) -> list[tuple[str, str]]:
    return [(m.role, m.text) for m in messages]


@pytest.mark.parametrize(
    ("prompt", "completion"),
    [
        pytest.param(
            "<bos><start_of_turn>user\nq<end_of_turn>\n<start_of_turn>model\n",
            "a<end_of_turn>\n<start_of_turn>user\nseen<end_of_turn>\n<start_of_turn>model\nb<end_of_turn>",
            id="Gemma",
        ),
        pytest.param(
            "<｜begin▁of▁sentence｜><｜User｜>q<｜Assistant｜><think>\n",
            "a<｜end▁of▁sentence｜><｜User｜>seen<｜Assistant｜>b<｜end▁of▁sentence｜>",
            id="DeepSeek",
        ),
        pytest.param(
            "[gMASK]<sop><|user|>\nq<|assistant|>\n", "a<|observation|>\nseen<|assistant|>\nb<|user|>", id="GLM"
        ),
        pytest.param(
            "<|user|>\nq<|end|>\n<|assistant|>\n", "a<|end|>\n<|user|>\nseen<|end|>\n<|assistant|>\nb<|end|>", id="Phi"
        ),
        pytest.param("<s>[INST]q[/INST]", "a</s>[INST]seen[/INST]b</s>", id="Mistral"),
        pytest.param("<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n<think>\n", "a", id="ends with a thought"),
    ],
)
def test_texts_of_chat_templates(prompt: str, completion: str):
    assert turns(flat(prompt, "user")) == [("user", "q")]
    said = [text for role, text in turns(flat(completion, "assistant")) if role == "assistant" and text]
    assert said == (["a", "b"] if "seen" in completion else ["a"])


def test_the_template_of_gpt_oss_has_channels():
    asked = "<|start|>system<|message|>s<|end|><|start|>user<|message|>q<|end|><|start|>assistant"
    assert turns(flat(asked, "user")) == [("system", "s"), ("user", "q")]
    first, answer, last = flat(
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.look "
        '<|constrain|>json<|message|>{"x": 1}<|call|><|start|>functions.look to=assistant<|channel|>commentary'
        "<|message|>seen<|end|><|start|>assistant<|channel|>final<|message|>red<|return|>",
        "assistant",
    )
    assert (first.thought, first.calls[0].name, first.calls[0].arguments) == ("hm", "look", {"x": 1})
    assert (answer.role, answer.text, last.role, last.text) == ("tool", "seen", "assistant", "red")


def test_a_template_without_its_marks_may_call_the_agent_model():
    assert turns(stripped_prompt("user\nq\nmodel\n")) == [("user", "q")]
    assert turns(stripped_completion("a\nuser\nseen\nmodel\nb")) == [
        ("assistant", "a"),
        ("user", "seen"),
        ("assistant", "b"),
    ]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("<function=look>\n<parameter=x>\n1\n</parameter>\n<parameter=of>\nred\n</parameter>\n</function>", None),
        ("look\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n<arg_key>of</arg_key><arg_value>red</arg_value>", None),
        ("look", "the call is not JSON"),
    ],
)
def test_calls_in_tags_are_no_broken_json(body: str, problem: str | None):
    (said,) = flat(f"hm</think><tool_call>\n{body}\n</tool_call>", "assistant")
    assert said.thought == "hm", "the prompt ended with <think>"
    (call,) = said.calls
    assert call.problem == problem
    if problem is None:
        assert (call.name, call.arguments) == ("look", {"x": 1, "of": "red"})


def test_numbers_under_metrics_that_are_called_as_roles_are_columns(tmp_path: Path, opened: Open):
    document = {"prompt": "q", "completion": "a", "reward": 1, "metrics": {"acc": 0.5, "reward": 2}}
    row = opened(write(tmp_path / "a.jsonl", document)).rollouts.page()[0]
    assert row.reward == 1 and row.extra == {"acc": 0.5, "reward": 2}


def test_a_number_that_nobody_wrote_has_a_reason(tmp_path: Path, opened: Open):
    episode = {"episode_id": "e", "messages": [USER, AGENT]}
    advantages = {"prompt": "q", "completion": "a", "advantages": [0.5, -0.5]}
    unscored, differing = read(opened(write(tmp_path / "a.jsonl", episode, advantages)))
    assert unscored.unknown["reward"] == "rewards are not written"
    assert differing.advantage is None and "different advantages" in differing.unknown["advantage"]


def test_what_a_file_or_folder_of_evaluations_is_called(tmp_path: Path, opened: Open):
    areal = {"task_id": 3, "sample_idx": 0, "seqlen": 9, "head_version": 1, "tail_version": 1, "reward": 1.0}
    for folder in ("rollout", "eval-rollout"):
        write(tmp_path / folder / "1/3.jsonl", {**areal, "prompt": "q", "completion": "a"})
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        line = {"rollout_id": "r", "reward": 0.5, "prompt": "q", "response": "a"}
        archive.writestr("step_4/validation_trajectories.jsonl", json.dumps(line) + "\n" + json.dumps(line) + "\n")
    reader = opened(tmp_path)
    rows = {(r.group.removeprefix("AReaL rollouts:"), r.split, r.step) for r in reader.rollouts.page()}
    assert {(group, split) for group, split, step in rows if step is None} == {("3", "train"), ("eval:3", "eval")}
    assert [(split, step) for _, split, step in rows if step is not None] == [("eval", 4)]
    assert "agentlightning trajectories in a zip" in reader.info().facts["formats"]


def test_what_harbor_writes_of_a_trial(tmp_path: Path, opened: Open):
    def trial(name: str, result: dict[str, Any] | None, *files: str) -> Path:
        for file in files:
            write(tmp_path / name / "agent" / file, {**ATIF, "session_id": name, "steps": STEPS})
        if result is not None:
            write(tmp_path / name / "result.json", {**TRIAL, "trial_name": name, **result})
        return tmp_path / name

    trial("number", {"verifier_result": {"reward": 0.25}}, "trajectory.json")  # as older versions wrote it
    (trial("text", None, "trajectory.json") / "verifier").mkdir()
    (tmp_path / "text/verifier/reward.txt").write_text("0.5\n")
    failed = {"exception_type": "RuntimeError", "exception_message": "no start"}
    trial("failed", {"verifier_result": None, "exception_info": failed})
    trial("long", {"verifier_result": {"rewards": {"reward": 1.0}}}, "trajectory.json", "trajectory.cont-1.json")
    times = {"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:01:00Z"}
    trial("silent", {"verifier_result": {"rewards": {"reward": 0.0, "format": 1.0}}, **times})

    found = {r.trajectory.id: r for r in read(opened(tmp_path))}
    assert {k: r.trajectory.env_reward for k, r in found.items()} == {
        "number": 0.25, "text": 0.5, "failed": None, "long": 1.0, "long:cont-1": None, "silent": 0.0
    }  # fmt: skip
    assert found["failed"].trajectory.error == "RuntimeError: no start"
    assert "belongs to the trial" in found["long:cont-1"].unknown["reward"]
    assert found["silent"].trajectory.seconds == 60 and "turns" in found["silent"].unknown
    assert {len(r.trajectory.steps) for k, r in found.items() if k not in ("failed", "silent")} == {1}


def test_tokens_of_calls_that_each_read_all_that_came_before(tmp_path: Path, opened: Open):
    def step(read_: list[int], wrote: list[int]) -> dict[str, Any]:
        metrics = {"prompt_token_ids": read_, "completion_token_ids": wrote, "logprobs": [-0.5] * len(wrote)}
        return {"source": "agent", "message": "a", "metrics": metrics}

    whole = {**ATIF, "steps": [STEPS[0], step([1, 2], [3]), step([1, 2, 3, 4], [5, 6])]}
    other = {**ATIF, "steps": [STEPS[0], step([1, 2], [3]), step([9], [5, 6])]}
    reader = opened(write(tmp_path / "a.jsonl", whole, other))
    tokens = reader.bodies.tokens(1)
    assert tokens is not None and list(tokens.token_ids) == [1, 2, 3, 4, 5, 6]
    assert list(tokens.agent_mask) == [0, 0, 1, 0, 1, 1] and list(tokens.logprobs) == [0, 0, -0.5, 0, -0.5, -0.5]
    assert reader.bodies.tokens(2) is None, "what was rewritten between calls is not one sequence"


def test_older_art_writes_a_group_a_line_with_what_failed(tmp_path: Path, opened: Open):
    trajectory = {"messages_and_choices": [USER, {"finish_reason": "stop", "message": AGENT}], "metrics": {"acc": 0.5}}
    failed = [{"type": "ValueError", "message": "boom", "traceback": ""}]
    group = {
        "trajectories": [{**trajectory, "reward": r} for r in (1, 0)],
        "metadata": {"scene": 3},
        "exceptions": failed,
    }
    nothing = {"trajectories": [], "metadata": {}, "exceptions": failed}
    reader = opened(write(tmp_path / "trajectories/train/0007.jsonl", group, nothing))
    rows = reader.rollouts.page()
    assert [(r.step, r.reward, r.extra["component.acc"]) for r in rows] == [(7, 1, 0.5), (7, 0, 0.5)]
    assert len({r.group for r in rows}) == 1 and {r.extra["group.exceptions"] for r in rows} == {1}
    assert reader.info().facts["skipped"] == []


def test_openenv_says_in_a_list_of_its_own_which_tools_failed(opened: Open):
    stated = [json.loads(line) for line in (PEERS / "openenv/results.jsonl").read_text().splitlines()]
    failed = {s["episode_id"] for s in stated if any(t["result"]["error"] for t in s["tool_trace"])}
    assert {r.id for r in opened("openenv").rollouts.page(Query(filter="error"))} == failed and failed


def test_nemo_texts_of_a_system_and_of_a_template_and_padding(tmp_path: Path, opened: Open):
    start = "<|im_start|>{}\n{}<|im_end|>\n"
    texts = [start.format("system", "s"), start.format("user", "q") + "<|im_start|>assistant\n", "a", "seen", "b"]
    mask = [0, 0, 0, 1, 0, 1, 0]
    row = {"content": [texts], "rewards": [1.0], "input_lengths": [6], "token_ids": [[*range(6), 0]]}
    row |= {"token_loss_mask": [mask], "advantages": [[0.5] * 5 + [-0.5, 0.0]], "idx": 0}
    reader = opened(write(tmp_path / "train_data_step5.jsonl", row))
    (record,) = read(reader)
    assert turns(record.trajectory.messages) == [("system", "s"), ("user", "q")]
    assert [(s.text, s.observation) for s in record.trajectory.steps] == [("a", "seen"), ("b", "")]
    assert "different advantages" in record.unknown["advantage"]
    tokens = reader.bodies.tokens(1)
    assert tokens is not None and len(tokens) == 6


def test_rllm_episodes_as_dicts_and_those_that_failed_before_a_trajectory(tmp_path: Path, opened: Open):
    step = {"chat_completions": [USER, AGENT], "reward": 1.0, "advantage": 0.5, "weight_version": 4}
    step |= {"prompt_ids": [1, 2], "response_ids": [3], "logprobs": [-0.5]}
    trajectory = {"name": "default_traj_name", "steps": [step], "reward": 1.0}
    whole = {"id": "t:0", "task": {}, "trajectories": [trajectory], "is_correct": True}
    failed = {"id": "t:1", "task": {}, "trajectories": [], "termination_reason": "error", "is_correct": False}
    reader = opened(write(tmp_path / "a.jsonl", whole, {**failed, "metadata": {"error": {"message": "boom"}}}))
    done, broken = read(reader)
    assert (done.advantage, done.policy_version, done.trajectory.agent) == (0.5, 4, "")
    assert reader.bodies.tokens(1) is not None
    assert (broken.trajectory.error, broken.trajectory.env_reward, broken.trajectory.steps) == ("boom", None, ())


def test_what_tinkers_environment_of_tools_logs(tmp_path: Path, opened: Open):
    logs = {"assistant_content": "I look.", "tool_call_0": 'look({"x": 1})', "tool_result_0": "seen", "guess": 3}
    steps = [{"reward": 0.0, "ac_len": 5, "metrics": {"format": 1.0, "bad": 0}, "logs": logs}]
    steps += [{"reward": 1.0, "ac_len": 6, "metrics": {"format": 0.0, "bad": 0}, "logs": {"parse_errors": "no JSON"}}]
    summary = {"split": "eval/gsm8k", "iteration": 3, "group_idx": 0, "traj_idx": 0, "tags": ["math"], "steps": steps}
    summary |= {"total_reward": 1.0, "final_reward": 0.0, "trajectory_metrics": {}}
    reader = opened(write(tmp_path / "iteration_000003/eval_gsm8k_rollout_summaries.jsonl", summary))
    (row,), (record,) = reader.rollouts.page(), read(reader)
    assert (row.split, row.extra["evaluation"], row.extra["final_reward"], row.extra["guess"]) == (
        "eval",
        "gsm8k",
        0,
        3,
    )
    assert row.extra["format"] == "[1.0, 0.0]" and "component.format" not in row.extra, "it is one a turn"
    assert row.extra["component.bad"] == 0
    first, second = record.trajectory.steps
    assert (first.text, first.calls[0].arguments, first.calls[0].result) == ("I look.", {"x": 1}, "seen")
    assert second.error == "no JSON" == record.trajectory.error


def test_runs_of_one_trackio_project_are_told_apart(tmp_path: Path, opened: Open):
    db = sqlite3.connect(tmp_path / "a.db")
    db.execute("CREATE TABLE metrics (run_name TEXT, step INTEGER, metrics TEXT)")
    db.execute("CREATE TABLE traces (id TEXT, run_name TEXT, step INTEGER, messages TEXT, metadata TEXT)")
    for run, loss in (("one", 1.0), ("two", 2.0)):
        db.execute("INSERT INTO metrics VALUES (?, 1, ?)", (run, json.dumps({"loss": loss})))
        told = (f"{run}-1", run, json.dumps([USER, AGENT]), json.dumps({"reward": loss, "group": "7"}))
        db.execute("INSERT INTO traces VALUES (?, ?, 1, ?, ?)", told)
    db.commit()
    db.close()
    told = {"run_name": "one", "timestamp": "now", "step": 1}
    told_of_traces = {**told, "trace_index": 0, "messages": json.dumps([USER, AGENT])}
    traces = [{**told_of_traces, "run_name": run, "id": run} for run in ("one", "two")]
    write(tmp_path / "a_traces.parquet", *[{**t, "metadata": '{"reward": 1, "group": "7"}'} for t in traces])
    write(tmp_path / "a.parquet", {**told, "loss": 1.0}, {**told, "run_name": "two", "loss": 2.0})
    for exported in (False, True):  # the files that it exports say nothing new beside the database
        reader = opened(tmp_path)
        assert len({r.group for r in reader.rollouts.page()}) == reader.rollouts.total() == 2
        assert [dict(reader.metrics.points(f"{run}/loss")) for run in ("one", "two")] == [{1: 1.0}, {1: 2.0}]
        if not exported:
            (tmp_path / "a.db").unlink()


def test_rollouts_with_the_name_of_a_run_are_no_export_of_trackio(tmp_path: Path, opened: Open):
    document = {"run_name": "one", "timestamp": 1.0, "step": 2, "prompt": "q", "completion": "a", "reward": 0.5}
    reader = opened(write(tmp_path / "a.jsonl", document))
    assert [(r.step, r.reward) for r in reader.rollouts.page()] == [(2, 0.5)]


def test_tables_with_names_for_people_and_with_a_text_as_trajectory(tmp_path: Path, opened: Open):
    people = {"columns": ["Step", "Prompt", "Completion", "Total Reward"], "data": [[1, "q", "a", 0.5]]}
    text = {"columns": ["prompt", "trajectory", "reward"], "data": [["q", "a", 0.5]]}
    for table in (people, text):
        (record,) = read(opened(write(tmp_path / "a.table.json", table)))
        assert record.trajectory.env_reward == 0.5
        assert (turns(record.trajectory.messages), record.trajectory.steps[0].text) == ([("user", "q")], "a")


def test_an_empty_list_of_rollouts_is_known(tmp_path: Path):
    summary = open_dump(
        write(tmp_path / "a.jsonl", {"rollouts": [{"prompt": "q", "completion": "a"}]}, {"rollouts": []}), whole=True
    ).summary
    assert summary["rollouts"] == 1 and summary["skipped"] == []


def test_items_of_responses_that_are_no_messages(tmp_path: Path, opened: Open):
    called = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": '{"x": 1}'}
    output = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        called,
        {**called, "call_id": "c2", "name": "zoom"},
        {"type": "function_call_output", "call_id": "c2", "output": "near"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "seen"}]},
        {"type": "code_interpreter_call", "id": "ci", "code": "print(1)", "outputs": None},
        {"type": "mcp_call", "id": "m", "name": "ask", "arguments": "{}", "output": None, "error": "no server"},
        {"type": "mcp_list_tools", "id": "l", "tools": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "red"}]},
    ]
    response = {"object": "response", "instructions": "s", "input": "q", "output": output}
    response["incomplete_details"] = {"reason": "max_output_tokens"}
    (record,) = read(opened(write(tmp_path / "a.jsonl", response)))
    assert turns(record.trajectory.messages) == [("system", "s"), ("user", "q")]
    assert record.trajectory.stop_reason == "max_output_tokens"
    calls = [(c.name, c.result, c.problem, c.error) for s in record.trajectory.steps for c in s.calls]
    assert calls == [
        ("look", "seen", None, None),
        ("zoom", "near", None, None),
        ("code_interpreter", None, None, None),
        ("ask", None, None, "no server"),
    ]
    assert record.trajectory.steps[-1].text == "red"


def test_an_answer_in_an_object_around_it(tmp_path: Path, opened: Open):
    choice = {"prompt": {"messages": [USER]}, "response": {"choices": [{"message": AGENT, "finish_reason": "stop"}]}}
    steps = [{"observation": "q", "action": "a", "reward": 0.5}, {"observation": "seen", "action": "b", "reward": 1}]
    answers = read(opened(write(tmp_path / "a.jsonl", choice, {"trajectory": steps, "total_reward": 1.5})))
    assert [[s.text for s in r.trajectory.steps] for r in answers] == [["a"], ["a", "b"]]
    assert all(turns(r.trajectory.messages) == [("user", "q")] for r in answers)
    assert [(s.observation, s.reward) for s in answers[1].trajectory.steps] == [("seen", 0.5), ("", 1)]


def test_an_object_of_rewards_may_hold_their_total(tmp_path: Path, opened: Open):
    for name in ("total", "score"):  # verl's functions return the score with what it is made of, also in slime
        document = {"prompt": "q", "completion": "a", "group_index": 3, "reward": {name: 1.5, "format": 1.0}}
        row = opened(write(tmp_path / f"{name}.jsonl", document)).rollouts.page()[0]
        assert (row.reward, row.group, row.extra) == (1.5, "3", {"component.format": 1.0})


def test_rollouts_without_prompt_and_id_are_no_group(tmp_path: Path, opened: Open):
    rows = opened(write(tmp_path / "a.jsonl", {"completion": "a"}, {"completion": "b"})).rollouts.page()
    assert len({r.group for r in rows}) == 2


def test_what_ms_swift_measures_beside_rewards_is_no_reward(tmp_path: Path, opened: Open):
    batch = {
        "step": ["1"],
        "prompt": ["q"],
        "completion": ["a"],
        "Accuracy": [1.0],
        "advantages": [0.5],
        "entropy": [0.25],
    }
    row = opened(write(tmp_path / "completions.jsonl", batch)).rollouts.page()[0]
    assert row.extra == {"component.Accuracy": 1.0, "entropy": 0.25}


def spans(*told: dict[str, Any], trace: str, parent: str = "r", events: list[Any] | None = None) -> dict[str, Any]:
    """A line of OTLP with a span for each set of attributes."""
    attributes = [[{"key": k, "value": {"stringValue": v}} for k, v in each.items()] for each in told]
    made = [{"traceId": trace, "parentSpanId": parent, "attributes": a, "events": events or []} for a in attributes]
    return {"resourceSpans": [{"scopeSpans": [{"spans": made}]}]}


def test_the_longest_conversation_of_a_trace_is_the_rollout(tmp_path: Path, opened: Open):
    def chat(*messages: dict[str, str]) -> dict[str, str]:
        return {"gen_ai.input.messages": json.dumps(messages[:-1]), "gen_ai.output.messages": json.dumps(messages[-1:])}

    short, long = chat(USER, AGENT), chat(USER, AGENT, {"role": "tool", "content": "seen"}, AGENT)
    root = {"training.step": "3", "training.reward": "0.5"}
    lines = [
        spans(short, trace="t"),
        spans(root, trace="t", parent=""),
        spans(long, trace="t"),
        spans(short, trace="t"),
    ]
    for documents in (lines, [*lines[:2], *[spans(short, trace=f"o{n}") for n in range(600)], *lines[2:]]):
        reader = opened(write(tmp_path / "a.jsonl", *documents))
        row = reader.rollouts.page(limit=1)[0]
        assert (row.id, row.turns, row.step, row.reward, row.rollout) == ("t", 2, 3, 0.5, 0)
        assert reader.rollouts.total() == len(documents) - 3
        assert len(reader.bodies.trajectory(1).trajectory.steps) == 2


def test_conversations_of_older_attributes_and_of_events(tmp_path: Path, opened: Open):
    numbered = {f"gen_ai.{k}.0.{what}": m[what] for k, m in (("prompt", USER), ("completion", AGENT)) for what in m}
    numbered |= {"gen_ai.completion.0.tool_calls.0.name": "look", "gen_ai.completion.0.tool_calls.0.arguments": "{}"}
    inner = {
        f"llm.{k}_messages.0.message.{what}": m[what] for k, m in (("input", USER), ("output", AGENT)) for what in m
    }
    said = [{"name": "gen_ai.user.message", "attributes": [{"key": "content", "value": {"stringValue": "q"}}]}]
    choice = json.dumps({"content": "a"})
    said += [{"name": "gen_ai.choice", "attributes": [{"key": "message", "value": {"stringValue": choice}}]}]
    lines = [spans(numbered, trace="1"), spans(inner, trace="2"), spans({}, trace="3", events=said)]
    records = read(opened(write(tmp_path / "a.jsonl", *lines)))
    assert [(turns(r.trajectory.messages), r.trajectory.steps[0].text) for r in records] == [([("user", "q")], "a")] * 3
    assert records[0].trajectory.steps[0].calls[0].name == "look"


def test_samples_of_inspect_that_failed_at_once_and_of_older_versions(tmp_path: Path, opened: Open):
    failed = {"id": 1, "epoch": 1, "input": "q", "messages": [], "error": {"message": "boom"}}
    usage = {"m": {"total_tokens": 3}, "judge": {"total_tokens": 5}}
    older = {"id": 2, "epoch": 1, "messages": [USER, AGENT], "score": {"value": "C"}, "model_usage": usage}
    log = {"version": 1, "status": "error", "eval": {"task": "t", "model": "m"}, "samples": [failed, older]}
    first, second = read(opened(write(tmp_path / "log.json", log)))
    assert (turns(first.trajectory.messages), first.trajectory.error) == ([("user", "q")], "boom")
    assert second.trajectory.correct is True and second.token_count == 3, "the judge's are not its own"


def test_an_episode_of_verifiers_that_failed_before_a_trace(tmp_path: Path, opened: Open):
    nodes = [{"parent": None, "message": USER}, {"parent": 0, "message": AGENT, "sampled": True}]
    rewards = {"right": {"score": 1.0, "weight": 1.0}, "format": {"score": None, "weight": 0.5}}
    failed = {"id": "e", "env": {"id": "x"}, "traces": [], "errors": [{"type": "Setup", "message": "no sandbox"}]}
    partly = {"id": "f", "env": {"id": "x"}, "traces": [{"id": "t", "nodes": nodes, "rewards": rewards}]}
    lost, scored = read(opened(write(tmp_path / "traces.jsonl", failed, partly)))
    assert (lost.trajectory.id, lost.trajectory.error) == ("e", "Setup: no sandbox")
    assert scored.trajectory.env_reward is None and "total is unknown" in scored.unknown["reward"]


def test_columns_of_scores_are_rewards(tmp_path: Path, opened: Open):
    batch = {"prompts": ["q", "r"], "responses": ["a", "b"], "scores": [1, 0], "lengths": [3, 4]}
    batch["finish_reasons"] = ["stop", "length"]
    rows = opened(write(tmp_path / "a.jsonl", batch)).rollouts.page()
    assert [(r.reward, r.stop_reason, r.extra) for r in rows] == [
        (1, "stop", {"lengths": 3}),
        (0, "length", {"lengths": 4}),
    ]
