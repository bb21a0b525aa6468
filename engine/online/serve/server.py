"""Answers over HTTP: OpenAI-style `POST /v1/chat/completions`, one final answer for a request plus its trajectory.

Everything is checked before it reaches the policy: path, method, content type, size, token, JSON, every field. What
does not pass gets 4xx and a reason. Bound to the loopback interface unless told otherwise, and then only with a token
(`GRPO_TUI_TOKEN`). On loopback the `Host` header must name it too, so that no web page can reach in by a name of its
own (DNS rebinding).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import io
import ipaddress
import json
import logging
import queue
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from PIL import Image

from ....configs.sections import EnvironmentConfig
from .inference_engine import Answer
from .requests import Request, RequestError, RequestSource, parse_request
from .serving import answer_as_json

log = logging.getLogger(__name__)

ANSWER_SECONDS = 300.0
"""A caller that waits longer gets 503."""
MAX_PIXELS = 1 << 24
CHAT_FIELDS = ("model", "messages", "task_data", "n", "stream", "user")


class ServeError(RuntimeError):
    """The address cannot be served on; the message says what would be right."""


class HttpProblem(Exception):
    """A request that is answered with an error: status, reason for a person, and the error's kind."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def parse_address(address: str) -> tuple[str, int]:
    """`HOST:PORT` (`[::1]:8000` for IPv6; `:8000` is loopback). Raises ServeError."""
    host, separator, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    if not separator or not port.isdigit() or int(port) > 65535:
        raise ServeError(f"online.serve is {address!r}; right would be HOST:PORT, such as 127.0.0.1:8000")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class AnswerServer:
    """The HTTP side of the engine, in threads of its own; requests go into `source`.

    Raises ServeError for an address that is taken, or open to others without a token.
    """

    def __init__(
        self,
        address: str,
        source: RequestSource,
        environment: EnvironmentConfig,
        *,
        model: str,
        uploads: Path,
        token: str | None = None,
        max_body_bytes: int = 8 * 2**20,
    ) -> None:
        host, port = parse_address(address)
        if not is_loopback(host) and not token:
            raise ServeError(
                f"{host} can be reached from other machines: set GRPO_TUI_TOKEN to a secret that callers must send, "
                "or serve on 127.0.0.1"
            )
        self.source = source
        self.environment = environment
        self.model = model
        self.uploads = uploads
        self.token = token
        self.loopback = is_loopback(host)
        self.max_body_bytes = max_body_bytes
        server_class = type(
            "Server", (_Server,), {"address_family": socket.AF_INET6 if ":" in host else socket.AF_INET}
        )
        try:
            self._server = server_class((host, port), _Handler)
        except OSError as error:
            raise ServeError(f"{address} cannot be served on: {error.strerror or error}") from error
        self._server.owner = self
        self.host, self.port = host, int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def url(self) -> str:
        """Where it answers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more requests."""
        self._server.shutdown()
        self._server.server_close()

    # ------------------------------------------------------------------------------------- what a request must be

    def admit(self, headers: Mapping[str, str]) -> None:
        """Who asks. Raises HttpProblem."""
        if self.loopback:
            host = headers.get("Host", "")
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
            if not is_loopback(name.strip("[]")):
                raise HttpProblem(403, f"the Host header {host!r} does not name the loopback interface")
        if self.token:
            kind, _, given = headers.get("Authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token.encode()):
                raise HttpProblem(401, "a token is needed: send `Authorization: Bearer <token>`")

    def parse_body(self, body: bytes) -> dict[str, Any]:
        """The JSON object of a body. Raises HttpProblem."""
        try:
            data = json.loads(body, parse_constant=_no_constant)
        except RecursionError:
            raise HttpProblem(400, "the JSON is nested too deeply") from None
        except ValueError as error:
            raise HttpProblem(400, f"the body is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise HttpProblem(400, f"the body must be a JSON object, not {type(data).__name__}")
        return data

    def chat_request(self, data: Mapping[str, Any]) -> Request:
        """The task in an OpenAI-style chat request. Raises HttpProblem."""
        unknown = sorted(set(data) - set(CHAT_FIELDS))
        if unknown:
            raise HttpProblem(400, f"unknown field {unknown[0]!r}; known are {', '.join(CHAT_FIELDS)}")
        for name, allowed in (("n", (1,)), ("stream", (False,))):
            if data.get(name, allowed[0]) not in allowed:
                raise HttpProblem(400, f"{name} must be {json.dumps(allowed[0])}: there is one final answer")
        for name in ("model", "user"):
            if not isinstance(data.get(name, ""), str):
                raise HttpProblem(400, f"{name} must be text")
        task = data.get("task_data")
        if task is None:
            task = task_of_messages(data.get("messages"), self.uploads)
        elif "messages" in data:
            raise HttpProblem(400, "give messages or task_data, not both")
        return self.row_request({"task_data": task})

    def row_request(self, data: Mapping[str, Any]) -> Request:
        """A task as in a file of requests, with the configuration's environment only. Raises HttpProblem."""
        for name in ("env_class_path", "env_config"):
            if name in data:  # naming code to load is for who configures the run, not for who calls it
                raise HttpProblem(400, f"{name} is fixed by the run's configuration; leave it out")
        try:
            return parse_request(data, self.environment)
        except RequestError as error:
            raise HttpProblem(400, str(error)) from error

    def ask(self, request: Request) -> Answer:
        """Wait for the engine's answer. Raises HttpProblem."""
        mailbox: queue.Queue[Any] = queue.Queue(1)
        try:
            self.source.submit(replace(request, reply=mailbox.put))
        except queue.Full:
            raise HttpProblem(503, "too many requests wait; try again soon") from None
        try:
            answer = mailbox.get(timeout=ANSWER_SECONDS)
        except queue.Empty:
            raise HttpProblem(503, "there was no answer in time") from None
        if isinstance(answer, BaseException):
            raise HttpProblem(500, "the request could not be answered; the run's log says why")
        if answer.error is not None:
            raise HttpProblem(422, f"the environment cannot begin this task: {answer.error}")
        return answer


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: AnswerServer


class _Handler(BaseHTTPRequestHandler):
    """One connection. Only this class speaks HTTP."""

    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride]
    server_version = "grpo-tui"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30  # a caller that sends nothing does not hold a thread for ever

    def do_GET(self) -> None:
        """`/v1/models` and `/health`."""
        self._answer(self._get)

    def do_POST(self) -> None:
        """`/v1/chat/completions` and `/v1/requests`."""
        self._answer(self._post)

    def _get(self) -> dict[str, Any]:
        owner = self.server.owner
        if self.path == "/health":
            return {"status": "ok"}
        owner.admit(dict(self.headers.items()))
        if self.path == "/v1/models":
            return {"object": "list", "data": [{"id": owner.model, "object": "model", "owned_by": "grpo-tui"}]}
        raise HttpProblem(405 if self.path in POSTS else 404, f"there is no GET {self.path[:100]}")

    def _post(self) -> dict[str, Any]:
        owner = self.server.owner
        owner.admit(dict(self.headers.items()))
        if self.path not in POSTS:
            raise HttpProblem(404, f"there is no POST {self.path[:100]}; there is {' and '.join(POSTS)}")
        if self.headers.get_content_type() != "application/json":
            raise HttpProblem(415, "send `Content-Type: application/json`")
        data = owner.parse_body(self._body(owner.max_body_bytes))
        if self.path == "/v1/requests":
            return answer_as_json(owner.ask(owner.row_request(data)))
        return _completion(owner.ask(owner.chat_request(data)), str(data.get("model") or owner.model))

    def _body(self, limit: int) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isdigit():
            raise HttpProblem(411, "send a Content-Length")
        if int(length) > limit:
            raise HttpProblem(413, f"the body has {length} bytes, the limit is {limit}")
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise HttpProblem(400, f"the body ended after {len(body)} of {length} bytes")
        return body

    def _answer(self, make: Any) -> None:
        status, reason = 200, ""
        body: dict[str, Any] = {}
        try:
            body = make()
        except HttpProblem as problem:
            status, reason = problem.status, problem.reason
        except TimeoutError:
            status, reason = 408, "the body did not arrive in time"
        except Exception:
            log.exception("an HTTP request failed")
            status, reason = 500, "something went wrong here; the run's log says what"
        if status != 200:
            kind = "invalid_request_error" if status < 500 else "server_error"
            body = {"error": {"message": reason, "type": kind, "code": status}}
            self.close_connection = True  # the body may be unread
        data = json.dumps(body).encode()
        with contextlib.suppress(OSError):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            if status == 401:
                self.send_header("WWW-Authenticate", "Bearer")
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """To the log, one line, nothing unprintable."""
        log.debug("http %s", "".join(c if c.isprintable() else "?" for c in format % args))


POSTS = ("/v1/chat/completions", "/v1/requests")


def task_of_messages(messages: Any, uploads: Path) -> dict[str, Any]:
    """One user message as a task: its text is the `question`, a picture in it (a data URL) becomes a file in
    `uploads` and the `image`. Other messages are refused, because the environment writes the prompt.

    Raises HttpProblem.
    """
    if not isinstance(messages, list) or not messages:
        raise HttpProblem(400, "messages must be a list with one user message")
    if len(messages) != 1 or not isinstance(messages[0], dict) or messages[0].get("role") != "user":
        raise HttpProblem(400, "messages must hold exactly one message, of the role user")
    unknown = sorted(set(messages[0]) - {"role", "content"})
    if unknown:
        raise HttpProblem(400, f"unknown field {unknown[0]!r} in messages[0]; known are role and content")
    content = messages[0].get("content")
    if isinstance(content, str) and content.strip():
        return {"question": content}
    if not isinstance(content, list):
        raise HttpProblem(400, "messages[0].content must be text, or a list of parts")
    task: dict[str, Any] = {}
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" and isinstance(part.get("text"), str):
            task["question"] = f"{task.get('question', '')}{part['text']}"
        elif kind == "image_url" and isinstance(part.get("image_url"), dict) and "image" not in task:
            task["image"] = _image(part["image_url"].get("url"), uploads)
        else:
            raise HttpProblem(400, f"messages[0].content[{number}] must be a text or one image_url part")
    if not str(task.get("question", "")).strip():
        raise HttpProblem(400, "messages[0] holds no text")
    return task


def _image(url: Any, uploads: Path) -> str:
    """The picture in a data URL as a PNG file named by its content."""
    head, _, data = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not head.startswith("data:image/") or not head.endswith(";base64"):
        raise HttpProblem(400, "image_url.url must be a data URL (data:image/png;base64,…): nothing is fetched for you")
    try:
        raw = base64.b64decode(data, validate=True)
        with Image.open(io.BytesIO(raw)) as picture:
            if picture.width * picture.height > MAX_PIXELS:
                raise HttpProblem(413, f"the picture has {picture.width} x {picture.height} pixels, too many")
            picture.load()
            pixels = picture.convert("RGB")
    except (binascii.Error, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise HttpProblem(400, f"the picture cannot be read: {error}") from error
    path = uploads / f"{hashlib.sha256(raw).hexdigest()[:32]}.png"
    uploads.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        pixels.save(path)
    return str(path.resolve())


def _completion(answer: Answer, model: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{secrets.token_hex(8)}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": answer.text},
                "finish_reason": "stop",
            }
        ],
        "grpo_tui": answer_as_json(answer),
    }


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
