"""Traces of spans as the real packages of MLflow and LangSmith export them, and rows of Langfuse and Phoenix."""

from __future__ import annotations

import http.server
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.engine.imports.opening import open_dump
from grpo_tui.engine.runs.read.reader import RunReader

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
ASKED = [{"role": "user", "content": "What is 1 + 2, please? Use the tool, and answer in one short sentence."}]
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
HEARD = {"role": "tool", "tool_call_id": "c1", "content": "3"}
ANSWERED = {"role": "assistant", "content": "It is 3."}


def chat(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A chat API that calls a tool and then answers."""
    message, reason = (CALLED, "tool_calls") if len(messages) == 1 else (ANSWERED, "stop")
    return {"choices": [{"finish_reason": reason, "message": message}], "usage": {"total_tokens": 20}}


def agent(chat: Callable[..., Any], add: Callable[[int, int], int]) -> str:
    messages = [*ASKED, chat(ASKED)["choices"][0]["message"]]
    messages.append({**HEARD, "content": str(add(1, 2))})
    return chat(messages)["choices"][0]["message"]["content"]


def add(a: int, b: int) -> int:
    return a + b


def check(reader: RunReader, component: str = "correctness", value: float | None = 0.25) -> None:
    """Every export holds this one rollout."""
    (row,) = reader.rollouts.page()
    t = reader.bodies.trajectory(row.n).trajectory
    assert (t.prompt, len(t.steps)) == (ASKED[0]["content"], 2)
    (call,) = t.steps[0].calls
    assert (call.name, call.arguments, call.result) == ("add", {"a": 1, "b": 2}, "3")
    assert t.steps[1].text == "It is 3."
    assert row.extra.get(f"component.{component}") == value


def written(folder: Path, rows: list[Any]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_traces_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], RunReader]):
    mlflow: Any = pytest.importorskip("mlflow", reason="traces are written by MLflow: pip install mlflow-skinny")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_TRACE_LOGGING", "false")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    traced = {kind: mlflow.trace(span_type=kind) for kind in ("AGENT", "CHAT_MODEL", "TOOL")}
    traced["AGENT"](agent)(traced["CHAT_MODEL"](chat), traced["TOOL"](add))
    trace = mlflow.get_last_active_trace_id()
    mlflow.log_feedback(trace_id=trace, name="correctness", value=0.25)
    folder = written(tmp_path / "out", [json.loads(mlflow.get_trace(trace).to_json())])
    check(opened(folder))
    assert open_dump(folder, whole=True).summary["coverage"] == {"share": None, "low": {}}, "a status is no text"


@contextmanager
def langsmith_server() -> Iterator[tuple[str, dict[str, dict[str, Any]]]]:
    """A server that keeps the runs that LangSmith's client sends."""
    runs: dict[str, dict[str, Any]] = {}
    limits = {"use_multipart_endpoint": False, "size_limit": 100, "size_limit_bytes": 1 << 24}
    limits |= {"scale_up_qsize_trigger": 1000, "scale_up_nthreads_limit": 16, "scale_down_nempty_trigger": 4}

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            return

        def answer(self, data: object) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(data).encode())

        def do_GET(self) -> None:
            self.answer({"version": "0.13.0", "batch_ingest_config": limits})

        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for run in (*sent.get("post", ()), *sent.get("patch", ())):
                runs.setdefault(run["id"], {}).update({k: v for k, v in run.items() if v is not None})
            self.answer({})

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", runs
    finally:
        server.shutdown()


def test_runs_of_langsmith(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Callable[[Path], RunReader]):
    langsmith: Any = pytest.importorskip("langsmith", reason="runs are written by langsmith: pip install langsmith")
    from langsmith.schemas import Run  # pyright: ignore[reportMissingImports]

    monkeypatch.setenv("LANGSMITH_TRACING", "true")
    with langsmith_server() as (address, runs):
        client = langsmith.Client(api_url=address, api_key="x")
        traced = {kind: langsmith.traceable(run_type=kind, client=client) for kind in ("chain", "llm", "tool")}
        traced["chain"](agent)(traced["llm"](chat), traced["tool"](add))
        client.flush()
    rows = []
    for sent in runs.values():
        stats = None if sent.get("parent_run_id") else {"correctness": {"n": 1, "avg": 0.25}}
        run = Run(**{**sent, "session_id": uuid.uuid4(), "feedback_stats": stats})
        rows.append(run.model_dump(mode="json"))
    assert len(rows) == 4
    check(opened(written(tmp_path / "out", rows)))


def test_rows_that_langfuse_exports_to_a_blob_storage(tmp_path: Path, opened: Callable[[Path], RunReader]):
    """The columns of the three tables of langfuse 3; input and output are texts."""
    every = {"project_id": "p", "environment": "default", "metadata": {}}
    trace = {**every, "id": "t1", "timestamp": "2026-01-01 00:00:00.000", "name": "agent", "user_id": None,
             "session_id": None, "release": None, "version": None, "public": False, "bookmarked": False, "tags": [],
             "input": json.dumps(ASKED[0]["content"]), "output": json.dumps("It is 3.")}  # fmt: skip

    def observation(second: int, type_: str, asked: Any, said: Any) -> dict[str, Any]:
        return {**every, "id": f"o{second}", "trace_id": "t1", "type": type_, "parent_observation_id": None,
                "start_time": f"2026-01-01 00:00:0{second}.000", "end_time": None, "name": "add", "level": "DEFAULT",
                "status_message": None, "version": None, "input": json.dumps(asked), "output": json.dumps(said),
                "provided_model_name": "m", "model_parameters": "{}", "usage_details": {"total": "20"},
                "cost_details": {}, "completion_start_time": None, "prompt_name": None,
                "prompt_version": None}  # fmt: skip

    steps = [
        observation(1, "GENERATION", ASKED, CALLED),
        observation(2, "TOOL", {"a": 1, "b": 2}, "3"),
        observation(3, "GENERATION", [*ASKED, CALLED, HEARD], ANSWERED),
    ]
    score = {**every, "id": "s1", "timestamp": "2026-01-01 00:00:09.000", "trace_id": "t1", "observation_id": None,
             "name": "correctness", "value": 0.25, "source": "API", "comment": None, "data_type": "NUMERIC",
             "string_value": None}  # fmt: skip
    folder = tmp_path / "out"
    folder.mkdir()
    for name, rows in (("observations", steps), ("scores", [score]), ("traces", [trace])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reader = opened(folder)
    check(reader)
    assert reader.rollouts.page()[0].id == "t1"


def test_spans_that_phoenixs_client_returns(tmp_path: Path, opened: Callable[[Path], RunReader]):
    """`Client().spans.get_spans` of arize-phoenix-client 3.5 returns objects of this shape (its type `Span`)."""

    def span(second: int, kind: str, attributes: dict[str, Any], parent: str | None, error: str = "") -> dict[str, Any]:
        flat = {f"llm.{side}_messages.{at}.message.{key}": value
                for side in ("input", "output") for at, message in enumerate(attributes.pop(side, ()))
                for key, value in _flat(message).items()}  # fmt: skip
        row = {"id": "x", "name": kind, "context": {"trace_id": "t1", "span_id": f"s{second}"},
               "span_kind": kind, "start_time": f"2026-01-01T00:00:0{second}+00:00",
               "end_time": "2026-01-01T00:00:09+00:00", "status_code": "ERROR" if error else "OK",
               "status_message": error, "attributes": {"openinference.span.kind": kind, **flat, **attributes},
               "events": []}  # fmt: skip
        return row if parent is None else {**row, "parent_id": parent}

    rows = [
        span(0, "AGENT", {"input.value": "x"}, None, "the run was stopped"),
        span(1, "LLM", {"input": ASKED, "output": [CALLED]}, "s0"),
        span(3, "LLM", {"input": [*ASKED, CALLED, HEARD], "output": [ANSWERED]}, "s0"),
    ]
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "spans.json").write_text(json.dumps(rows))
    reader = opened(folder)
    check(reader, value=None)
    assert reader.bodies.trajectory(1).trajectory.error == "the run was stopped"


def _flat(message: dict[str, Any]) -> dict[str, Any]:
    """OpenInference's attributes of a message."""
    named = {k: v for k, v in message.items() if isinstance(v, str)}
    for at, call in enumerate(message.get("tool_calls", ())):
        start = f"tool_calls.{at}.tool_call"
        named |= {f"{start}.id": call["id"], f"{start}.function.name": call["function"]["name"]}
        named[f"{start}.function.arguments"] = call["function"]["arguments"]
    return named
