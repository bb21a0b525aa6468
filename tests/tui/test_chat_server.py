"""The chat with servers that end, that answer oddly, and that never answer."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from grpo_tui.tui.app.destinations import Further
from grpo_tui.tui.app.screens.chat import TOKEN_VARIABLE

from .drive import running
from .terminal import opened

MODELS = json.dumps({"data": [{"id": "tiny"}, {"id": "tiny@0"}]})


def piece(text: str) -> str:
    return "data: " + json.dumps({"id": "chatcmpl-1-a", "choices": [{"delta": {"content": text}}]}) + "\n\n"


ANSWER = piece("line one\nline") + piece(" two") + "data: [DONE]\n\n"


@contextmanager
def serving(run: Path, **replies: str) -> Iterator[list[dict[str, Any]]]:
    """Answer GET with `models`, a message with `answer`, and feedback with `feedback`. Yields what was posted."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *_: Any) -> None:
            pass

        def reply(self, text: str) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def do_GET(self) -> None:
            self.reply(replies.get("models", MODELS))

        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.reply(replies.get("answer", ANSWER) if "messages" in posted[-1] else '{"accepted": false}')

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    address(run, server.server_address[1])
    try:
        yield posted
    finally:
        server.shutdown()
        server.server_close()


def address(run: Path, port: int) -> None:
    (run / "online").mkdir(parents=True, exist_ok=True)
    (run / "online" / "address.json").write_text(json.dumps({"url": f"http://127.0.0.1:{port}"}))


@pytest.fixture
def online(tmp_path: Path) -> Path:
    run = tmp_path / "runs" / "online"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"id": "online", "mode": "online"}')
    return run


async def test_an_answer_that_the_server_does_not_end_has_broken_off(online: Path) -> None:
    with serving(online, answer=piece("half an")):
        async with running(online.parent, Further(online, "Chat")) as app:
            text = await app.press("enter", "x", "enter")
            assert "the answer was cut off" in text and "half an" in text and "writing" not in text


@pytest.mark.parametrize("reply", ["<html>", "[]", "{}", '{"data": []}', '{"data": [1]}'])
async def test_what_another_server_replies_is_reported(online: Path, reply: str) -> None:
    with serving(online, models=reply, answer='data: {"x": 1}\n\n'):
        async with running(online.parent, Further(online, "Chat")) as app:
            assert "the reply cannot be read" in app.text
            assert "cannot be read" in await app.press("enter", "x", "enter")


async def test_a_token_that_no_header_takes_is_reported(online: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "ключ")
    with serving(online):
        async with running(online.parent, Further(online, "Chat")) as app:
            assert "the server cannot be reached" in app.text


async def test_a_server_that_begins_after_the_screen_is_found(online: Path) -> None:
    async with running(online.parent, Further(online, "Chat")) as app:
        assert "does not serve over HTTP" in app.text
        with serving(online) as posted:
            assert "line one" in await app.press("enter", "x", "enter")
            assert posted[0]["model"] == "tiny"


async def test_a_correction_of_several_lines_keeps_them(online: Path) -> None:
    with serving(online) as posted:
        async with running(online.parent, Further(online, "Chat")) as app:
            await app.press("enter", "x", "enter", "e")
            await app.press("exclamation_mark", "enter")
            assert posted[-1]["correction"] == "line one\nline two!"


def test_leaving_waits_for_no_server(online: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address(online, silent.getsockname()[1])
        with opened(online, "Further(run, 'Chat')") as screen:
            screen.see("enter writes a message")
            screen.press("\r")
            screen.see("Message")
            screen.press("hello\r")
            screen.see("writing")
            began = time.monotonic()
            screen.press("q")
            assert screen.wait() == 0
            assert time.monotonic() - began < 20
