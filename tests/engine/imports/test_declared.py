"""What a document declares decides how it is read, and what a file lacks is what is said to be missing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.configs import metric_names as metric
from grpo_tui.engine.imports.dump import format_of
from grpo_tui.engine.imports.format import Origin
from grpo_tui.engine.imports.formats import FORMATS
from grpo_tui.engine.imports.index import Indexer
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search.query import Query

CHAT = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
Open = Callable[[Path | str], RunReader]

ORIGIN = Origin(Path("rows.jsonl"), Path())
NEEDED: dict[str, dict[str, Any]] = {
    "TRL completions": {"step": 1, "prompt": "p", "completion": "c", "advantage": 0.5},
    "verl rollouts": {"input": "p", "output": "c", "score": 1.0},
    "SkyRL evaluation": {"input_prompt": "p", "output_response": "c", "score": 1.0},
    "AReaL rollouts": {"task_id": "t", "completion": "c", "seqlen": 3, "head_version": 1},
    "agentlightning trajectories": {"rollout_id": "r", "reward": 1.0, "prompt": "p", "response": "c"},
    "rollouts in JSON": {"prompt": "p", "completion": "c"},
}
DECLARED = {"group": "g", "reward": 1.0, "token_count": 7, "stop_reason": "length", "index": 0}
COLUMNS = {"difficulty": 3, "accuracy_reward": 1.0, "solution": "4", "source": "web"}


@given(name=st.sampled_from(sorted(NEEDED)), extra=st.dictionaries(st.sampled_from(sorted(COLUMNS)), st.just(0)))
def test_columns_of_ones_own_do_not_change_the_format(name: str, extra: dict[str, int]):
    document = {**NEEDED[name], **{key: COLUMNS[key] for key in extra}}
    for each in (document, dict(reversed(document.items()))):
        found = format_of(each, ORIGIN, FORMATS)
        assert found is not None and found.name == name


@given(keys=st.sets(st.sampled_from(["group", "reward", "token_count", "stop_reason"]), min_size=1))
def test_rows_that_declare_what_a_number_is_are_read_as_they_declare(keys: set[str]):
    document = {**NEEDED["TRL completions"], **{key: DECLARED[key] for key in sorted(keys)}}
    found = format_of(document, ORIGIN, FORMATS)
    assert found is not None and found.name == "rollouts in JSON"
    (rollout,) = found.open(document, ORIGIN)
    assert (rollout.step, rollout.advantage, rollout.components) == (1, 0.5, {})  # type: ignore[union-attr]
    assert rollout.group == ("g" if "group" in keys else "")  # type: ignore[union-attr]
    assert rollout.reward == (1.0 if "reward" in keys else None)  # type: ignore[union-attr]
    assert rollout.token_count == (7 if "token_count" in keys else None)  # type: ignore[union-attr]


def write(path: Path, *documents: Any) -> Path:
    path.write_text("".join(json.dumps(d) + "\n" for d in documents))
    return path


def summary(path: Path) -> dict[str, Any]:
    return dict(open_dump(path, whole=True).summary)


def test_what_a_file_lacks_is_told_and_not_what_its_format_may_lack(tmp_path: Path, opened: Open):
    row = {"prompt": "p", "completion": "c", "reward": 1.0, "step": 1, "advantage": 0.1, "group": "g"}
    told = summary(write(tmp_path / "full.jsonl", row, row))["not_recorded"]["rollouts in JSON"]
    assert told == {}
    part = {k: v for k, v in row.items() if k != "step"}
    told = summary(write(tmp_path / "part.jsonl", row, part))["not_recorded"]["rollouts in JSON"]
    assert list(told) == ["step"] and told["step"].endswith("in 1 of 2")


RESPONSE = {
    "object": "response",
    "output": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I look around first."}]},
        {"type": "function_call", "call_id": "c1", "name": "bash", "arguments": '{"command": "ls"}'},
        {"type": "function_call", "call_id": "c2", "name": "bash", "arguments": '{"command": "pwd"}'},
    ],
}


def test_mini_swe_agent_with_messages_of_responses(tmp_path: Path, opened: Open):
    results = [{"type": "function_call_output", "call_id": c, "output": f"result of {c}"} for c in ("c2", "c1")]
    submitted = {"role": "assistant", "content": "Done.", "extra": {"actions": [{"command": "submit"}]}}
    messages = [{"role": "user", "content": "Fix it."}, RESPONSE, *results, submitted]
    document = {"trajectory_format": "mini-swe-agent-1.1", "info": {"exit_status": "Submitted"}, "messages": messages}
    (tmp_path / "a.traj.json").write_text(json.dumps(document))
    reader = opened(tmp_path / "a.traj.json")
    shown = reader.bodies.trajectory(1).trajectory
    first, last = shown.steps
    assert first.thought == "I look around first." and shown.prompt == "Fix it."
    assert [(c.arguments, c.result) for c in first.calls] == [
        ({"command": "ls"}, "result of c1"),
        ({"command": "pwd"}, "result of c2"),
    ]
    assert (last.text, last.action, last.arguments) == ("Done.", "bash", {"command": "submit"})
    (row,) = reader.rollouts.page()
    assert row.turns == 2 and row.actions == ("bash", "bash", "bash")


def test_outputs_of_batches(tmp_path: Path, opened: Open):
    choice = {"index": 0, "finish_reason": "length", "message": {"role": "assistant", "content": "Four."}}
    body = {"object": "chat.completion", "model": "m", "choices": [choice]}
    openai = {"id": "b1", "custom_id": "q1", "response": {"status_code": 200, "body": body}, "error": None}
    said = {"role": "assistant", "content": [{"type": "text", "text": "Five."}], "stop_reason": "end_turn"}
    claude = {"custom_id": "q2", "result": {"type": "succeeded", "message": said}}
    for name, document, text, stop in (("o", openai, "Four.", "length"), ("a", claude, "Five.", "end_turn")):
        shown = opened(write(tmp_path / f"{name}.jsonl", document)).bodies.trajectory(1).trajectory
        assert [s.text for s in shown.steps] == [text] and shown.stop_reason == stop


def test_a_shape_that_is_not_known_is_reported(tmp_path: Path):
    unknown = [{"role": "assistant", "blob": {"content": f"word{i} " * 3 + " ".join(f"w{i}x{j}" for j in range(30))}}
               for i in range(3)]  # fmt: skip
    path = write(tmp_path / "a.jsonl", {"prompt": "hello there", "messages": unknown, "completion": ""})
    told = summary(path)
    assert told["coverage"]["share"] < 0.5 and list(told["coverage"]["low"]) == ["a.jsonl"]
    assert any("its message format is unknown" in s["why"] for s in told["skipped"])


def test_all_parallel_calls_count_and_turns_stay_turns(tmp_path: Path, opened: Open):
    calls = [{"id": str(i), "function": {"name": f"tool{i}", "arguments": "{}"}} for i in range(7)]
    row = {"step": 1, "prompt": "p", "reward": 1, "completion": [{"role": "assistant", "tool_calls": calls}]}
    reader = opened(write(tmp_path / "a.jsonl", row, row))
    assert [reader.rollouts.count(Query(filter=f"action:tool{i}")) for i in range(7)] == [2] * 7
    assert {row.turns for row in reader.rollouts.page()} == {1}
    latest = reader.metrics.latest()
    assert latest[metric.ACTION_SHARE("tool6")] == pytest.approx(1 / 7) and latest[metric.TURNS] == 1


def test_null_is_no_call(tmp_path: Path, opened: Open):
    said = {"role": "assistant", "content": "It is 4.", "tool_calls": [None]}
    reader = opened(write(tmp_path / "a.jsonl", {"prompt": "2 + 2?", "completion": [said], "reward": 1}))
    [step] = reader.bodies.trajectory(1).trajectory.steps
    assert (step.action, step.calls, step.text) == (None, (), "It is 4.")


def test_evaluations_and_judges_count_in_no_mean_of_the_training(tmp_path: Path, opened: Open):
    row = {"prompt": "p", "completion": "c", "step": 1}
    rows = [{**row, "reward": r} for r in (0.25, 0.75)]
    others = [{**row, "reward": 9, "split": "eval"}, {**row, "reward": 7, "agent": "judge"}]
    (tmp_path / "d").mkdir()
    write(tmp_path / "d" / "a.jsonl", *others, {**row, "step": 0, "reward": 3, "split": "eval"})
    write(tmp_path / "d" / "b.jsonl", *rows)
    reader = opened(tmp_path / "d")
    assert reader.metrics.points(metric.REWARD_MEAN) == [(1, 0.5)]
    assert summary(tmp_path / "d")["means"][metric.REWARD_MEAN] == 0.5
    alone = opened(write(tmp_path / "evals.jsonl", *[{**r, "split": "eval"} for r in rows]))
    assert alone.metrics.points(metric.REWARD_MEAN) == [(1, 0.5)], "a dump of evaluations has their means"


def test_an_evaluation_that_was_measured_first_leaves_the_means(tmp_path: Path):
    row = {"prompt": "p", "completion": "c", "step": 1, "reward": 9.0}
    dump = tmp_path / "d"
    dump.mkdir()
    write(dump / "a.jsonl", {**row, "split": "eval"}, {**row, "step": 2, "split": "eval"})
    with Indexer(dump, tmp_path / "index") as indexer:
        indexer.advance()
        write(dump / "b.jsonl", {**row, "reward": 1.0})
        indexer.look_again()
        indexer.advance()
        found = indexer.db.execute(
            "SELECT step, value FROM metrics WHERE name = (SELECT id FROM metric_names WHERE name = ?)",
            (metric.REWARD_MEAN,),
        ).fetchall()
    assert found == [(1, 1.0)]


def test_a_judge_does_not_split_a_group(tmp_path: Path, opened: Open):
    def trace(id_: str, agent: str) -> dict[str, Any]:
        node = {"message": {"role": "assistant", "content": id_}, "parent": None, "sampled": True}
        return {"id": id_, "agent": {"name": agent}, "nodes": [node], "rewards": {"r": {"score": 1, "weight": 1}}}

    episodes = [
        {"env": {"id": "e"}, "group": {"id": "g"}, "traces": [trace("a", "solver"), trace("b", "judge")]},
        {"env": {"id": "e"}, "group": {"id": "g"}, "traces": [trace("c", "solver")]},
    ]
    groups = {row.id: row.group for row in opened(write(tmp_path / "a.jsonl", *episodes)).rollouts.page()}
    assert groups["a"] == groups["c"] != groups["b"]


def test_pairs_are_two_rollouts_of_a_group(tmp_path: Path, opened: Open):
    asked = {"role": "user", "content": "q"}
    talks = {side: [asked, {"role": "assistant", "content": side}] for side in ("chosen", "rejected")}
    texts = {side: f"\n\nHuman: q\n\nAssistant: {side}" for side in ("chosen", "rejected")}
    for document in (
        {**talks, "score_chosen": 1.0},
        texts,
        {"prompt": "q", "chosen": "chosen", "rejected": "rejected"},
    ):
        reader = opened(write(tmp_path / "pairs.jsonl", document, document))
        first, second = (reader.bodies.trajectory(n).trajectory for n in (1, 2))
        assert [(m.role, m.text) for m in first.messages] == [("user", "q")]
        assert [t.steps[0].text for t in (first, second)] == ["chosen", "rejected"]
        assert first.group == second.group and first.env_reward == (1.0 if "score_chosen" in document else None)


def test_an_instruction_stands_before_its_input(tmp_path: Path, opened: Open):
    row = {"instruction": "Translate.", "input": "hello", "output": "bonjour"}
    shown = opened(write(tmp_path / "a.jsonl", row)).bodies.trajectory(1).trajectory
    assert shown.prompt == "Translate.\n\nhello" and shown.steps[0].text == "bonjour" and not shown.extra


def test_two_logs_of_one_task_do_not_share_a_group(tmp_path: Path, opened: Open):
    (tmp_path / "d").mkdir()
    sample = {"id": 1, "epoch": 1, "input": "q", "target": "a", "messages": [{"role": "assistant", "content": "a"}]}
    for name in ("one", "two"):
        log = {"version": 2, "status": "success", "eval": {"task": "t", "eval_id": name}, "samples": [sample]}
        (tmp_path / "d" / f"{name}.json").write_text(json.dumps(log))
    assert len({row.group for row in opened(tmp_path / "d").rollouts.page()}) == 2


def test_rows_of_one_loop_of_an_agent_are_one_rollout(tmp_path: Path, opened: Open):
    asked, then = "user\nq\nassistant\n", "user\nq\nassistant\na\nuser\nseen\nassistant\n"
    rows = [{"input": i, "output": o, "score": 1.0, "step": 1, "uid": f"g_0_{t}"} for t, (i, o) in
            enumerate(((asked, "a"), (then, "b")))]  # fmt: skip
    reader = opened(write(tmp_path / "1.jsonl", *rows))
    assert [(r.turns, r.reward) for r in reader.rollouts.page()] == [(2, 1.0)]
    assert [s.text for s in reader.bodies.trajectory(1).trajectory.steps] == ["a", "b"]


@pytest.mark.parametrize("size", [1, 512])
def test_steps_of_one_rollout_are_one_row(size: int, tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("grpo_tui.engine.imports.part.PART_ROLLOUTS", size)
    asked = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
    heard = "<|im_end|>\n<|im_start|>user\nseen<|im_end|>\n<|im_start|>assistant\n"
    rows = []
    for score, said in ((1.0, "a"), (0.0, "b")):  # SkyRL's step-wise trainer writes a row for each step
        row = {"env_class": "e", "env_extras": {}, "data_source": "s", "stop_reason": "stop", "score": score}
        rows += [{**row, "input_prompt": asked, "output_response": f"{said}<|im_end|>"},
                 {**row, "input_prompt": f"{asked}{said}{heard}", "output_response": "done<|im_end|>"}]  # fmt: skip
    found = opened(write(tmp_path / "a.jsonl", *rows)).rollouts.page()
    assert [row.reward for row in found] == [1.0, 0.0] and len({row.group for row in found}) == 1


def test_a_judge_in_an_episode_of_rllm_leaves_the_group_of_the_solvers(tmp_path: Path, opened: Open):
    def trajectory(name: str) -> dict[str, Any]:
        return {"name": name, "reward": 1.0, "steps": [{"observation": "q", "model_response": "a"}]}

    episode = {"training_step": 1, "task": {"question": "q"}}
    judged = {**episode, "episode_id": "g:0", "trajectories": [trajectory("solver"), trajectory("judge")]}
    alone = {**episode, "episode_id": "g:1", "trajectories": [trajectory("solver")]}
    found = opened(write(tmp_path / "a.jsonl", judged, alone)).rollouts.page()
    solvers = [row.group for row in found if row.split == "train"]
    assert len(solvers) == 2 and len(set(solvers)) == 1 and [r.split for r in found].count("judge") == 1


def test_a_command_of_codex_that_failed_is_an_error(tmp_path: Path, opened: Open):
    texts = [
        "Exit code: 2\nWall time: 0.1 seconds\nOutput:\nno such file",
        "Exit code: 0\nWall time: 0.1 seconds\nOutput:\n",
        "Chunk ID: 1a\nWall time: 0.1 seconds\nProcess exited with code 1\nOriginal token count: 3\nOutput:\nno",
        "no header\nProcess exited with code 1\n",
    ]
    rows = [{"type": "session_meta", "payload": {"id": "s"}}]
    items = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list"}]}]
    for i, output in enumerate(texts):
        items.append({"type": "function_call", "name": "shell", "arguments": "{}", "call_id": f"c{i}"})
        items.append({"type": "function_call_output", "call_id": f"c{i}", "output": output})
    file = tmp_path / "rollout.jsonl"
    file.write_text(
        "".join(json.dumps(r) + "\n" for r in [*rows, *({"type": "response_item", "payload": i} for i in items)])
    )
    calls = [call for step in opened(file).bodies.trajectory(1).trajectory.steps for call in step.calls]
    assert [(call.result, call.error) for call in calls] == list(
        zip(texts, ("exit code 2", None, "exit code 1", None), strict=True)
    )


def test_an_answer_may_be_any_json(tmp_path: Path, opened: Open):
    """promptfoo parses the output of a provider: an object, a list of calls, or a list of parts."""
    row = {"promptIdx": 0, "success": True, "prompt": {"raw": "q"}}
    call = {"type": "function", "id": "c", "function": {"name": "look", "arguments": "{}"}}
    outputs = [{"a": 1}, [call], [{"type": "text", "text": "words"}, {"type": "tool_use", "name": "zoom", "input": {}}]]
    rows = [{**row, "testIdx": i, "response": {"output": output}} for i, output in enumerate(outputs)]
    (tmp_path / "o.json").write_text(json.dumps({"results": {"results": rows}}))
    reader = opened(tmp_path / "o.json")
    steps = [step for row in reader.rollouts.page(limit=9) for step in reader.bodies.trajectory(row.n).trajectory.steps]
    assert [(s.text, [c.name for c in s.calls]) for s in steps] == [
        ('{"a": 1}', []), ("look({})", ["look"]), ("words", ["zoom"])
    ]  # fmt: skip


def test_a_tool_of_the_server_answers_within_the_turn(tmp_path: Path, opened: Open):
    content = [
        {"type": "redacted_thinking", "data": "xx"},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"title": "found"}]},
        {"type": "text", "text": "It is x."},
    ]
    message = {"role": "assistant", "content": content, "stop_reason": "end_turn"}
    (tmp_path / "b.jsonl").write_text(
        json.dumps({"custom_id": "a", "result": {"type": "succeeded", "message": message}}) + "\n"
    )
    (step,) = opened(tmp_path / "b.jsonl").bodies.trajectory(1).trajectory.steps
    assert (step.text, [(c.name, c.result) for c in step.calls]) == (
        "It is x.", [("web_search", '[{"title": "found"}]')]
    )  # fmt: skip


def test_calls_of_the_user_are_shown(tmp_path: Path, opened: Open):
    """tau2-bench lets the simulated user call tools of its own."""
    call = {"id": "u", "name": "toggle", "arguments": {"on": True}, "requestor": "user"}
    talk = [
        {"role": "assistant", "content": "Toggle it."},
        {"role": "user", "content": None, "tool_calls": [call]},
        {"role": "tool", "id": "u", "content": "It is on.", "requestor": "user", "error": False},
    ]
    row = {"id": "s", "task_id": "t", "trial": 0, "termination_reason": "user_stop", "messages": talk}
    (tmp_path / "r.json").write_text(json.dumps({"simulations": [row], "info": {}}))
    (step,) = opened(tmp_path / "r.json").bodies.trajectory(1).trajectory.steps
    assert step.observation == 'toggle({"on": true})\n\nIt is on.'


def test_numbers_of_things_are_no_components_and_an_error_has_one_type(tmp_path: Path, opened: Open):
    verl = {
        "input": "user\nq\nassistant\n",
        "output": "a",
        "gts": None,
        "score": 1.0,
        "step": 1,
        "num_turns": 4,
        "ok": 0.5,
    }
    error = {"error": "ModelError", "error_chain_str": "ModelError: no route"}
    v0 = {
        "example_id": 0,
        "prompt": "q",
        "completion": None,
        "reward": 0.0,
        "error": error,
        "total_ms": 1500.0,
        "ok": 1,
    }
    for name, document in (("a", verl), ("b", v0)):
        (tmp_path / name).write_text(json.dumps(document) + "\n")
    reader = opened(tmp_path / "a")
    (row,) = reader.rollouts.page(limit=9)
    assert row.extra == {"num_turns": 4, "component.ok": 0.5}
    t = opened(tmp_path / "b").bodies.trajectory(1).trajectory
    assert (t.error, t.seconds, t.extra) == ("ModelError: no route", 1.5, {"total_ms": 1500.0, "component.ok": 1.0})


def test_a_score_in_words_is_a_column(tmp_path: Path, opened: Open):
    scores = [
        {"name": "tone", "value": None, "stringValue": "good", "dataType": "CATEGORICAL"},
        {"name": "ok", "value": 1},
    ]
    row = {"id": "t", "projectId": "p", "input": "q", "output": "a", "scores": scores, "observations": []}
    (tmp_path / "t.jsonl").write_text(json.dumps(row) + "\n")
    (shown,) = opened(tmp_path / "t.jsonl").rollouts.page(limit=9)
    assert shown.extra == {"tone": "good", "component.ok": 1}


def test_trajectories_on_a_line_of_art_are_a_group(tmp_path: Path, opened: Open):
    def trajectory(**about: Any) -> dict[str, Any]:
        return {"reward": 1.0, "metrics": {}, "metadata": about, "messages_and_choices": CHAT}

    lines = [{"trajectories": [trajectory(prompt_id=f"p{i}"), trajectory()]} for i in range(2)]
    (tmp_path / "0004.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    groups = [row.group for row in opened(tmp_path / "0004.jsonl").rollouts.page(limit=9)]
    assert groups == ["4:p0", "4:p0", "4:p1", "4:p1"]
