"""Serve chat completions on loopback to the harness of a rollout. Each completion is one turn of the policy.

verifiers sends a trace id with each request, which identifies the rollout. The path is a secret.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

from .exchange import Completion, NoRoom, RolloutExchange

if TYPE_CHECKING:
    from aiohttp.web import Request, StreamResponse

USAGE = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
"""The token counts in a completion. This project counts tokens itself."""


class Endpoint:
    """A chat completions server, started on the background loop on first use."""

    def __init__(self) -> None:
        self._exchanges: dict[str, RolloutExchange] = {}
        self._url = ""
        self._secret = secrets.token_urlsafe(16)

    @contextlib.contextmanager
    def known(self, trace: str, exchange: RolloutExchange) -> Iterator[None]:
        """Answer the requests of a trace from `exchange`."""
        self._exchanges[trace] = exchange
        try:
            yield
        finally:
            self._exchanges.pop(trace, None)

    async def context(self, v1: ModuleType) -> object:
        """Return verifiers' `ModelContext` for this endpoint."""
        if not self._url:
            self._url = await self._start()
        client = v1.EvalClientConfig(base_url=self._url, api_key_var="GRPO_TUI_NO_KEY")
        return v1.ModelContext(model="policy", client=client)

    async def _start(self) -> str:
        web = importlib.import_module("aiohttp.web")  # comes with verifiers
        app = web.Application(client_max_size=256 * 2**20)
        app.router.add_post(f"/{self._secret}/chat/completions", self._complete)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}/{self._secret}"

    async def _complete(self, request: Request) -> StreamResponse:
        web = importlib.import_module("aiohttp.web")
        exchange = self._exchanges.get(request.headers.get("X-Session-ID", ""))
        if exchange is None:
            return web.json_response(_error("no rollout has this id"), status=404)
        body = await request.json()
        exchange.tools = [tool["function"] for tool in body.get("tools") or ()]
        try:
            turn = await exchange.ask([_plain(message) for message in body["messages"]])
        except NoRoom as error:
            return web.json_response(_error(str(error), "context_length_exceeded"), status=400)
        except ValueError as error:
            return web.json_response(_error(str(error)), status=400)
        message = _written(turn)
        exchange.said(_plain(message))
        common = {"id": f"turn-{secrets.token_hex(8)}", "created": int(time.time()), "model": "policy"}
        reason = "length" if turn.cut else "tool_calls" if turn.calls else "stop"
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            return web.json_response({**common, "object": "chat.completion", "choices": [choice], "usage": USAGE})
        calls = [{"index": i, **call} for i, call in enumerate(message.get("tool_calls", ()))]
        delta = {**message, **({"tool_calls": calls} if calls else {})}
        events = (
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {"choices": [], "usage": USAGE},
        )
        text = "".join(f"data: {json.dumps({**common, 'object': 'chat.completion.chunk', **e})}\n\n" for e in events)
        return web.Response(text=f"{text}data: [DONE]\n\n", content_type="text/event-stream")


def _written(turn: Completion) -> dict[str, Any]:
    message: dict[str, object] = {"role": "assistant", "content": turn.text}
    if turn.calls:
        message["tool_calls"] = [
            {"id": key, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for key, name, arguments in turn.calls
        ]
    return message


def _plain(message: Mapping[str, Any]) -> dict[str, object]:
    """Convert a message to one format, whichever harness wrote it."""
    converted: dict[str, object] = {"role": message["role"], "content": message.get("content") or ""}
    if message.get("tool_calls"):
        functions = [(call["id"], call["function"]) for call in message["tool_calls"]]
        converted["tool_calls"] = [{"id": key, "name": f["name"], "arguments": f["arguments"]} for key, f in functions]
    if message.get("tool_call_id"):
        converted["tool_call_id"] = message["tool_call_id"]
    return converted


def _error(message: str, code: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": "invalid_request_error", "code": code}}
