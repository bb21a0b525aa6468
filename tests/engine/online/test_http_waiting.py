"""Callers that wait: together, in turn, too many, too long, gone, or slow themselves."""

from __future__ import annotations

import gc
import http.client
import json
import socket
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from grpo_tui.engine.online.serve import server
from grpo_tui.engine.online.serve.requests import Request, RequestSource, Sampling

from .world import ASK, World


def test_who_sends_a_head_drop_by_drop_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.3)
    world = World(tmp_path)
    try:
        with socket.create_connection((world.server.host, world.server.port), timeout=20) as slow:
            slow.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127")
            assert slow.recv(100) == b""
        with httpx.Client(base_url=world.server.url) as client:  # who waits for an answer is no such caller
            world.pause()
            threading.Timer(0.8, world.serve.set).start()
            assert client.post("/v1/chat/completions", json=ASK).status_code == 200
            assert client.post("/v1/chat/completions", json=ASK).status_code == 200
    finally:
        world.close()


def test_an_idle_connection_outlives_the_patience_of_clients(tmp_path: Path) -> None:
    world = World(tmp_path)
    connection = http.client.HTTPConnection(world.server.host, world.server.port, timeout=20)
    try:
        for pause in (0, 5.5):  # httpx keeps an idle connection for 5 s
            time.sleep(pause)
            connection.request("GET", "/v1/models")
            answer = connection.getresponse()
            assert answer.status == 200 and answer.read()
    finally:
        connection.close()
        world.close()


def test_too_many_callers_are_told_when_to_come_back_and_who_goes_is_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = World(tmp_path, max_waiting=1)
    made.pause()
    first = http.client.HTTPConnection(made.server.host, made.server.port, timeout=20)
    first.request("POST", "/v1/chat/completions", json.dumps(ASK), {"content-type": "application/json"})
    while made.source.waiting == 0:
        time.sleep(0.01)
    full = made.post(ASK)
    assert full.status_code == 429 and int(full.headers["Retry-After"]) >= 1
    assert full.json()["error"]["type"] == "rate_limit_error"
    first.close()  # it hangs up
    until = time.monotonic() + 20
    while not all(r.cancelled.is_set() for r in list(made.source._callers)) and time.monotonic() < until:
        time.sleep(0.01)  # that is noticed on another thread
    made.serve.set()
    assert made.post({**ASK, "user": "next"}).status_code == 200
    assert len(made.reached) == 1
    made.close()
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_who_waits_when_the_run_is_stopped_is_told(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.pause()
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
    made.pause()
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
    source = RequestSource(open_ended=True, batch_tokens=100)
    for request in (
        ask(40, source="a"),
        ask(500, source="long"),
        ask(40, source="b"),
        ask(10, source="own", sampling=Sampling(temperature=0.5)),
        ask(40, source="c"),
        ask(10, source="old", version=3),
    ):
        source.submit(request)
    batches = [[r.source for r in source.take(8, 0.01)] for _ in range(5)]
    assert batches == [["a", "b"], ["long"], ["own"], ["c"], ["old"]]
