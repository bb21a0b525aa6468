"""Messages of agent frameworks, as pydantic-ai 2.68, AutoGen 0.7.5, smolagents 1.26, browser-use 0.13, LangChain 1.8
and the Gemini CLI write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import TrajectoryRecord

Open = Callable[[Path | str], RunReader]

PYDANTIC_AI = [
    {
        "kind": "request",
        "instructions": "Be brief",
        "parts": [
            {"content": "Use tools", "part_kind": "system-prompt"},
            {
                "content": ["Weather?", {"url": "x.png", "media_type": "image/png", "kind": "image-url"}],
                "part_kind": "user-prompt",
            },
        ],
    },
    {
        "kind": "response",
        "finish_reason": "tool_call",
        "parts": [
            {"content": "Both.", "part_kind": "thinking"},
            {"content": "Let me look.", "part_kind": "text"},
            {"tool_name": "weather", "args": '{"city": "NY"}', "tool_call_id": "c0", "part_kind": "tool-call"},
            {"tool_name": "tides", "args": {"x": 3}, "tool_call_id": "c1", "part_kind": "tool-call"},
        ],
    },
    {
        "kind": "request",
        "instructions": "Be brief",
        "parts": [
            {
                "tool_name": "tides",
                "content": "no",
                "tool_call_id": "c1",
                "outcome": "failed",
                "part_kind": "tool-return",
            },
            {"tool_name": "weather", "content": {"t": 3}, "tool_call_id": "c0", "part_kind": "tool-return"},
        ],
    },
    {"kind": "response", "finish_reason": "stop", "parts": [{"content": "Sunny.", "part_kind": "text"}]},
]
CALLED = [
    {"id": "c0", "name": "weather", "arguments": '{"city": "NY"}'},
    {"id": "c1", "name": "tides", "arguments": "{}"},
]
AUTOGEN = [
    {"source": "user", "models_usage": None, "content": "Weather?", "type": "TextMessage"},
    {"source": "pilot", "models_usage": None, "content": "Both.", "type": "ThoughtEvent"},
    {"source": "pilot", "models_usage": {}, "content": CALLED, "type": "ToolCallRequestEvent"},
    {
        "source": "pilot",
        "models_usage": None,
        "content": [
            {"content": "sunny", "name": "weather", "call_id": "c0", "is_error": False},
            {"content": "no", "name": "tides", "call_id": "c1", "is_error": True},
        ],
        "type": "ToolCallExecutionEvent",
    },
    {
        "source": "pilot",
        "models_usage": None,
        "content": "sunny",
        "tool_calls": CALLED,
        "type": "ToolCallSummaryMessage",
    },
    {"source": "critic", "models_usage": None, "content": "Fine.", "type": "TextMessage"},
]
SMOLAGENTS = [
    {"task": "Weather?", "task_images": None},
    {
        "step_number": 1,
        "model_input_messages": [{"role": "system", "content": [{"type": "text", "text": "Use tools"}]}],
        "tool_calls": [
            {"id": "c0", "type": "function", "function": {"name": "python_interpreter", "arguments": "look()"}}
        ],
        "model_output_message": {"role": "assistant", "content": "Thought: look"},
        "observations": "sunny",
        "error": None,
    },
    {
        "step_number": 2,
        "tool_calls": [],
        "model_output_message": {"role": "assistant", "content": "Thought: again"},
        "observations": None,
        "error": {"type": "AgentParsingError", "message": "no code"},
    },
    {"step_number": 3, "tool_calls": [], "model_output_message": None, "observations": None, "action_output": "Sunny."},
]
LANGCHAIN = [
    {"type": "system", "data": {"type": "system", "content": "Use tools"}},
    {"type": "human", "data": {"type": "human", "content": "Weather?"}},
    {"type": "ai", "data": {"type": "ai", "content": "", "tool_calls": [{"name": "weather", "args": {}, "id": "c0"}]}},
    {"type": "tool", "data": {"type": "tool", "content": "sunny", "tool_call_id": "c0"}},
]
LISTED = {"id": "1", "name": "list", "args": {"path": "."}, "status": "executing"}
ANSWERED = {"functionResponse": {"id": "1", "name": "list", "response": {"output": "a.txt"}}}
FAILED = {
    "id": "2",
    "name": "read",
    "args": {},
    "status": "error",
    "result": [{"functionResponse": {"response": {"error": "no"}}}],
}
SAID = {
    "id": "m2",
    "timestamp": "t",
    "type": "gemini",
    "content": "Looking.",
    "thoughts": [{"subject": "S", "description": "D"}],
}
GEMINI_CLI = [
    {"id": "m1", "timestamp": "t", "type": "user", "content": [{"text": "Files?"}]},
    {**SAID, "toolCalls": [{**LISTED, "status": "success", "result": [ANSWERED]}, FAILED], "tokens": {"total": 9}},
    {"id": "m3", "timestamp": "t", "type": "info", "content": "Update available"},
    {"id": "m4", "timestamp": "t", "type": "gemini", "content": "One file.", "model": "gemini-3"},
]  # fmt: skip


def shown(record: TrajectoryRecord) -> list[Any]:
    """The prompt, then each turn: its text, thought and calls with results and errors."""
    t = record.trajectory
    turns = [
        (
            s.text if s.text and not s.calls else "",
            s.thought,
            [(c.name, c.arguments, c.result, c.error) for c in s.calls],
        )
        for s in t.steps
    ]
    return [[(m.role, m.text) for m in t.messages], *turns]


RULES, ASKED = ("system", "Use tools"), ("user", "Weather?")
FOUND = {
    "pydantic-ai": (
        PYDANTIC_AI,
        [[("system", "Be brief"), RULES, ("user", "Weather?\n[image]")],
         ("", "Both.", [("weather", {"city": "NY"}, '{"t": 3}', None), ("tides", {"x": 3}, "no", "failed")]),
         ("Sunny.", "", [])],
    ),
    "AutoGen": (
        AUTOGEN,
        [[ASKED],
         ("", "Both.", [("weather", {"city": "NY"}, "sunny", None), ("tides", {}, "no", "the tool failed")]),
         ("sunny", "", []), ("Fine.", "", [])],
    ),
    "smolagents": (
        SMOLAGENTS,
        [[RULES, ASKED],
         ("", "", [("python_interpreter", {"code": "look()"}, "sunny", None)]), ("Thought: again", "", []),
         ("Sunny.", "", [])],
    ),
    "LangChain": (LANGCHAIN, [[RULES, ASKED], ("", "", [("weather", {}, "sunny", None)])]),
}  # fmt: skip
GEMINI = [
    [("user", "Files?")],
    ("", "S: D", [("list", {"path": "."}, "a.txt", None), ("read", {}, "no", "error")]),
    ("One file.", "", []),
]


@pytest.mark.parametrize("around", [lambda m: m, lambda m: {"messages": m, "reward": 1}], ids=["alone", "in a row"])
@pytest.mark.parametrize(("messages", "expected"), FOUND.values(), ids=FOUND)
def test_a_conversation_keeps_roles_calls_results_and_errors(
    messages: list[Any], expected: list[Any], around: Callable[[Any], Any], tmp_path: Path, opened: Open
):
    path = tmp_path / "d.json"
    path.write_text(json.dumps(around(messages)))
    reader = opened(path)
    assert [shown(reader.bodies.trajectory(row.n)) for row in reader.rollouts.page()] == [expected]


def test_a_run_of_smolagents_has_its_answer_and_end(tmp_path: Path, opened: Open):
    run = {"output": "Sunny.", "state": "success", "steps": SMOLAGENTS, "timing": {"duration": 2.5}}
    (tmp_path / "run.json").write_text(json.dumps(run))
    record = opened(tmp_path / "run.json").bodies.trajectory(1)
    t = record.trajectory
    assert (t.answer, t.stop_reason, t.seconds, t.steps[1].error) == (
        "Sunny.", "success", 2.5, "AgentParsingError: no code",
    )  # fmt: skip
    assert shown(record) == FOUND["smolagents"][1]


def test_a_session_of_the_gemini_cli_keeps_the_last_version_of_each_message(tmp_path: Path, opened: Open):
    entries = [
        {"sessionId": "s", "projectHash": "h", "startTime": "t", "lastUpdated": "t", "kind": "main"},
        GEMINI_CLI[0],
        {**SAID, "toolCalls": [LISTED]},
        {"id": "m9", "timestamp": "t", "type": "user", "content": "taken back"},
        {"id": "m10", "timestamp": "t", "type": "gemini", "content": "taken back"},
        {"$rewindTo": "m9"},
        {"$set": {"summary": "Files"}},
        *GEMINI_CLI[1:],
    ]
    (tmp_path / "session-1.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
    reader = opened(tmp_path / "session-1.jsonl")
    (record,) = [reader.bodies.trajectory(row.n) for row in reader.rollouts.page()]
    assert shown(record) == GEMINI


def test_an_older_session_of_the_gemini_cli_is_one_document(tmp_path: Path, opened: Open):
    document = {"sessionId": "s", "projectHash": "h", "messages": GEMINI_CLI}
    (tmp_path / "session-1.json").write_text(json.dumps(document))
    assert shown(opened(tmp_path).bodies.trajectory(1)) == GEMINI


def test_a_history_of_browser_use_is_one_rollout(tmp_path: Path, opened: Open):
    said = {"thinking": "T", "memory": "M", "next_goal": "G"}
    step = {
        "model_output": {**said, "action": [{"open": {"url": "u"}}, {"wait": {}}]},
        "result": [{"extracted_content": "opened"}, {"error": "too long"}],
        "state": {"url": "u"},
        "state_message": "an empty page",
    }
    (tmp_path / "h.json").write_text(json.dumps({"history": [step, {**step, "state_message": None}]}))
    record = opened(tmp_path / "h.json").bodies.trajectory(1)
    turn = ("", "T", [("open", {"url": "u"}, "opened", None), ("wait", {}, "", "too long")])
    assert shown(record) == [[("user", "an empty page")], turn, turn]
    assert record.trajectory.steps[0].text == "M\nG"
