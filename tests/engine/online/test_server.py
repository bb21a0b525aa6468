"""HTTP: what is right is answered; what is wrong gets 4xx with a reason, and nothing of it reaches the policy."""

from __future__ import annotations

import base64
import io
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from PIL import Image

from grpo_tui.configs.sections import EnvironmentConfig
from grpo_tui.engine.online.serve import server
from grpo_tui.engine.online.serve.answers import Answer
from grpo_tui.engine.online.serve.http.guard import is_loopback
from grpo_tui.engine.online.serve.http.schema import Feedback
from grpo_tui.engine.online.serve.http.uploads import Uploads
from grpo_tui.engine.online.serve.requests import Request, RequestSource
from grpo_tui.engine.online.serve.server import AnswerServer, ServeError, parse_address
from grpo_tui.engine.online.serve.voting import gate, vote
from grpo_tui.envs.base import Env

LIMIT = 20_000
TOKENS = 256


class OwnEnv(Env):
    """Takes any question; with a picture or without."""

    def reset(self, task: Mapping[str, Any]) -> Any:
        return task, [{"role": "user", "content": str(task)}]

    def step(self, state: Any, call: Any) -> Any:
        raise AssertionError("no rollout is made here")


class PicturesOnly(OwnEnv):
    @classmethod
    def task_of_question(cls, question: str, images: Any) -> dict[str, Any] | None:
        return super().task_of_question(question, images) if images else None


class StandIn:
    """What the engine's process would tell the HTTP side; words are the tokens."""

    model = "tiny"
    environment = EnvironmentConfig(class_path="a.b.C")
    env_class: type[Env] | None = OwnEnv
    max_trajectory_tokens = TOKENS
    samples = 3
    timeout_s = 20.0
    worker = "running"

    def __init__(self) -> None:
        self.said: list[Feedback] = []
        self.sources: list[str] = []

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def versions(self) -> list[int]:
        return [3, 7]

    def serving_version(self) -> int:
        return 7

    def learning(self) -> str:
        return self.worker

    async def feedback(self, feedback: Feedback, source: str) -> Mapping[str, Any]:
        self.said.append(feedback)
        self.sources.append(source)
        if feedback.id != "1":
            raise KeyError(feedback.id)
        return {"request": 1, "learned": True}


class World:
    """A server, and a stand-in for the engine's loop that answers "red" and keeps what reached it."""

    def __init__(self, folder: Path, *, max_waiting: int = 64, **options: Any) -> None:
        self.source = RequestSource(open_ended=True, max_waiting=max_waiting)
        self.backend = StandIn()
        self.reached: list[Request] = []
        self.error: str | None = None
        self.text = "red"
        self.serve = threading.Event()
        self.serve.set()
        self.uploads = Uploads(folder / "uploads", (folder / "shared",))
        self.server = AnswerServer(
            "127.0.0.1:0", self.source, self.backend, uploads=self.uploads, max_body_bytes=LIMIT, **options
        )
        self.server.start()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._stop.is_set():
            if not self.serve.wait(0.02):
                continue
            for request in self.source.take(4, 0.02):
                self.reached.append(request)
                outcome = vote([self.text, self.text, "blue"])
                assert request.reply is not None
                answer = Answer(request, outcome, outcome, gate(outcome, 0.5), [], 7, None, 0.1, error=self.error)
                request.reply(answer)

    def close(self) -> None:
        self.server.stop()
        self._stop.set()
        self._thread.join()

    def post(self, body: Any, path: str = "/v1/chat/completions", **headers: str) -> httpx.Response:
        content = body if isinstance(body, (bytes, str)) else json.dumps(body)
        sent = {"content-type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return httpx.post(self.server.url + path, content=content, headers=sent, timeout=20)

    def client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.server.url}/v1", api_key="secret", max_retries=0, **options)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("http"))
    yield made
    made.close()


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, tokens=("other", "secret"))
    yield made
    made.close()


QUESTION: list[Any] = [{"role": "user", "content": "What colour is it?"}]
ASK: dict[str, Any] = {"model": "tiny", "messages": QUESTION}


def picture_url() -> str:
    data = io.BytesIO()
    Image.new("RGB", (8, 6), (255, 0, 0)).save(data, "PNG")
    return "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()


# --------------------------------------------------------------------------------------------- OpenAI's own client


def test_the_official_client_gets_a_completion(world: World) -> None:
    answer = world.client().chat.completions.create(
        model="tiny",
        messages=[{"role": "system", "content": "Be brief."}, *QUESTION],
        temperature=0.2,
        max_tokens=12,
        user="me",
    )
    assert answer.choices[0].message.content == "red" and answer.choices[0].finish_reason == "stop"
    assert answer.model == "tiny" and answer.usage is not None and answer.id.startswith("chatcmpl-")
    assert answer.model_extra is not None
    assert answer.model_extra["grpo_tui"]["confidence"] == pytest.approx(2 / 3, abs=1e-4)
    reached = world.reached[-1]
    assert reached.row.env_class_path == "a.b.C"
    assert reached.row.task_data == {"question": "What colour is it?", "system_prompt": "Be brief."}
    assert (reached.sampling.temperature, reached.sampling.max_tokens) == (0.2, 12)
    assert reached.version is None


def test_the_official_client_streams(world: World) -> None:
    world.text = "red " * 40
    try:
        chunks = list(
            world.client().chat.completions.create(
                model="tiny", messages=QUESTION, stream=True, stream_options={"include_usage": True}
            )
        )
    finally:
        world.text = "red"
    pieces = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(pieces) == ("red " * 40).strip() and len(pieces) > 4
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].usage is not None and chunks[-1].choices == []


def test_the_official_client_uses_responses(world: World) -> None:
    answer = world.client().responses.create(model="tiny", input="What colour?", instructions="Be brief.")
    assert answer.output_text == "red" and answer.status == "completed"
    assert world.reached[-1].row.task_data == {"question": "What colour?", "system_prompt": "Be brief."}
    with world.client().responses.stream(model="tiny", input="What colour?") as stream:
        kinds = [event.type for event in stream]
        assert stream.get_final_response().output_text == "red"
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed"


def test_models_and_versions(world: World) -> None:
    client = world.client()
    assert [m.id for m in client.models.list()] == ["tiny", "tiny@0", "tiny@3", "tiny@7"]
    assert client.models.retrieve("tiny@3").id == "tiny@3"
    answer = client.chat.completions.create(model="tiny@3", messages=QUESTION)
    assert answer.model == "tiny@3" and world.reached[-1].version == 3
    before = len(world.reached)
    for name in ("gpt-4o", "tiny@5", "tiny@", "tiny@x", "tiny@" + "9" * 5000):
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            client.chat.completions.create(model=name, messages=QUESTION)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-4o")
    assert len(world.reached) == before


def test_errors_reach_the_official_client_as_its_own(guarded: World) -> None:
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{guarded.server.url}/v1", api_key="wrong", max_retries=0).models.list()
    client = guarded.client()
    assert client.models.list().data
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny", messages=QUESTION, n=3)
    assert caught.value.param == "n" and "n is not supported" in str(caught.value)


# --------------------------------------------------------------------------------------- conversations and pictures


def test_a_conversation_is_held_as_it_is(world: World) -> None:
    turns = [*QUESTION, {"role": "assistant", "content": "red"}, {"role": "user", "content": "Sure?"}]
    assert world.post({"messages": turns}).status_code == 200
    row = world.reached[-1].row
    assert row.env_class_path == "grpo_tui.envs.chat.ChatEnv" and row.task_data == {"messages": turns}


def test_a_question_in_words_is_answered_where_the_environment_needs_a_picture(tmp_path: Path) -> None:
    made = World(tmp_path)
    made.backend.env_class = PicturesOnly
    assert made.post(ASK).status_code == 200
    assert made.reached[-1].row.env_class_path == "grpo_tui.envs.chat.ChatEnv"
    parts = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": picture_url()}}]
    assert made.post({"messages": [{"role": "user", "content": parts}]}).status_code == 200
    assert made.reached[-1].row.env_class_path == "a.b.C"
    made.close()


def test_a_picture_becomes_a_file_and_nothing_else_is_fetched(world: World) -> None:
    url = picture_url()
    parts: list[Any] = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
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


def test_a_task_names_no_file_but_shared_ones_and_learns_nothing_of_the_disk(world: World, tmp_path: Path) -> None:
    shared = world.uploads.shared[0]
    shared.mkdir(exist_ok=True)
    Image.new("RGB", (2, 2)).save(shared / "a.png")
    private = tmp_path / "private.png"
    Image.new("RGB", (2, 2)).save(private)
    (shared / "link.png").symlink_to(private)
    for path, key in (("/v1/requests", "task_data"), ("/v1/chat/completions", "task_data")):
        assert world.post({key: {"image": str(shared / "a.png")}}, path=path).status_code == 200
        before = len(world.reached)
        answers = set()
        for name in (private, tmp_path / "missing.png", shared / "link.png", shared / ".." / ".." / "x.png", "a.png"):
            for task in ({"image": str(name)}, {"frames": [str(name)]}):
                refused = world.post({key: task}, path=path)
                answers.add((refused.status_code, refused.json()["error"]["message"].replace("frames", "image")))
        assert len(answers) == 1 and next(iter(answers))[0] == 400
        assert len(world.reached) == before


# ----------------------------------------------------------------------------------------------------- other routes


def test_rows_and_health_and_metrics(world: World) -> None:
    answer = world.post({"id": "mine", "task_data": {"a": 1}}, path="/v1/requests")
    assert answer.json() == {
        "id": "mine",
        "answer": "red",
        "confidence": pytest.approx(2 / 3, abs=1e-4),
        "trajectory_id": "",
        "request": 0,
        "policy_version": 7,
    }
    health = httpx.get(world.server.url + "/health")
    assert health.status_code == 200
    assert health.json() == {"status": "ok", "learning": "running", "policy_version": 7, "waiting": 0}
    world.backend.worker = "dead"
    dead = httpx.get(world.server.url + "/health")
    assert (dead.status_code, dead.json()["status"]) == (503, "degraded")
    world.backend.worker = "running"
    text = httpx.get(world.server.url + "/metrics").text
    assert 'grpo_tui_http_requests_total{path="/v1/requests",status="200"}' in text
    assert "grpo_tui_policy_version 7.0" in text and "grpo_tui_answer_seconds_count" in text


def test_a_persons_word(world: World) -> None:
    path = "/v1/feedback"
    answer = world.post({"id": "1", "verdict": "wrong", "answer": "blue"}, path=path)
    assert answer.json() == {"request": 1, "learned": True}
    assert world.backend.said[-1].answer == "blue"
    assert world.post({"id": "9", "verdict": "right"}, path=path).status_code == 404
    assert world.post({"id": "1"}, path=path).status_code == 400
    assert world.post({"id": "1", "verdict": "maybe"}, path=path).status_code == 400


# ------------------------------------------------------------------------------------------------ what is refused

WRONG: list[tuple[Any, int, str]] = [
    (b"", 400, "not JSON"),
    (b'{"messages": ', 400, "not JSON"),
    (b'{"messages": NaN}', 400, "NaN is not JSON"),
    (b"\xff\xfe", 400, "not JSON"),
    ("[" * 9_000, 400, "nested too deeply"),
    (b'{"task_data": ' + b'{"a":' * 80 + b"1" + b"}" * 81, 400, "nested too deeply"),
    (b'{"model": "other", "model": "tiny"}', 400, "the key 'model' comes twice"),
    (b'{"task_data": {"question": "half \\ud83d a face"}}', 400, "lone surrogate"),
    (b'{"max_tokens": ' + b"9" * 5000 + b"}", 400, "a number has 5000 digits"),
    (b"[1, 2]", 400, "must be a JSON object, not list"),
    ({}, 400, "give messages"),
    ({"messages": []}, 400, "messages is empty"),
    ({"messages": [{"role": "system", "content": "x"}]}, 400, "of the role user"),
    ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user", "content": ""}]}, 400, "holds no text"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 400, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "x", "colour": "y"}]}, 400, "messages[0].colour: is no known field"),
    ({**ASK, "temperature": -1}, 400, "temperature"),
    ({**ASK, "temperature": "hot"}, 400, "temperature"),
    ({**ASK, "max_tokens": 0}, 400, "max_tokens"),
    ({**ASK, "n": 2}, 400, "n is not supported"),
    ({**ASK, "tools": [{"type": "function"}]}, 400, "tools is not supported"),
    ({**ASK, "logprobs": True}, 400, "logprobs is not supported"),
    ({**ASK, "sampler": 1}, 400, "unknown field 'sampler'"),
    ({**ASK, "model": 1}, 400, "model"),
    ({**ASK, "task_data": {}}, 400, "not both"),
    ({"task_data": 5}, 400, "task_data"),
    ({"messages": [{"role": "user", "content": "word " * TOKENS}]}, 400, f"at most {TOKENS} tokens"),
    ({"messages": [{"role": "user", "content": "x" * (16 * TOKENS + 1)}]}, 400, "4097 characters"),
]


@pytest.mark.parametrize(("body", "status", "reason"), WRONG)
def test_wrong_bodies(world: World, body: Any, status: int, reason: str) -> None:
    before = len(world.reached)
    answer = world.post(body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert reason in error["message"] and error["type"] == "invalid_request_error"
    assert len(world.reached) == before


def test_text_of_any_language_and_numbers_of_any_size_are_taken(world: World) -> None:
    body = b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00 \xc3\xa9"}], "max_tokens": ' + b"9" * 200 + b"}"
    assert world.post(body).status_code == 200
    assert world.reached[-1].row.task_data["question"] == "\U0001f600 \u00e9"
    assert world.reached[-1].sampling.max_tokens == TOKENS


@pytest.mark.parametrize(
    "harmless",
    [{"n": 1}, {"seed": 1}, {"tools": []}, {"response_format": {"type": "text"}}, {"stop": None}, {"top_p": 1.0}],
)
def test_what_asks_for_nothing_is_taken(world: World, harmless: dict[str, Any]) -> None:
    assert world.post({**ASK, **harmless}).status_code == 200


def test_a_caller_cannot_name_code_to_load(world: World) -> None:
    before = len(world.reached)
    answer = world.post({"task_data": {}, "env_class_path": "os.system"}, path="/v1/requests")
    assert answer.status_code == 400 and "fixed by the run's configuration" in answer.text
    assert len(world.reached) == before


def test_oversized_missing_and_lying_lengths(world: World) -> None:
    before = len(world.reached)
    answer = world.post({"messages": [{"role": "user", "content": "x" * LIMIT}]})
    assert answer.status_code == 413 and f"the limit is {LIMIT}" in answer.text

    def status(text: str) -> str:
        with socket.create_connection((world.server.host, world.server.port), timeout=20) as connection:
            connection.sendall(text.encode())
            connection.shutdown(socket.SHUT_WR)
            return connection.makefile().readline()

    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert " 411 " in status(head + "\r\n")
    assert " 400 " in status(head + "Content-Length: -5\r\n\r\n")
    assert " 413 " in status(head + "Content-Length: 99999999999999\r\n\r\n")
    assert " 400 " in status(head + f"Content-Length: {'9' * 5000}\r\n\r\n")
    assert " 400 " in status(head + "Host: localhost\r\nContent-Length: 2\r\n\r\n{}")
    assert " 400 " in status("nonsense\r\n\r\n")
    assert world.post(ASK).status_code == 200
    assert len(world.reached) == before + 1


@pytest.mark.parametrize(
    ("ask", "status"),
    [
        (lambda w: httpx.post(w.server.url + "/v1/chat/completions", content=b"{}"), 415),
        (lambda w: w.post(ASK, content_type="text/plain"), 415),
        (lambda w: w.post(ASK, path="/v1/other"), 404),
        (lambda w: httpx.get(w.server.url + "/"), 404),
        (lambda w: httpx.get(w.server.url + "/v1/chat/completions"), 405),
        (lambda w: httpx.options(w.server.url + "/v1/chat/completions"), 405),
        (lambda w: httpx.put(w.server.url + "/v1/models"), 405),
        (lambda w: w.post(ASK, host="evil.example"), 403),
        (lambda w: w.post(ASK, host="127.0.0.1.evil.example:80"), 403),
    ],
)
def test_wrong_ways_to_ask(world: World, ask: Callable[[World], httpx.Response], status: int) -> None:
    before = len(world.reached)
    answer = ask(world)
    assert answer.status_code == status and answer.json()["error"]["message"]
    assert len(world.reached) == before


def test_a_token_is_needed_where_there_is_one(guarded: World) -> None:
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "secret"},
        {"Authorization": "Basic secret"},
    ]
    for headers in wrong:
        answer = guarded.post(ASK, **headers)
        assert answer.status_code == 401 and "Authorization: Bearer" in answer.text
    assert httpx.get(guarded.server.url + "/v1/models").status_code == 401
    assert httpx.get(guarded.server.url + "/metrics").status_code == 401
    assert guarded.reached == []
    for token in ("secret", "other"):
        assert guarded.post(ASK, Authorization=f"Bearer {token}").status_code == 200


def test_who_asks_is_known_by_token_else_by_address_and_no_header_changes_that(world: World, guarded: World) -> None:
    for body, headers in (
        (ASK, {}),
        (ASK, {"x_forwarded_for": "10.1.2.3", "authorization": "Bearer invented"}),
        ({**ASK, "user": "ann"}, {}),
        ({**ASK, "safety_identifier": "ann"}, {}),
        ({**ASK, "user": "bob"}, {}),
    ):
        assert world.post(body, **headers).status_code == 200
    address, forged, ann, same, bob = (r.source for r in world.reached[-5:])
    assert address == forged and "/" not in address
    assert ann == same != bob and {ann.partition("/")[0], bob.partition("/")[0]} == {address}
    assert "ann" not in ann and "127.0.0.1" not in address  # nothing that is kept names a person
    for token in ("secret", "other"):
        assert guarded.post({**ASK, "user": "ann"}, authorization=f"Bearer {token}").status_code == 200
    assert [r.source.partition("/")[0] for r in guarded.reached] == ["token-2", "token-1"]
    said = {"id": "1", "verdict": "wrong", "source": "carl"}
    assert guarded.post(said, "/v1/feedback", authorization="Bearer other").status_code == 200
    assert guarded.backend.sources[-1].startswith("token-1/")


def test_who_sends_a_head_drop_by_drop_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    world = World(tmp_path)
    try:
        with socket.create_connection((world.server.host, world.server.port), timeout=20) as slow:
            slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127")
            assert slow.recv(100) == b""
        with httpx.Client(base_url=world.server.url) as client:  # who waits for an answer is no such caller
            world.serve.clear()
            threading.Timer(0.8, world.serve.set).start()
            assert client.post("/v1/chat/completions", json=ASK).status_code == 200
            assert client.post("/v1/chat/completions", json=ASK).status_code == 200
    finally:
        world.close()


def test_open_to_others_only_with_a_token(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="set GRPO_TUI_TOKEN"):
        AnswerServer("0.0.0.0:0", RequestSource(), StandIn(), uploads=Uploads(tmp_path))
    with pytest.raises(ServeError, match="right would be HOST:PORT"):
        parse_address("8000")
    assert parse_address(":8000") == ("127.0.0.1", 8000) and parse_address("[::1]:1") == ("::1", 1)
    assert is_loopback("::1") and is_loopback("localhost") and not is_loopback("10.0.0.1") and not is_loopback("")


def test_an_address_that_is_taken(world: World, tmp_path: Path) -> None:
    address = f"127.0.0.1:{world.server.port}"
    with pytest.raises(ServeError, match="cannot be served on"):
        AnswerServer(address, RequestSource(), StandIn(), uploads=Uploads(tmp_path))


# ------------------------------------------------------------------------------------------------------ under load


def test_a_task_that_cannot_begin(tmp_path: Path) -> None:
    made = World(tmp_path)
    made.error = "reset: task_data needs a question"
    answer = made.post(ASK)
    assert answer.status_code == 422 and "needs a question" in answer.text
    made.close()


def test_too_many_callers_are_told_when_to_come_back_and_who_goes_is_dropped(tmp_path: Path) -> None:
    made = World(tmp_path, max_waiting=1)
    made.serve.clear()
    time.sleep(0.1)  # the stand-in's look at the queue that is under way ends
    first = threading.Thread(target=lambda: _quietly(made, timeout=0.5), daemon=True)
    first.start()
    while made.source.waiting == 0:
        time.sleep(0.01)
    full = made.post(ASK)
    assert full.status_code == 429 and int(full.headers["Retry-After"]) >= 1
    assert full.json()["error"]["type"] == "rate_limit_error"
    first.join()  # it hangs up
    until = time.monotonic() + 20
    while not all(r.cancelled.is_set() for r in list(made.source._callers)) and time.monotonic() < until:
        time.sleep(0.01)  # that is noticed on another thread
    made.serve.set()
    assert made.post({**ASK, "user": "next"}).status_code == 200
    assert len(made.reached) == 1
    made.close()


def _quietly(world: World, timeout: float) -> None:
    try:
        httpx.post(world.server.url + "/v1/chat/completions", json=ASK, timeout=timeout)
    except httpx.TimeoutException:
        return


def test_who_waits_when_the_run_is_stopped_is_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.serve.clear()
    found: list[httpx.Response] = []
    callers = [threading.Thread(target=lambda: found.append(world.post(ASK))) for _ in range(3)]
    for caller in callers:
        caller.start()
    while world.source.waiting < 3:
        time.sleep(0.01)
    world.close()
    for caller in callers:
        caller.join()
    assert [r.status_code for r in found] == [503] * 3
    assert all("is being stopped" in r.json()["error"]["message"] and "retry-after" in r.headers for r in found)


def test_a_caller_that_waited_too_long_is_told(tmp_path: Path) -> None:
    made = World(tmp_path)
    made.backend.timeout_s = 0.3
    made.serve.clear()
    time.sleep(0.1)
    late = made.post(ASK)
    assert late.status_code == 503 and "within 0.3 s" in late.text
    with httpx.stream("POST", made.server.url + "/v1/chat/completions", json={**ASK, "stream": True}) as streamed:
        assert "within 0.3 s" in "".join(streamed.iter_text())
    made.serve.set()
    time.sleep(0.1)
    assert made.reached == []
    made.close()


def ask(tokens: int = 0, **changes: Any) -> Request:
    row: Any = SimpleNamespace()
    return Request(row, tokens=tokens, **changes)


def test_what_is_answered_together_is_bounded_and_alike() -> None:
    from grpo_tui.engine.online.serve.requests import Sampling

    source = RequestSource(open_ended=True, batch_tokens=100)
    for request in (
        ask(40, id="a"),
        ask(500, id="long"),
        ask(40, id="b"),
        ask(10, id="own", sampling=Sampling(temperature=0.5)),
        ask(40, id="c"),
        ask(10, id="old", version=3),
    ):
        source.submit(request)
    batches = [[r.id for r in source.take(8, 0.01)] for _ in range(5)]
    assert batches == [["a", "b"], ["long"], ["own"], ["c"], ["old"]]


def test_a_socket_over_tls(tmp_path: Path) -> None:
    import ssl
    import subprocess

    made = subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            "key.pem",
            "-out",
            "cert.pem",
        ],
        cwd=tmp_path,
        capture_output=True,
    )
    assert made.returncode == 0, made.stderr
    world = World(tmp_path, certificate=tmp_path / "cert.pem", key=tmp_path / "key.pem")
    trusted = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    assert world.server.url.startswith("https://")
    assert httpx.post(world.server.url + "/v1/chat/completions", json=ASK, verify=trusted).status_code == 200
    world.close()
