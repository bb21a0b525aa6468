"""HTTP: what is right is answered; what is wrong gets 4xx with a reason, and nothing of it reaches the policy."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from PIL import Image

from grpo_tui.configs.sections import EnvironmentConfig
from grpo_tui.engine.online.serve.inference_engine import Answer
from grpo_tui.engine.online.serve.requests import RequestSource
from grpo_tui.engine.online.serve.server import AnswerServer, ServeError, is_loopback, parse_address
from grpo_tui.engine.online.serve.voting import gate, vote

LIMIT = 20_000


class World:
    """A server, and a stand-in for the engine's loop that answers "red" and keeps what reached it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.source = RequestSource(open_ended=True)
        self.reached: list[Any] = []
        self.error: str | None = None
        self.server = AnswerServer(
            "127.0.0.1:0",
            self.source,
            EnvironmentConfig(class_path="a.b.C"),
            model="tiny",
            uploads=folder / "uploads",
            max_body_bytes=LIMIT,
            **options,
        )
        self.server.start()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            for request in self.source.take(4, 0.02):
                self.reached.append(request)
                outcome = vote(["red", "red", "blue"])
                assert request.reply is not None
                request.reply(
                    Answer(
                        request, outcome, outcome, gate(outcome, 0.5), [], 7, None, 0.1, error=self.error
                    )  # samples: none
                )

    def close(self) -> None:
        self.server.stop()
        self._stop.set()
        self._thread.join()

    def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        content = body if isinstance(body, (bytes, str)) else json.dumps(body)
        sent = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return httpx.post(self.server.url + path, content=content, headers=sent, timeout=20)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("http"))
    yield made
    made.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, token="secret")
    yield made
    made.close()


ASK = {"model": "tiny", "messages": [{"role": "user", "content": "What colour is it?"}]}


def test_a_chat_completion(world: World) -> None:
    answer = world.post({**ASK, "n": 1, "stream": False, "user": "me"})
    assert answer.status_code == 200
    body = answer.json()
    assert body["object"] == "chat.completion" and body["model"] == "tiny"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "red"}
    assert body["grpo_tui"]["confidence"] == pytest.approx(2 / 3, abs=1e-4)
    assert "trajectory_id" in body["grpo_tui"] and body["grpo_tui"]["policy_version"] == 7
    row = world.reached[-1].row
    assert (row.env_class_path, row.task_data) == ("a.b.C", {"question": "What colour is it?"})


def test_a_picture_becomes_a_file_and_nothing_else_is_fetched(world: World) -> None:
    data = io.BytesIO()
    Image.new("RGB", (8, 6), (255, 0, 0)).save(data, "PNG")
    url = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
    assert world.post({"messages": [{"role": "user", "content": parts}]}).status_code == 200
    task = world.reached[-1].row.task_data
    assert task["question"] == "What?"
    with Image.open(task["image"]) as picture:
        assert picture.size == (8, 6)
    before = len(world.reached)
    for bad in ("file:///etc/passwd", "/etc/passwd", "http://127.0.0.1/x.png", "data:image/png;base64,@@", url[:-30]):
        parts[1]["image_url"] = {"url": bad}
        refused = world.post({"messages": [{"role": "user", "content": parts}]})
        assert refused.status_code == 400, bad
    assert len(world.reached) == before


def test_rows_and_models_and_health(world: World) -> None:
    answer = world.post({"id": "mine", "task_data": {"a": 1}}, path="/v1/requests")
    assert answer.json() == {
        "id": "mine",
        "answer": "red",
        "confidence": pytest.approx(2 / 3, abs=1e-4),
        "trajectory_id": "",
        "request": 0,
        "policy_version": 7,
    }
    assert httpx.get(world.server.url + "/v1/models").json()["data"][0]["id"] == "tiny"
    assert httpx.get(world.server.url + "/health").json() == {"status": "ok"}


WRONG: list[tuple[Any, int, str]] = [
    (b"", 400, "not JSON"),
    (b'{"messages": ', 400, "not JSON"),
    (b'{"messages": NaN}', 400, "NaN is not JSON"),
    (b"\xff\xfe", 400, "not JSON"),
    ("[" * 9_000, 400, "nested too deeply"),
    (b"[1, 2]", 400, "must be a JSON object, not list"),
    ({}, 400, "messages must be a list"),
    ({"messages": []}, 400, "messages must be a list"),
    ({"messages": [{"role": "system", "content": "x"}]}, 400, "of the role user"),
    ({"messages": [*ASK["messages"], *ASK["messages"]]}, 400, "exactly one message"),
    ({"messages": [{"role": "user", "content": ""}]}, 400, "content must be text"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "content must be text"),
    ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 400, "content[0] must be"),
    ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, 400, "unknown field 'name'"),
    ({**ASK, "temperature": 0.1}, 400, "unknown field 'temperature'"),
    ({**ASK, "n": 2}, 400, "n must be 1"),
    ({**ASK, "stream": True}, 400, "stream must be false"),
    ({**ASK, "model": 1}, 400, "model must be text"),
    ({**ASK, "task_data": {}}, 400, "not both"),
    ({"task_data": 5}, 400, "task_data must be a mapping"),
]


@pytest.mark.parametrize(("body", "status", "reason"), WRONG)
def test_wrong_bodies(world: World, body: Any, status: int, reason: str) -> None:
    before = len(world.reached)
    answer = world.post(body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert reason in error["message"] and error["type"] == "invalid_request_error"
    assert len(world.reached) == before


def test_a_caller_cannot_name_code_to_load(world: World) -> None:
    before = len(world.reached)
    answer = world.post({"task_data": {}, "env_class_path": "os.system"}, path="/v1/requests")
    assert answer.status_code == 400 and "fixed by the run's configuration" in answer.text
    assert len(world.reached) == before


def test_oversized_missing_and_lying_lengths(world: World) -> None:
    before = len(world.reached)
    answer = world.post({"messages": [{"role": "user", "content": "x" * LIMIT}]})
    assert answer.status_code == 413 and f"the limit is {LIMIT}" in answer.text

    def raw(text: str) -> str:
        with socket.create_connection((world.server.host, world.server.port), timeout=20) as connection:
            connection.sendall(text.encode())
            connection.shutdown(socket.SHUT_WR)
            return connection.makefile().read()

    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert "411" in raw(head + "\r\n").splitlines()[0]
    assert "411" in raw(head + "Content-Length: -5\r\n\r\n").splitlines()[0]
    assert "413" in raw(head + "Content-Length: 99999999999999\r\n\r\n").splitlines()[0]
    assert "ended after 2 of 50 bytes" in raw(head + "Content-Length: 50\r\n\r\n{}")
    assert "400" in raw("nonsense\r\n\r\n")
    assert len(world.reached) == before


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (lambda w: httpx.post(w.server.url + "/v1/chat/completions", content=b"{}"), 415),
        (lambda w: w.post(ASK, Content_Type="text/plain"), 415),
        (lambda w: w.post(ASK, path="/v1/other"), 404),
        (lambda w: httpx.get(w.server.url + "/"), 404),
        (lambda w: httpx.get(w.server.url + "/v1/chat/completions"), 405),
        (lambda w: w.post(ASK, Host="evil.example"), 403),
        (lambda w: w.post(ASK, Host="127.0.0.1.evil.example:80"), 403),
    ],
)
def test_wrong_ways_to_ask(world: World, ask: Callable[[World], httpx.Response], status: int) -> None:
    before = len(world.reached)
    answer = ask(world)
    assert answer.status_code == status and answer.json()["error"]["message"]
    assert len(world.reached) == before


def test_a_token_is_needed_where_there_is_one(guarded: World) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "secret"},
        {"Authorization": "Basic secret"},
    ):
        answer = guarded.post(ASK, **headers)
        assert answer.status_code == 401 and "Authorization: Bearer" in answer.text
    assert httpx.get(guarded.server.url + "/v1/models").status_code == 401
    assert guarded.reached == []
    assert guarded.post(ASK, Authorization="Bearer secret").status_code == 200


def test_open_to_others_only_with_a_token(tmp_path: Path) -> None:
    options = SimpleNamespace(source=RequestSource(), environment=EnvironmentConfig())
    with pytest.raises(ServeError, match="set GRPO_TUI_TOKEN"):
        AnswerServer("0.0.0.0:0", options.source, options.environment, model="m", uploads=tmp_path)
    with pytest.raises(ServeError, match="right would be HOST:PORT"):
        parse_address("8000")
    assert parse_address(":8000") == ("127.0.0.1", 8000) and parse_address("[::1]:1") == ("::1", 1)
    assert is_loopback("::1") and is_loopback("localhost") and not is_loopback("10.0.0.1") and not is_loopback("")


def test_an_address_that_is_taken(world: World, tmp_path: Path) -> None:
    address = f"127.0.0.1:{world.server.port}"
    with pytest.raises(ServeError, match="cannot be served on"):
        AnswerServer(address, RequestSource(), EnvironmentConfig(), model="m", uploads=tmp_path)


def test_too_many_waiting_and_a_task_that_cannot_begin(tmp_path: Path) -> None:
    made = World(tmp_path)
    made.error = "reset: task_data needs a question"
    answer = made.post(ASK)
    assert answer.status_code == 422 and "needs a question" in answer.text
    made.close()
    made.source._calls.maxsize = 1
    made.source.submit(made.reached[0])
    server = AnswerServer(
        "127.0.0.1:0", made.source, EnvironmentConfig(class_path="a.b.C"), model="m", uploads=tmp_path
    )
    server.start()
    answer = httpx.post(server.url + "/v1/chat/completions", json=ASK)
    assert answer.status_code == 503 and "too many requests" in answer.text
    server.stop()
