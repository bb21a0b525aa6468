"""The requests of a batch and their answers, which APIs keep in separate files."""

from __future__ import annotations

import errno
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.imports.check import diagnose
from grpo_tui.engine.runs.read.reader import RunReader

Open = Callable[[Path], RunReader]
Batch = tuple[Any, Any]


def openai(name: str, asked: str, *answers: str) -> Batch:
    body = {"model": "m", "n": len(answers), "messages": [{"role": "user", "content": asked}]}
    choices = [{"index": i, "message": {"role": "assistant", "content": a}} for i, a in enumerate(answers)]
    response = {"status_code": 200, "body": {"choices": choices}}
    request = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return request, {"id": "b", "custom_id": name, "response": response, "error": None}


def responses(name: str, asked: str, answer: str) -> Batch:
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": answer}]}]
    response = {"status_code": 200, "body": {"object": "response", "output": output, "error": None}}
    return {"custom_id": name, "body": {"input": asked}}, {"custom_id": name, "response": response, "error": None}


def anthropic(name: str, asked: str, answer: str) -> Batch:
    message = {"type": "message", "role": "assistant", "content": [{"type": "text", "text": answer}]}
    asks = {"max_tokens": 9, "messages": [{"role": "user", "content": asked}]}
    return {"custom_id": name, "params": asks}, {"custom_id": name, "result": {"type": "succeeded", "message": message}}


def gemini(name: str, asked: str, answer: str) -> Batch:
    request = {"contents": [{"role": "user", "parts": [{"text": asked}]}]}
    return (
        {"key": name, "request": request},
        {"key": name, "response": {"candidates": [{"content": {"role": "model", "parts": [{"text": answer}]}}]}},
    )


def write(path: Path, *documents: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(d) + "\n" for d in documents))


def shown(reader: RunReader) -> list[tuple[str, str, list[str]]]:
    """Ids with prompts as lists and bodies show them, and the answers."""
    found = []
    for row in reader.rollouts.page():
        t = reader.bodies.trajectory(row.n).trajectory
        assert t.prompt == row.prompt and row.turns in (len(t.steps), None)
        found.append((t.id, t.prompt, [s.text for s in t.steps]))
    return sorted(found)


@pytest.mark.parametrize("api", [openai, responses, anthropic, gemini])
@pytest.mark.parametrize("names", [("a_out", "b_in"), ("in/1", "out/1")])
def test_answers_in_any_order_join_their_requests(api: Any, names: tuple[str, str], tmp_path: Path, opened: Open):
    """A request without an answer has no turns yet, and is no finding."""
    (q0, a0), (q1, a1), (q2, _) = (api(f"q{i}", f"{i} + 1?", str(i + 1)) for i in range(3))
    answers, requests = sorted(names, key=lambda name: "in" in name)
    write(tmp_path / "d" / f"{answers}.jsonl", a1, a0)
    write(tmp_path / "d" / f"{requests}.jsonl", q0, q1, q2)
    reader = opened(tmp_path / "d")
    assert shown(reader) == [("q0", "0 + 1?", ["1"]), ("q1", "1 + 1?", ["2"]), ("q2", "2 + 1?", [])]
    assert [row.turns for row in reader.rollouts.page()].count(None) == 1 and diagnose(reader).found() == []


@pytest.mark.parametrize("pack", ["list", "requests", "gzip"])
def test_requests_are_found_in_any_container(pack: str, tmp_path: Path, opened: Open):
    (q0, a0), (q1, a1) = (anthropic(f"q{i}", f"{i} + 1?", str(i + 1)) for i in range(2))
    file = tmp_path / "in.json"
    if pack == "gzip":
        file.write_bytes(gzip.compress("".join(json.dumps(q) + "\n" for q in (q0, q1)).encode()))
    else:
        file.write_text(json.dumps([q0, q1] if pack == "list" else {"requests": [q0, q1]}, indent=1))
    assert shown(opened(tmp_path)) == [("q0", "0 + 1?", []), ("q1", "1 + 1?", [])]
    write(tmp_path / "out.jsonl", a1, a0)
    assert shown(opened(tmp_path)) == [("q0", "0 + 1?", ["1"]), ("q1", "1 + 1?", ["2"])]
    assert shown(opened(tmp_path / "out.jsonl")) == shown(opened(tmp_path)), "the answers alone"


def test_each_of_several_answers_has_the_prompt(tmp_path: Path, opened: Open):
    """One request for two answers, answered in two batches."""
    request, answer = openai("q", "1 + 1?", "2", "3")
    write(tmp_path / "in.jsonl", request)
    write(tmp_path / "out.jsonl", answer)
    assert shown(opened(tmp_path)) == [("q:0", "1 + 1?", ["2"]), ("q:1", "1 + 1?", ["3"])]
    write(tmp_path / "out2.jsonl", openai("q", "", "4", "5")[1])
    reader = opened(tmp_path)
    assert [a for _, asked, (a,) in shown(reader) if asked] == ["2", "4", "3", "5"]
    assert len({row.group for row in reader.rollouts.page()}) == 1


def test_batches_with_the_same_ids_are_not_confused(tmp_path: Path, opened: Open):
    """The names of their files join them. Without such names, a prompt is unknown."""
    for batch in ("3", "7"):
        request, answer = openai("0", f"{batch} + 1?", str(int(batch) + 1))
        write(tmp_path / f"batch_{batch}_requests.jsonl", request)
        write(tmp_path / f"batch-{batch}-output.jsonl", answer)
    write(tmp_path / "errors.jsonl", {"custom_id": "0", "response": {"body": {"error": {"message": "no"}}}})
    assert shown(opened(tmp_path)) == [("0", "", []), ("0", "3 + 1?", ["4"]), ("0", "7 + 1?", ["8"])]


def test_a_folder_that_cannot_be_listed_leaves_the_answers_readable(
    tmp_path: Path, opened: Open, monkeypatch: pytest.MonkeyPatch
):
    request, answer = openai("a", "2 + 2?", "4")
    write(tmp_path / "answers" / "out.jsonl", answer)
    write(tmp_path / "closed" / "in.jsonl", request)
    listed = os.scandir

    def scandir(path: Any = ".") -> Any:
        if Path(path).name == "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    (found,) = shown(opened(tmp_path))
    assert found[2] == ["4"]
