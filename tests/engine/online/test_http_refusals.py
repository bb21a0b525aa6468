"""What is wrong gets 4xx with a reason, and nothing of it reaches the policy."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from grpo_tui.engine.online.serve.http.guard import is_loopback, parsed
from grpo_tui.engine.online.serve.http.problems import HttpProblem
from grpo_tui.engine.online.serve.server import AnswerServer, ServeError, parse_address
from grpo_tui.tui.app.screens.chat import ChatClient, ServerProblem

from .world import ASK, LIMIT, TOKENS, World

LITELLM = {"role": "assistant", "provider_specific_fields": {"refusal": None}}
WRONG: list[tuple[Any, int, str]] = [
    (b"", 400, "not JSON"),
    (b'{"messages": ', 400, "not JSON"),
    (b'{"messages": NaN}', 400, "NaN is not JSON"),
    (b'{"task_data": {"a": 1e999}}', 400, "1e999 is not a number"),
    ({"task_data": '{"a": [-1e999]}'}, 400, "task_data"),
    (b"\xff\xfe", 400, "not JSON"),
    ("[" * 4_500 + "]" * 4_500, 400, "nested too deeply"),
    (b'{"task_data": ' + b'{"a":' * 80 + b"1" + b"}" * 81, 400, "nested too deeply"),
    (b'{"model": "other", "model": "tiny"}', 400, "the key 'model' occurs twice"),
    (b'{"task_data": {"question": "half \\ud83d a face"}}', 400, "lone surrogate"),
    (b'{"task_data": {"question": "half \xed\xa0\xbd a face"}}', 400, "not JSON: 'utf-8' codec can't decode"),
    ('{"task_data": {"question": "half \\ud83d a face"}}'.encode("utf-16"), 400, "not JSON"),
    (b'{"max_tokens": ' + b"9" * 5000 + b"}", 400, "a number has 5000 digits"),
    (b"[1, 2]", 400, "must be a JSON object, not list"),
    ({}, 400, "give either messages"),
    ({"messages": []}, 400, "messages is empty"),
    ({"messages": [{"role": "system", "content": "x"}]}, 400, "of the role user"),
    ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages[0]: tool_call_id must be the id of a call"),
    ({"messages": [{"role": "judge", "content": "x"}]}, 400, "messages[0].role"),
    ({"messages": [{"role": "user", "content": ""}]}, 400, "contains no text"),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 400, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "x", "colour": "y"}]}, 400, "messages[0].colour: is not a known field"),
    ({**ASK, "temperature": -1}, 400, "temperature"),
    ({**ASK, "temperature": "hot"}, 400, "temperature"),
    ({**ASK, "max_tokens": 0}, 400, "max_tokens"),
    ({**ASK, "n": 2}, 400, "n is not supported"),
    ({**ASK, "tools": [{"type": "function"}]}, 400, "tools[0].function: is missing"),
    ({**ASK, "tools": [{"type": "function", "function": {"name": "f"}}]}, 400, "tools: this policy has none"),
    ({**ASK, "logprobs": True}, 400, "logprobs is not supported"),
    ({**ASK, "sampler": 1}, 400, "unknown field 'sampler'"),
    ({**ASK, "reasoning_effort": "high"}, 400, 'reasoning_effort is not supported here: leave it out (or "none")'),
    ({**ASK, "prediction": {"type": "content"}}, 400, "prediction is not supported here: leave it out"),
    ({**ASK, "model": 1}, 400, "model"),
    ({**ASK, "stop": ["x"] * 17}, 400, "stop: list should have at most 16 items"),
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


def test_a_body_in_chunks_is_read_as_one(world: World) -> None:
    chunks = (json.dumps(ASK)[start : start + 7].encode() for start in range(0, 200, 7))
    answer = httpx.post(
        f"{world.server.url}/v1/chat/completions", content=chunks, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 200, answer.text


def test_text_of_any_language_and_numbers_of_any_size_are_taken(world: World) -> None:
    body = b'{"messages": [{"role": "user", "content": "\\ud83d\\ude00 \xc3\xa9"}], "max_tokens": ' + b"9" * 200 + b"}"
    assert world.post(body).status_code == 200
    assert world.reached[-1].row.task_data["question"] == "\U0001f600 \u00e9"
    assert world.reached[-1].sampling.max_tokens == TOKENS


def test_a_key_that_comes_twice_among_many_is_found_at_once() -> None:
    many = ",".join(f'"{i}":0' for i in range(20_000))
    began = time.process_time()
    with pytest.raises(HttpProblem, match="the key '7' occurs twice"):
        parsed(f'{{{many},"7":1}}'.encode())
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "harmless",
    [
        {"n": 1},
        {"seed": 1},
        {"tools": []},
        {"response_format": {"type": "text"}},
        {"stop": None},
        {"top_p": 1.0},
        {"reasoning_effort": None, "audio": None},
        {"reasoning_effort": "none", "verbosity": "medium", "functions": [], "prompt_cache_retention": "24h"},
        {"messages": [ASK["messages"][0] | LITELLM, *ASK["messages"]]},
    ],
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
            if "chunked" not in text:
                connection.shutdown(socket.SHUT_WR)
            return connection.makefile().readline()

    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    assert " 411 " in status(head + "\r\n")
    chunked = head + "Transfer-Encoding: chunked\r\n\r\n"
    assert " 413 " in status(f"{chunked}{LIMIT:x}\r\n{'x' * LIMIT}\r\n1\r\nx\r\n0\r\n\r\n")
    assert " 400 " in status(f"{chunked}2\r\n[]\r\n0\r\n\r\n")
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
        (lambda w: w.post(ASK, content_encoding="gzip"), 415),
        (lambda w: w.post(ASK, path="/v1/other"), 404),
        (lambda w: httpx.get(w.server.url + "/v1/feedback?limit=1" + "0" * 5000), 400),
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
    assert ("allow" in answer.headers) is (status == 405)
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
        behind = guarded.post(ASK, Authorization=f"Bearer {token}", host="policy.example")
        assert behind.status_code == 200  # a proxy may keep the Host header


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
    assert guarded.keeper.sources[-1].startswith("token-1/")


def test_open_to_others_only_with_a_token(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="set GRPO_TUI_TOKEN"):
        AnswerServer("0.0.0.0:0")
    with pytest.raises(ServeError, match="expected HOST:PORT"):
        parse_address("8000")
    assert parse_address(":8000") == ("127.0.0.1", 8000) and parse_address("[::1]:1") == ("::1", 1)
    assert is_loopback("::1") and is_loopback("localhost") and not is_loopback("10.0.0.1") and not is_loopback("")


def test_an_address_that_is_taken(world: World, tmp_path: Path) -> None:
    address = f"127.0.0.1:{world.server.port}"
    with pytest.raises(ServeError, match="cannot be served on"):
        AnswerServer(address)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_does_not_keep_the_address(tmp_path: Path) -> None:
    world = World(tmp_path)
    child = os.fork()
    if not child:
        signal.pause()
    try:
        world.close()
        AnswerServer(f"127.0.0.1:{world.server.port}").close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("none")
    with pytest.raises(ServeError, match=r"cannot be served on: .*PEM"):
        AnswerServer("127.0.0.1:0", certificate=tmp_path / "cert.pem", key=tmp_path / "cert.pem")


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
    assert _chat(world, tmp_path).models()[0] == "tiny"  # the app trusts the certificate, which names no localhost
    world.close()


def _chat(world: World, run: Path) -> ChatClient:
    client = ChatClient(run)
    client.address.parent.mkdir(exist_ok=True)
    url = world.server.url.replace("127.0.0.1", "localhost")
    client.address.write_text(json.dumps({"url": url, "certificate": world.server.certificate}))
    return client


def test_the_app_without_a_token_says_how_to_set_one(guarded: World, tmp_path: Path) -> None:
    with pytest.raises(ServerProblem, match="start the app with GRPO_TUI_TOKEN set"):
        _chat(guarded, tmp_path).models()
