"""Logs of Claude Code in shapes that the truth test does not write."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import TrajectoryRecord

Open = Callable[[Path | str], RunReader]
ENTRY = {"sessionId": "s", "version": "2.1.220", "cwd": "/w", "isSidechain": False}


def entry(uuid: str, parent: str | None, text: str = "", **more: Any) -> dict[str, Any]:
    """An entry of the agent (`a…`) or of the user (`u…`)."""
    kind = "assistant" if uuid.startswith("a") else "user"
    said = {"role": kind, "content": [{"type": "text", "text": text or uuid}]}
    said |= {"id": f"msg_{uuid}", "model": "claude", "stop_reason": "end_turn"} if kind == "assistant" else {}
    return {**ENTRY, "type": kind, "uuid": uuid, "parentUuid": parent, "message": said, **more}


def read(path: Path, opened: Open, *entries: dict[str, Any]) -> list[TrajectoryRecord]:
    path.mkdir(exist_ok=True)
    (path / "s.jsonl").write_text("".join(json.dumps(e) + "\n" for e in entries))
    reader = opened(path)
    return [reader.bodies.trajectory(row.n) for row in reader.rollouts.page(limit=100)]


def said(record: TrajectoryRecord) -> list[str]:
    return [part for step in record.trajectory.steps for part in (step.text, step.observation) if part]


def test_entries_that_a_resumed_session_writes_twice_count_once(tmp_path: Path, opened: Open):
    first = [entry("u1", None), entry("a1", "u1"), entry("u2", "a1"), entry("a2", "u2")]
    (record,) = read(tmp_path / "d", opened, *first, *first[2:], entry("u3", "a2"), entry("a3", "u3"))
    assert said(record) == ["a1", "u2", "a2", "u3", "a3"]


def test_the_conversation_before_a_compaction_stays(tmp_path: Path, opened: Open):
    start = [
        entry("u1", None),
        entry("a1", "u1"),
        entry("u2", "a1", "taken back"),
        entry("u3", "a1"),
        entry("a3", "u3"),
    ]
    boundary = {**ENTRY, "type": "system", "subtype": "compact_boundary", "uuid": "c", "parentUuid": None}
    end = [entry("u4", "c", "summary", isCompactSummary=True), entry("a4", "u4")]
    for more in ({}, {"logicalParentUuid": "a3"}):
        (record,) = read(tmp_path / "d", opened, *start, {**boundary, **more}, *end)
        assert said(record) == ["a1", "u3", "a3", "summary", "a4"]


def test_an_entry_whose_parent_is_missing_follows_the_one_before_it(tmp_path: Path, opened: Open):
    (record,) = read(
        tmp_path / "d", opened, entry("u1", None), entry("a1", "u1"), entry("u2", "lost"), entry("a2", "u2")
    )
    assert said(record) == ["a1", "u2", "a2"]


def test_a_log_without_parents_is_read_in_its_order(tmp_path: Path, opened: Open):
    (record,) = read(tmp_path / "d", opened, *(entry(name, None) for name in ("u1", "a1", "u2", "a2")))
    assert said(record) == ["a1", "u2", "a2"]


def test_a_subagent_is_a_rollout_of_its_own_also_with_missing_parents(tmp_path: Path, opened: Open):
    side = {"isSidechain": True, "agentId": "x"}
    main = [entry("u1", None), entry("a1", "u1")]
    main, sub = read(
        tmp_path / "d", opened, *main, entry("u8", None, **side), entry("a8", "u8", **side), entry("a9", "lost", **side)
    )
    assert (main.trajectory.id, said(main)) == ("s", ["a1"])
    assert (sub.trajectory.id, sub.trajectory.agent, said(sub)) == ("s:agent-x", "agent-x", ["a8", "a9"])


def test_the_stream_that_claude_prints(tmp_path: Path, opened: Open):
    base = {"session_id": "s", "parent_tool_use_id": None}
    begin = {"type": "system", "subtype": "init", "session_id": "s", "cwd": "/w", "model": "claude", "tools": ["Bash"]}
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "b.txt", "is_error": True}
    talk = [
        {"type": "assistant", "message": {"id": "m1", "role": "assistant", "content": [call]}, "uuid": "1", **base},
        {"type": "user", "message": {"role": "user", "content": [result]}, "uuid": "2", **base},
        {"type": "assistant", "message": {"id": "m2", "role": "assistant", "content": [{"type": "text", "text": "b"}]},
         "uuid": "3", **base},
    ]  # fmt: skip
    end = {"type": "result", "subtype": "error_max_turns", "is_error": True, "duration_ms": 1500, "session_id": "s"}
    (record,) = read(tmp_path / "d", opened, begin, *talk, end)
    trajectory = record.trajectory
    assert [(c.name, c.arguments, c.result, bool(c.error)) for s in trajectory.steps for c in s.calls] == [
        ("Bash", {"command": "ls"}, "b.txt", True)
    ]
    assert (trajectory.steps[1].text, trajectory.error, trajectory.seconds) == ("b", "error_max_turns", 1.5)
