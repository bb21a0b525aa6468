"""Files that people have at hand: responses of APIs, exports of platforms, tables, and what is no dump at all."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.imports.dump import format_of
from grpo_tui.engine.imports.errors import DumpError
from grpo_tui.engine.imports.format import Origin
from grpo_tui.engine.imports.formats import FORMATS
from grpo_tui.engine.imports.messages import completion
from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.imports.readers import open_reader
from grpo_tui.engine.imports.rollout import Message, Rollout
from grpo_tui.engine.runs.read.reader import RunReader

Q, A = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}
ROWS = [{"prompt": "2 + 2?", "completion": str(i), "reward": float(i)} for i in range(2)]
GEMINI = {"candidates": [{"content": {"role": "model", "parts": [{"text": "4"}]}, "finishReason": "STOP"}]}
CLAUDE = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "4"}], "usage": {}}


def rollouts(document: Any) -> list[Rollout]:
    origin = Origin(Path("dump.json"), Path("dump.json"))
    reader = format_of(document, origin, FORMATS)
    assert reader is not None, "no format recognises it"
    return [item for item in reader.open(document, origin) if isinstance(item, Rollout)]


def said(messages: tuple[Message, ...]) -> list[str]:
    return [m.text for m in messages]


@pytest.mark.parametrize(
    "document",
    [
        pytest.param({"request": {"messages": [Q]}, "response": {"choices": [{"message": A}]}}, id="a log of requests"),
        pytest.param({"request": {"contents": [{"parts": [{"text": "2 + 2?"}]}]}, "response": GEMINI}, id="Vertex"),
        pytest.param({"modelInput": {"messages": [Q]}, "modelOutput": CLAUDE}, id="Bedrock"),
        pytest.param({"op_name": "chat", "inputs": {"messages": [Q]}, "output": {"choices": [A]}}, id="Weave"),
        pytest.param({"sample": {"input": [Q], "output": [A]}, "status": "pass"}, id="OpenAI evals"),
        pytest.param({"span_id": "s", "input": {"question": "2 + 2?"}, "output": "4"}, id="Braintrust"),
        pytest.param({"input": json.dumps({"messages": [Q]}), "output": json.dumps(A)}, id="JSON in a cell"),
        pytest.param({"testCases": [{"input": "2 + 2?", "actualOutput": "4"}]}, id="DeepEval"),
        pytest.param(
            {"rows": [{"row_idx": 0, "row": {"prompt": "2 + 2?", "completion": "4"}}]}, id="the dataset viewer"
        ),
        pytest.param({"Prompt": "2 + 2?", "Completion": "4"}, id="names with capitals"),
        pytest.param({"promptText": "2 + 2?", "completionText": "4"}, id="camelCase"),
        pytest.param({"turns": [Q, A], "reward": 1}, id="messages under another key"),
        pytest.param({"text": "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>"}, id="text"),
        pytest.param({"instruction": "2 + 2?", "input": "", "output": "4", "generator": "m"}, id="Alpaca"),
        pytest.param({"question": "2 + 2?", "model_response": "4", "gold_answer": "4"}, id="a response of a model"),
    ],
)
def test_a_question_and_its_answer(document: Any) -> None:
    (rollout,) = rollouts(document)
    assert (said(rollout.prompt), said(rollout.completion)) == (["2 + 2?"], ["4"])


@pytest.mark.parametrize(
    "document", [{"id": "m", **CLAUDE}, GEMINI, {"choices": [{"text": "4", "finish_reason": "x"}]}]
)
def test_a_response_alone_is_an_answer(document: Any) -> None:
    (rollout,) = rollouts(document)
    assert said(rollout.completion) == ["4"] and rollout.completion[0].is_agent


@pytest.mark.parametrize("around", [lambda r: r, lambda r: {"custom_id": "m", "response": {"body": r}}])
def test_each_answer_of_a_response_is_a_rollout(around: Callable[[Any], Any]) -> None:
    choices = [{"message": A, "finish_reason": "stop"}, {"message": {**A, "content": "5"}, "finish_reason": "length"}]
    found = rollouts(around({"id": "m", "choices": choices, "usage": {"total_tokens": 9}}))
    assert [(r.id, r.group, r.index, r.stop, r.token_count) for r in found] == [
        ("m:0", "m", 0, "stop", None), ("m:1", "m", 1, "length", None),
    ]  # fmt: skip
    assert [said(r.completion) for r in found] == [["4"], ["5"]]


@pytest.mark.parametrize(
    ("document", "steps"),
    [
        ({"a": ROWS[0], "b": ROWS[1]}, [None, None]),
        ({"0": ROWS[0], "1": ROWS[1]}, [None, None]),
        ({"5": [ROWS[0]], "6": [ROWS[1]]}, [5, 6]),
        ({"run": "x", "steps": {"step_5": ROWS}}, [5, 5]),
        ({"run": "x", "steps": [{"step": 5, "rollouts": ROWS}]}, [5, 5]),
    ],
)
def test_rollouts_by_id_position_or_step(document: Any, steps: list[int | None]) -> None:
    found = rollouts(document)
    assert [(r.step, r.reward) for r in found] == list(zip(steps, [0.0, 1.0], strict=True))
    assert [r.id for r in found] == (["a", "b"] if "a" in document else ["", ""])


def test_steps_of_an_agent_are_turns() -> None:
    steps = [{"thought": "hm", "action": "look", "observation": "a wall"}, {"thought": "ok", "action": "turn"}]
    (rollout,) = rollouts({"prompt": "leave", "reward": 1, "steps": steps})
    assert said(rollout.prompt) == ["leave"] and said(rollout.completion) == ["look", "a wall", "turn"]
    assert rollout.completion[0].thought == "hm"


def test_earlier_turns_and_a_system_prompt_stay_before_an_instruction() -> None:
    alpaca = {"system": "be kind", "history": [["hi", "hello"]], "instruction": "2 + 2?", "input": "", "output": "4"}
    assert said(rollouts(alpaca)[0].prompt) == ["be kind", "hi", "hello", "2 + 2?"]


def test_openai_pairs_are_preferences() -> None:
    document = {"input": {"messages": [Q]}, "preferred_output": [A], "non_preferred_output": [{**A, "content": "5"}]}
    assert [(said(r.completion), r.extra["pair"]) for r in rollouts(document)] == [
        (["4"], "chosen"),
        (["5"], "rejected"),
    ]


def test_results_of_terminal_bench() -> None:
    trial = {"trial_name": "a.1", "task_id": "a", "instruction": "do", "is_resolved": True, "failure_mode": "unset"}
    (rollout,) = rollouts({"results": [trial], "accuracy": 1.0})
    assert (rollout.id, rollout.group, rollout.correct, rollout.split) == ("a.1", "a", True, "eval")
    assert rollout.same_as_id, "the folder of the trial holds it again"


def test_predictions_beside_trajectories_are_no_rollouts() -> None:
    predictions = {"a": {"instance_id": "a", "model_name_or_path": "m", "model_patch": "diff"}}
    assert format_of(predictions, Origin(Path("preds.json"), Path()), FORMATS) is None


def test_a_mark_of_a_cut_text_ends_it() -> None:
    assert [rollouts({**ROWS[0], "truncated": cut})[0].stop for cut in (True, False)] == ["truncated", ""]


def test_token_ids_are_read_beside_texts_and_alone() -> None:
    ids = {"prompt_ids": [7, 8], "completion_ids": [9], "logprobs": [-0.5]}
    for document in ({**ROWS[0], **ids}, {**ids, "reward": 1.0}, {"prompt": [7, 8], "completion": [9]}):
        (rollout,) = rollouts(document)
        assert rollout.tokens is not None and (tokens := rollout.tokens()) is not None
        assert list(tokens.token_ids) == [7, 8, 9] and list(tokens.agent_mask) == [0, 0, 1]
        assert rollout.token_count == 3
    assert (said(rollout.prompt), said(rollout.completion)) == (["<7><8>"], ["<9>"])


def test_one_object_in_a_cut_gzip_keeps_its_whole_items(tmp_path: Path, opened: Callable[[Path], RunReader]) -> None:
    packed = gzip.compress(json.dumps({"rollouts": ROWS * 9}).encode())[:-14]
    (tmp_path / "a").write_bytes(packed)
    whole_items = zlib.decompressobj(31).decompress(packed).count(b"}, ")
    with opened(tmp_path / "a") as reader:
        assert reader.rollouts.total() == whole_items > 9 and reader.bodies.trajectory(9).trajectory.prompt == "2 + 2?"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"ARROW1\0\0rest", "an Arrow file; write parquet"),
        (b"\xff\xff\xff\xff\x10\0\0\0", "an Arrow stream; write parquet"),
        (gzip.compress(b"prompt,completion\na,b\n"), "not JSON inside gzip"),
        (b"\x93NUMPY\x01\0", "a NumPy array"),
        (b"step 1 loss 0.5\n", "it is not JSON, JSON lines, CSV"),
        (b'{"alpha": 1, "beta": "x"}\n', "the first keys are alpha, beta"),
    ],
)
def test_what_is_no_dump_is_named(data: bytes, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(DumpError, match=sentence):
        open_dump(tmp_path / "a", whole=True)


def test_an_answer_that_is_a_list_of_numbers_is_a_text() -> None:
    assert said(rollouts({"prompt": "sort", "output": [1, 2]})[0].completion) == ["[1, 2]"]


def test_texts_in_a_list_are_turns_of_the_agent() -> None:
    assert [said(part) for part in (completion(["a", "b"]), completion(["a"]))] == [["a", "b"], ["a"]]
    assert all(m.is_agent for m in completion(["a", "b"]))


def test_rewards_of_turns_stand_in_their_messages() -> None:
    (rollout,) = rollouts({"messages": [Q, {**A, "reward": 0.5, "advantage": 0.25}], "reward": 0.5})
    assert (rollout.completion[0].reward, rollout.completion[0].advantage) == (0.5, 0.25)


def test_a_failed_call_of_litellm_has_an_error_and_no_answer():
    log = {"id": "c", "status": "failure", "messages": [Q], "response": {}, "error_str": "APIError: boom"}
    (rollout,) = rollouts(log)
    assert (rollout.completion, rollout.error) == ((), "APIError: boom")


def test_a_declared_tool_keeps_what_is_inside_its_arguments(tmp_path: Path):
    days = {"type": "array", "items": {"type": "string", "enum": ["mon", "tue"]}}
    place = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    parameters = {"type": "object", "properties": {"days": days, "place": {"$ref": "#/$defs/Place"}}}
    function = {"name": "weather", "parameters": {**parameters, "required": ["days"], "$defs": {"Place": place}}}
    log = {"messages": [Q, A], "model_parameters": {"tools": [{"type": "function", "function": function}]}}
    (tmp_path / "log.json").write_text(json.dumps([log]))
    with open_reader(open_dump(tmp_path / "log.json", whole=True).folder) as reader:
        (found,) = reader.bodies.trajectory(1).trajectory.tools
    assert found.schema["function"] == {
        "name": "weather", "description": "",
        "parameters": {"type": "object", "properties": {"days": days, "place": place}, "required": ["days"]},
    }  # fmt: skip


def test_each_answer_in_lighteval_details_is_a_rollout():
    answer = {"input": "2 + 2?", "input_tokens": [1, 2], "text": ["4", "5"], "output_tokens": [[3], [4]]}
    doc = {"query": "2 + 2?", "id": "0", "task_name": "gsm8k", "gold_index": 0}
    for count in (1, 2):
        answers = {**answer, "text": answer["text"][:count]}
        found = rollouts({"doc": doc, "metric": {"em": 1.0}, "model_response": answers})
        assert [said(r.completion) for r in found] == [["4"], ["5"]][:count]
        assert [(said(r.prompt), r.env, r.extra["metric.em"]) for r in found] == [(["2 + 2?"], "gsm8k", 1.0)] * count


def test_lm_eval_samples_of_two_tasks_are_two_groups(tmp_path: Path):
    sample = {"doc_id": 0, "doc": {}, "target": "4", "arguments": {"gen_args_0": {"arg_0": "2 + 2?"}}, "resps": [["4"]]}
    for task in ("gsm8k", "mmlu_2"):
        (tmp_path / f"samples_{task}_2026-01-02T03-04-05.678.jsonl").write_text(
            json.dumps({**sample, "doc_hash": task})
        )
    with RunReader(open_dump(tmp_path, whole=True).folder) as reader:
        assert sorted((row.group, row.env) for row in reader.rollouts.page()) == [
            ("gsm8k:0", "gsm8k"), ("mmlu_2:0", "mmlu_2"),
        ]  # fmt: skip
