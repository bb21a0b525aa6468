"""A small server with OpenAI's API of chat completions, whose model works out the tasks of the calculator."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from grpo_tui.envs.calculator import apply

Refusal = tuple[int, dict[str, str], str]
"""An HTTP code, headers, and the message of the error."""


class ChatServer(ThreadingHTTPServer):
    """`refuse(body, number)` may refuse the request of this number. `wrong` is a part of prompts answered wrongly."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.refuse: Callable[[dict[str, Any], int], Refusal | None] = lambda body, number: None
        self.wrong = "nothing"
        self.usage = True
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"


@contextmanager
def serving(port: int = 0) -> Iterator[ChatServer]:
    server = ChatServer(port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer  # type: ignore[assignment]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.asked.append({**body, "path": self.path})
            self.server.keys.add(self.headers.get("Authorization", ""))
            refused = self.server.refuse(body, len(self.server.asked))
        if refused is not None:
            code, headers, message = refused
            self._send(code, {"error": {"message": message}}, headers)
            return
        message = answer(body, self.server.wrong)
        sent = sum(len(str(m["content"]).split()) for m in body["messages"])
        written = len(json.dumps(message).split())
        usage = {"usage": {"prompt_tokens": sent, "completion_tokens": written}} if self.server.usage else {}
        finish = "tool_calls" if "tool_calls" in message else "stop"
        self._send(200, {"choices": [{"message": message, "finish_reason": finish}], **usage}, {})

    def _send(self, code: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def answer(body: dict[str, Any], wrong: str) -> dict[str, Any]:
    """Return the next message of a model that makes one operation a turn and then answers."""
    time.sleep(0.01)
    messages = body["messages"]
    task = next(m["content"] for m in messages if "start " in str(m["content"]))
    start = re.search(r"start (-?\d+)", task)
    assert start is not None
    value = int(start[1])
    steps = [(op, int(b)) for op, b in re.findall(r"then (\w+) (-?\d+)", task)]
    done = sum(m["role"] == "assistant" for m in messages)
    for operation, b in steps[:done]:
        value = apply(operation, value, b)
    if done < len(steps):
        name, arguments = "CALCULATE", {"operation": steps[done][0], "a": value, "b": steps[done][1]}
    else:
        name, arguments = "ANSWER", {"text": str(value + (wrong in task))}
    if "tools" not in body:
        return {"role": "assistant", "content": json.dumps({"name": name, "arguments": arguments})}
    call = {"id": f"call_{done}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return {"role": "assistant", "content": None, "reasoning_content": "I calculate.", "tool_calls": [call]}
