"""Evaluations of a model behind a real HTTP server, through the command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.configs.loading import load_config
from grpo_tui.configs.writing import to_yaml
from grpo_tui.engine.evaluation.results import Evaluation, EvaluationError, read_evaluation
from grpo_tui.engine.evaluation.subjects import find_subject
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.engine.training import evaluate
from grpo_tui.rewards.chat_completions import ChatError
from tests.e2e.world import variables
from tests.engine.evaluation import endpoint_server
from tests.engine.evaluation.endpoint_server import ChatServer, Refusal, serving
from tests.forked import forked_processes

CONFIG = """
model: {base: "builtin:tiny", sft_adapters: null, device: cpu}
environment: {class_path: "grpo_tui.envs.calculator.CalculatorEnv", eval_tasks: 8}
training: {max_turn_tokens: 40}
evaluation: {tries: 2}
"""
KEY = "sk-secret-of-the-test-1234567890"


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serving() as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "calculator.yaml").write_text(CONFIG)
    return tmp_path


def command(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    with forked_processes():
        return subprocess.run(
            [sys.executable, "-m", "grpo_tui.tui.cli", "eval", *arguments],
            cwd=folder,
            env=variables(**extra),
            capture_output=True,
            text=True,
            timeout=240,
            stdin=subprocess.DEVNULL,
        )


def evaluated(folder: Path, *arguments: str, **extra: str) -> dict[str, Any]:
    done = command(folder, *arguments, "--config", "calculator.yaml", "--json", **extra)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_endpoint_uses_the_tools_and_is_compared_with_a_policy(folder: Path, server: ChatServer) -> None:
    answer = evaluated(
        folder, "builtin:tiny", f"{server.url}/", "--model", "org/calc", "--tasks", "6", OPENAI_API_KEY=KEY
    )
    base, found = answer["evaluations"]
    assert found["success"]["estimate"] == 1.0 and base["success"]["estimate"] < 1.0
    assert found["subject"] == f"{server.url}@org/calc" and found["tasks"] == base["tasks"] == 6
    assert len(answer["differences"][0]["gained"]) == 6 - round(6 * base["success"]["estimate"])
    first, last = server.asked[1], max(server.asked, key=lambda body: len(body["messages"]))
    assert first["path"] == "/v1/chat/completions" and first["model"] == "org/calc" and first["temperature"] == 0
    assert {tool["function"]["name"] for tool in first["tools"]} == {"CALCULATE", "ANSWER"}
    assert first["max_tokens"] == 40 and server.keys == {f"Bearer {KEY}"}
    called, observed = last["messages"][-2:]
    assert observed["role"] == "tool" and observed["tool_call_id"] == called["tool_calls"][0]["id"]
    assert observed["content"].startswith("r")
    run = Path(found["run"])
    with RunReader(run) as reader:
        row = reader.rollouts.page(limit=1)[0]
        shown = reader.bodies.trajectory(row.n)
    assert "I calculate." in shown.trajectory.steps[0].thought
    assert shown.tokens is None and row.tokens and row.tokens > 10
    held = [file for file in run.rglob("*") if file.is_file() and KEY.encode() in file.read_bytes()]
    assert not held, held


def run(folder: Path, server: ChatServer, name: str = "run", tasks: int = 8, **settings: Any) -> Evaluation:
    """Evaluate the endpoint in this process. settings: of the section `evaluation`, or `tool_calls`."""
    base = load_config(str(folder / "calculator.yaml"))
    model = {"base": f"{server.url}@calc", "tool_calls": settings.pop("tool_calls", "auto")}
    spec = base.evaluation.model_copy(update={"subject": model["base"], **settings})
    config = base.model_copy(
        update={
            "mode": "eval",
            "model": base.model.model_copy(update=model),
            "environment": base.environment.model_copy(update={"eval_tasks": tasks}),
            "evaluation": spec,
        }
    )
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "config.yaml").write_text(to_yaml(config))
    writer = RunWriter(folder / name)
    try:
        assert evaluate.run_eval(config, folder / name, writer)
    finally:
        writer.close()
    return read_evaluation(folder / name)


def test_without_tools_the_prompt_explains_them(folder: Path, server: ChatServer) -> None:
    server.usage, server.wrong = False, "then multiply"
    server.refuse = lambda body, number: (400, {}, "this server takes no tools") if "tools" in body else None
    with pytest.raises(ChatError, match="tool_calls=json explains them"):
        run(folder, server)
    found = run(folder, server, "json", tool_calls="json", samples=2, temperature=0.5, request={"max_tokens": None})
    asked = [body for body in server.asked if "tools" not in body]
    tasks = {next(m["content"] for m in body["messages"] if "start " in m["content"]) for body in asked}
    assert len(tasks) == len(found.tasks) == 8
    assert sum(task.rate == 0 for task in found.tasks.values()) == sum("then multiply" in task for task in tasks) > 0
    assert "tokens" not in found.cost and found.cost["turns"].estimate > 1
    assert all("CALCULATE" in str(body["messages"][:-1] or body["messages"]) for body in asked[1:])
    assert all("max_tokens" not in body and body["temperature"] == 0.5 for body in asked)
    assert len({body["seed"] for body in asked[1:]}) == len(asked) - 1


def test_drafts_in_thoughts_and_parts_of_contents(
    folder: Path, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = endpoint_server.answer

    def answer(body: dict[str, Any], wrong: str) -> dict[str, Any]:
        message = right(body, wrong)
        draft = json.dumps({"name": "ANSWER", "arguments": {"text": "0"}})
        if "tools" in body:
            return {**message, "reasoning_content": f"I could write {draft}."}
        thought = {"type": "thinking", "thinking": [{"type": "text", "text": draft}]}
        return {**message, "content": [thought, {"type": "text", "text": message["content"]}]}

    monkeypatch.setattr(endpoint_server, "answer", answer)
    for name in ("auto", "json"):
        found = run(folder, server, name, tool_calls=name)
        assert found.success is not None and found.success.estimate == 1.0


def test_a_busy_server_is_asked_again(folder: Path, server: ChatServer) -> None:
    def refuse(body: dict[str, Any], number: int) -> Refusal | None:
        return (429, {"Retry-After": "0"}, "slow down") if number % 3 == 0 else None

    server.refuse = refuse
    found = run(folder, server, tries=12).success
    assert found is not None and found.estimate == 1.0


def test_a_conversation_that_is_too_long_for_the_server_ends_only_its_rollout(folder: Path, server: ChatServer) -> None:
    def refuse(body: dict[str, Any], number: int) -> Refusal | None:
        if number > 1 and "then multiply" in body["messages"][0]["content"]:
            return 400, {}, "This model's maximum context length is 16 tokens"
        return None

    server.refuse = refuse
    tasks = run(folder, server).tasks
    assert len(tasks) == 8 and {0.0, 1.0} == {task.rate for task in tasks.values()}
    assert all((task.rate == 0) == ("then multiply" in task.prompt) for task in tasks.values())


def test_a_refused_key_is_one_sentence_without_the_key(folder: Path, server: ChatServer) -> None:
    server.refuse = lambda body, number: (401, {}, f"Incorrect API key provided: {KEY}")
    done = command(folder, f"{server.url}@calc", "--config", "calculator.yaml", "--api-key-env", "MY_KEY", MY_KEY=KEY)
    assert done.returncode == 1 and "the key comes from $MY_KEY" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and KEY not in done.stderr + done.stdout
    assert not [f for f in folder.rglob("*") if f.is_file() and KEY.encode() in f.read_bytes()]


@pytest.mark.stress
def test_an_endpoint_that_is_gone_in_the_middle_leaves_an_evaluation_that_continues(
    folder: Path, server: ChatServer
) -> None:
    server.wrong = "then subtract"
    arguments = (f"{server.url}@calc", "--tasks", "100", "--set", "evaluation.tries=1")
    server.refuse = lambda body, number: (500, {}, "out of memory") if number > 190 else None
    done = command(folder, *arguments, "--config", "calculator.yaml", "--json")
    assert done.returncode == 1 and "500" in done.stderr and "resume: grpo-tui eval eval-calc" in done.stderr, (
        done.stderr
    )
    server.refuse = lambda body, number: None
    asked = len(server.asked)
    (continued,) = evaluated(folder, *arguments)["evaluations"]
    assert continued["tasks"] == 100 and len(server.asked) - asked < 150
    whole = run(folder, server, tasks=100, parallel=4)
    assert whole.success is not None and asdict(whole.success) == continued["success"]
    assert asdict(whole.cost["tokens"]) == continued["cost"]["tokens"]


def test_an_address_where_nothing_listens_is_one_sentence(folder: Path) -> None:
    with serving() as gone:
        url = gone.url
    with pytest.raises(ChatError, match=f"{url} did not answer: .*refused"):
        run(folder, gone)


@pytest.mark.parametrize(
    ("subject", "why"),
    [
        ("http://127.0.0.1:9/v1", "no model of"),
        ("http://user:pass@127.0.0.1:9/v1", "would be recorded with its key"),
        ("http://127.0.0.1:9/v1?api-key=12", "would be recorded with its key"),
    ],
)
def test_a_wrong_address_is_one_sentence(tmp_path: Path, subject: str, why: str) -> None:
    with pytest.raises(EvaluationError, match=why):
        find_subject(subject, tmp_path)


def test_the_model_of_an_address_comes_before_the_option(tmp_path: Path) -> None:
    found = [find_subject(text, tmp_path, "other").weights for text in ("http://host/v1@org/m@3", "https://host/v1/")]
    assert found == ["http://host/v1@org/m@3", "https://host/v1@other"]
