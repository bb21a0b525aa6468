"""Messages and calls in the notations of providers and models: each call keeps its result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .test_variants import CHAT, VERL, Open, one


def test_results_of_parallel_calls_in_flat_text_are_each_calls_own(tmp_path: Path, opened: Open):
    calls = "".join(f'<tool_call>\n{{"name": "{n}", "arguments": {{}}}}\n</tool_call>\n' for n in "fg")
    answers = "".join(f"<tool_response>\n{n}!\n</tool_response>\n" for n in "fg")
    said = f"{calls}<|im_end|>\n<|im_start|>user\n{answers}<|im_end|>\n<|im_start|>assistant\ndone<|im_end|>"
    record = one(tmp_path, opened, {**VERL, "output": said})
    assert [(c.name, c.result) for c in record.trajectory.steps[0].calls] == [("f", "f!"), ("g", "g!")]


def test_results_out_of_order_and_in_parts_go_to_their_calls(tmp_path: Path, opened: Open):
    def call(i: str) -> dict[str, Any]:
        return {"id": i, "type": "function", "function": {"name": i, "arguments": "{}"}}

    openai = [
        {"role": "user", "content": [{"type": "text", "text": "q"}, {"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "assistant", "content": None, "tool_calls": [call("f"), call("g")]},
        {"role": "tool", "tool_call_id": "g", "content": "G"},
        {"role": "tool", "tool_call_id": "f", "content": [{"type": "text", "text": "F"}]},
    ]
    anthropic = [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": i, "name": i, "input": {}} for i in ("f", "g")],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "g", "content": "G"},
                {"type": "tool_result", "tool_use_id": "f", "content": [{"type": "text", "text": "F"}]},
                {"type": "text", "text": "go on"},
            ],
        },
    ]
    for messages in (openai, anthropic):
        (step,) = one(tmp_path, opened, {"messages": messages}).trajectory.steps
        assert [(c.name, c.result) for c in step.calls] == [("f", "F"), ("g", "G")]
    assert "go on" in step.observation


def test_messages_beside_a_completion_are_its_prompt(tmp_path: Path, opened: Open):
    for messages in (CHAT[:1], CHAT):  # up to the completion, or with it
        record = one(tmp_path, opened, {"messages": messages, "completion": "a", "reward": 1})
        assert [m.text for m in record.trajectory.messages] == ["q"]
        assert [s.text for s in record.trajectory.steps] == ["a"]


def test_the_prompt_beside_messages_of_the_agent_alone_is_kept(tmp_path: Path, opened: Open):
    t = one(tmp_path, opened, {"prompt": "q", "messages": CHAT[1:], "reward": 1}).trajectory
    assert t.prompt == "q" and [s.text for s in t.steps] == ["a"]


@pytest.mark.parametrize(
    "written", ['[{"name": "Ann", "age": 3}, {"name": "Bo", "age": 4}]', '[{"type": "circle"}]', "[1]"]
)
def test_an_answer_that_is_a_list_of_objects_is_a_text(written: str, tmp_path: Path, opened: Open):
    t = one(tmp_path, opened, {"prompt": written, "completion": written, "reward": 1}).trajectory
    assert t.prompt == written and [s.text for s in t.steps] == [written]


def test_contents_that_are_numbers_and_refusals_are_texts(tmp_path: Path, opened: Open):
    call = {"id": "c", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": 5},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": 4.5},
        {"role": "assistant", "content": None, "refusal": "I refuse."},
    ]
    t = one(tmp_path, opened, {"messages": messages, "reward": 1}).trajectory
    assert (t.prompt, t.steps[0].calls[0].result, t.steps[1].text) == ("5", "4.5", "I refuse.")


def test_a_list_of_calls_in_one_tag_is_several_calls(tmp_path: Path, opened: Open):
    said = '<tool_call>[{"name": "f", "arguments": {"x": 1}}, {"name": "g", "arguments": {}}]</tool_call>'
    t = one(tmp_path, opened, {"messages": [CHAT[0], {**CHAT[1], "content": said}], "reward": 1}).trajectory
    assert [(c.name, c.arguments, c.problem) for c in t.steps[0].calls] == [("f", {"x": 1}, None), ("g", {}, None)]


@pytest.mark.parametrize("role", ["user", "tool"])
def test_results_in_tags_of_a_message_are_each_calls_own(role: str, tmp_path: Path, opened: Open):
    calls = "".join(f'<tool_call>\n{{"name": "{n}", "arguments": {{}}}}\n</tool_call>\n' for n in "fg")
    answers = "".join(f"<tool_response>\n{n}!\n</tool_response>\n" for n in "fg")
    chat = [CHAT[0], {"role": "assistant", "content": calls}, {"role": role, "content": answers}, CHAT[1]]
    t = one(tmp_path, opened, {"messages": chat, "reward": 1}).trajectory
    assert [(c.name, c.result) for c in t.steps[0].calls] == [("f", "f!"), ("g", "g!")]


@pytest.mark.parametrize("calls", [{"name": "f", "arguments": {"x": 1}}, '{"name": "f", "arguments": "{\\"x\\": 1}"}'])
def test_a_call_outside_a_list_and_roles_in_capitals(calls: object, tmp_path: Path, opened: Open):
    parts = [{"type": "video_url", "video_url": {"url": "data:…"}}, {"type": "text", "text": "q"}]
    talk = [{"role": "USER", "content": parts}, {"role": "Assistant", "content": "", "tool_calls": calls}]
    talk += [{"role": "TOOL", "content": "r"}, {"role": "bot", "content": "a"}]
    (tmp_path / "a.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    trajectory = opened(tmp_path / "a.jsonl").bodies.trajectory(1).trajectory
    assert trajectory.prompt == "[video]\nq"
    assert [(s.action, s.arguments, s.observation) for s in trajectory.steps] == [("f", {"x": 1}, "r"), (None, {}, "")]


@pytest.mark.parametrize(
    "text",
    [
        '[TOOL_CALLS][{"name": "look", "arguments": {"x": 1}}]',
        '[TOOL_CALLS]look[CALL_ID]abc123def[ARGS]{"x": 1}',
        '<|python_tag|>{"name": "look", "parameters": {"x": 1}}',
        '<｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{"x": 1}\n```<｜tool▁call▁end｜>',
        '<｜tool▁call▁begin｜>look<｜tool▁sep｜>{"x": 1}<｜tool▁call▁end｜>',
        '<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{"x": 1}<|tool_call_end|>',
    ],
    ids=["Mistral", "Mistral 3", "Llama", "DeepSeek V3", "DeepSeek V3.1", "Kimi"],
)
def test_calls_in_the_texts_of_a_model_are_calls(text: str, tmp_path: Path, opened: Open):
    (step,) = one(tmp_path, opened, {"prompt": "q", "completion": f"Well. {text}"}).trajectory.steps
    assert [(c.name, c.arguments, c.problem) for c in step.calls] == [("look", {"x": 1}, None)]
    assert step.text == f"Well. {text}"


def test_a_conversation_of_gemini(tmp_path: Path, opened: Open):
    turns = [
        {"role": "user", "parts": [{"text": "q"}, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]},
        {
            "role": "model",
            "parts": [{"thought": True, "text": "hm"}, {"functionCall": {"name": "f", "args": {"x": 1}}}],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"t": 3}}}]},
        {"role": "model", "parts": [{"text": "3"}]},
    ]
    system = {"parts": [{"text": "Be brief."}]}
    trajectory = one(tmp_path, opened, {"systemInstruction": system, "contents": turns, "reward": 1}).trajectory
    assert trajectory.prompt == "[system] Be brief.\n\nq\n[image]"
    (called, answered), (call,) = trajectory.steps, trajectory.steps[0].calls
    assert (call.name, call.arguments, call.result, called.thought) == ("f", {"x": 1}, '{"t": 3}', "hm")
    assert answered.text == "3"


def test_a_system_prompt_in_parts_is_part_of_the_prompt(tmp_path: Path, opened: Open):
    system = [{"type": "text", "text": "Be brief."}]
    assert one(tmp_path, opened, {"system": system, "messages": CHAT}).trajectory.prompt == "[system] Be brief.\n\nq"
