"""Tools from an MCP server (Model Context Protocol): `pip install 'grpo-tui[mcp]'`.

`environment.tools: ["mcp:python server.py"]` starts a server and uses its standard input and output.
`"mcp:http://127.0.0.1:9000/mcp"` connects to a running one. All its tools are declared, and all rollouts share one
session.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...configs.sections.environment import MCP
from ..base import StepResult
from ..guard import submit, wait
from ..loading import EnvLoadError
from ..pictures import picture_of
from ..tools import ToolSpec, tool_of_schema
from ..user_code import one_line
from . import optional

if TYPE_CHECKING:
    from mcp import ClientSession
    from pydantic import BaseModel

    Opened = asyncio.Future[tuple[ClientSession, asyncio.Event]]
    """A session, and what ends it."""

START_SECONDS = 30.0
"""Seconds within which a server must list its tools."""
LOST = frozenset({-32000, -32001, -32600, 32600, 408})
"""Error codes with which the library and servers report a closed, unknown or timed-out session."""


@dataclass(frozen=True)
class McpTool:
    """A server's tool, as `DatasetEnv` calls it."""

    spec: ToolSpec
    server: McpServer

    def run(self, arguments: Mapping[str, object]) -> StepResult:
        """Call the tool. The policy reads the tool's errors.

        Raises RuntimeError if the server is gone, which fails the rollout.
        """
        answer = self.server.call(self.spec.name, arguments)
        text = _text(answer)
        if answer.get("isError"):
            return StepResult(f"error: {text}", error=text or "the tool failed")
        shown = [part for part in answer.get("content") or () if part.get("type") == "image"]
        urls = (f"data:{part['mimeType']};base64,{part['data']}" for part in shown)
        return StepResult(text, images=tuple(map(picture_of, urls)))


def load_mcp_tools(path: str) -> tuple[McpTool, ...]:
    """Load all tools of the server that `path` names. Raises EnvLoadError."""
    server = McpServer(path.removeprefix(MCP).strip())
    try:
        declared = wait(server.list_tools(), START_SECONDS)
    except Exception as problem:  # a server, its command or the network may fail in any way
        raise EnvLoadError(f'environment.tools: "{path}": {_why_not(server.target, problem)}') from problem
    if not declared:
        raise EnvLoadError(f'environment.tools: "{path}": the server has no tools')
    return tuple(
        McpTool(tool_of_schema(tool["name"], tool.get("description"), tool.get("inputSchema")), server)
        for tool in declared
    )


class McpServer:
    """A session with a server, opened on first use and reopened after a loss."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._opened: Opened | None = None

    def call(self, name: str, arguments: Mapping[str, object]) -> dict[str, Any]:
        """Return the answer of `tools/call`. Raises RuntimeError if there is none."""
        try:
            return wait(self._call(name, dict(arguments)), 600.0)  # usually, `environment.turn_timeout_s` is shorter
        except Exception as problem:
            raise RuntimeError(f"the MCP server {self.target} did not answer {name}: {_reason(problem)}") from problem

    async def list_tools(self) -> list[dict[str, Any]]:
        """Return the answer of `tools/list`. Exceptions of the connection propagate."""
        session, _ = await asyncio.shield(self._open())
        answer = _plain(await session.list_tools())
        found = [*answer["tools"]]
        while answer.get("nextCursor"):
            answer = _plain(await session.list_tools(cursor=answer["nextCursor"]))
            found += answer["tools"]
        return found

    async def _call(self, name: str, arguments: dict[str, object]) -> dict[str, object]:
        opened = self._open()
        session, stop = await asyncio.shield(opened)
        try:
            return _plain(await session.call_tool(name, arguments))
        except BaseException as problem:
            error = getattr(problem, "error", None)  # the JSON-RPC error
            if error is not None and error.code not in LOST:
                return {"isError": True, "content": [{"type": "text", "text": error.message}]}
            stop.set()
            self._forget(opened)  # the next call opens a new session, even before the lost one has closed
            raise

    def _open(self) -> Opened:
        if self._opened is None:
            self._opened = asyncio.get_running_loop().create_future()
            submit(self._hold(self._opened))
        return self._opened

    def _forget(self, opened: Opened) -> None:
        if self._opened is opened:
            self._opened = None

    async def _hold(self, opened: Opened) -> None:
        """Keep the session open until it ends. The task that entered its contexts must also leave them."""
        stop = asyncio.Event()
        try:
            async with contextlib.AsyncExitStack() as stack:
                streams = await stack.enter_async_context(_transport(self.target))
                client = optional("mcp", "mcp").ClientSession
                session = await stack.enter_async_context(client(streams[0], streams[1]))
                await session.initialize()
                opened.set_result((session, stop))
                await stop.wait()
        except BaseException as problem:
            if not opened.done():
                opened.set_exception(problem if isinstance(problem, Exception) else RuntimeError(one_line(problem)))
        finally:
            self._forget(opened)


def _transport(target: str) -> contextlib.AbstractAsyncContextManager[Sequence[Any]]:
    mcp = optional("mcp", "mcp")
    if target.startswith(("http://", "https://")):
        return importlib.import_module("mcp.client.streamable_http").streamable_http_client(target)
    words = shlex.split(target)
    if not words:
        raise RuntimeError('name a command or an address: "mcp:python server.py", "mcp:http://127.0.0.1:9000/mcp"')
    # All variables: the library's default leaves out the keys that a server needs.
    return mcp.stdio_client(mcp.StdioServerParameters(command=words[0], args=words[1:], env=dict(os.environ)))


def _plain(answer: BaseModel) -> dict[str, Any]:
    """Return an answer with the protocol's field names, in any version of the library."""
    return answer.model_dump(mode="json", by_alias=True, exclude_none=True)


def _text(answer: Mapping[str, Any]) -> str:
    """Return the text of an answer and of its resources, with other content replaced by its kind."""
    parts = [
        {**part, **part.get("resource", {})}.get("text", f"[{part.get('type')}]")
        for part in answer.get("content") or ()
    ]
    if not parts and answer.get("structuredContent") is not None:
        return json.dumps(answer["structuredContent"], ensure_ascii=False)
    return "\n".join(parts)


def _why_not(target: str, problem: BaseException) -> str:
    """Explain why a server's tools are not available, and the fix."""
    reason = _reason(problem)
    if target.startswith(("http://", "https://")):
        return f"no MCP server answers there ({reason}); start it first, or correct the address"
    command = shlex.split(target)[:1]
    if command and shutil.which(command[0]) is None:
        return f"there is no command {command[0]}; give one that starts the server, such as mcp:python server.py"
    return reason


def _reason(problem: BaseException) -> str:
    """Return the innermost error, unwrapping the exceptions of task groups."""
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    if isinstance(problem, TimeoutError):
        return f"no answer within {START_SECONDS:g} s"
    return str(problem) if type(problem) is RuntimeError else one_line(problem)
