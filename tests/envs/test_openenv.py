"""An OpenEnv server that speaks the protocol over real sockets: sessions, rewards, refusals, and what cannot be had."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from grpo_tui.envs.loading import EnvLoadError, make_env
from grpo_tui.envs.plugins.openenv import OpenEnvEnv

from .scripts import ByteAgent

pytest.importorskip("websockets", reason="needs the extra openenv")

GUESS = {"properties": {"guess": {"type": "string"}, "metadata": {"type": "object", "default": {}}}}
WHY = {"$defs": {"Why": {"type": "string"}}, "required": ["x"]}
MOVE = {"properties": {"x": {"type": "integer"}, "why": {"$ref": "#/$defs/Why", "default": ""}}, **WHY}
TEXT, NUMBER, OBJECT = {"type": "string"}, {"type": "integer"}, {"type": "object"}
CALL = {"properties": {"type": {"const": "call_tool"}, "tool_name": TEXT, "arguments": OBJECT}}
ADD = {"name": "add", "description": "Adds.", "input_schema": {"properties": {"a": NUMBER}, "required": ["a"]}}


class Server:
    """Guess a number (`seed % 10`), in one of three forms of action. capacity: sessions at once."""

    def __init__(self, action: dict[str, Any], capacity: int = 8) -> None:
        self.action, self.capacity, self.open, self.closed = action, capacity, 0, 0
        routes = [Route("/schema", self.schema), WebSocketRoute("/ws", self.episode)]
        config = uvicorn.Config(Starlette(routes=routes), port=0, log_level="error", ws="websockets-sansio")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    async def schema(self, request: Any) -> JSONResponse:
        return JSONResponse({"action": self.action, "observation": {}, "state": {}})

    async def episode(self, socket: WebSocket) -> None:
        await socket.accept()
        self.open += 1
        full = self.open > self.capacity  # who came first keeps the place
        wanted = 0
        try:
            while (message := json.loads(await socket.receive_text()))["type"] != "close":
                if full:
                    await self.error(socket, "CAPACITY_REACHED", "server is full")
                elif message["type"] == "reset":
                    wanted = message["data"].get("seed", 0) % 10
                    await self.say(socket, {"text": f"guess a number, hint {wanted}"}, None, False)
                else:
                    await self.step(socket, message["data"], wanted)
            self.closed += 1
        except WebSocketDisconnect:
            pass
        finally:
            self.open -= 1

    async def step(self, socket: WebSocket, data: dict[str, Any], wanted: int) -> None:
        if data.get("type") == "list_tools":
            return await self.say(socket, {"tools": [ADD]}, None, False)
        if data.get("type") == "call_tool":
            total = data["arguments"]["a"] + 1
            result = {"content": [{"type": "text", "text": str(total)}]}
            return await self.say(socket, {"tool_name": "add", "result": result, "error": None}, 0.5, total > 5)
        given = data.get("guess", data.get("x"))
        if not str(given).lstrip("-").isdigit():
            errors = [{"loc": ["guess"], "msg": "must be a number"}]  # as pydantic names them
            return await self.error(socket, "VALIDATION_ERROR", "Invalid message", errors=errors)
        right = int(given) == wanted  # type: ignore[arg-type]
        return await self.say(socket, {"text": "right" if right else "wrong", "tries": []}, float(right), right)

    async def say(self, socket: WebSocket, observation: dict[str, Any], reward: float | None, done: bool) -> None:
        data = {"observation": observation, "reward": reward, "done": done}
        await socket.send_text(json.dumps({"type": "observation", "data": data}))

    async def error(self, socket: WebSocket, code: str, message: str, **more: object) -> None:
        await socket.send_text(json.dumps({"type": "error", "data": {"code": code, "message": message, **more}}))

    def __enter__(self) -> Server:
        self.thread.start()
        while not self.server.started:
            pass
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join(10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"


@pytest.fixture
def guessing() -> Iterator[Server]:
    with Server(GUESS) as server:
        yield server


def test_the_whole_turn_is_an_action_of_one_text(guessing: Server) -> None:
    env = OpenEnvEnv(url=guessing.url, success_score=1.0, instruction="Play.")
    task = {"url": guessing.url, "seed": 14}
    turns = [["3", "4"], ["4"], ["what?", "4"], ["1"]]
    agent = ByteAgent(lambda row, turn, seen: turns[row][min(turn, len(turns[row]) - 1)])
    trial = env.run_trial([task], agent, 4)
    slow, quick, lost, never = trial["trajectories"]
    assert slow.prompt == "Play.\n\nguess a number, hint 4"
    assert [s.observation for s in slow.steps] == ["wrong", "right"]
    assert (quick.env_reward, quick.correct, quick.stop_reason) == (1.0, True, "answer")
    assert lost.steps[0].error == "Invalid message: guess: must be a number" and lost.correct is True
    assert never.stop_reason == "max_turns" and never.correct is False
    assert (guessing.open, guessing.closed) == (0, 4)


def test_an_action_of_several_fields_is_a_tool() -> None:
    with Server(MOVE) as server:
        env = OpenEnvEnv(url=server.url)
        (tool,) = env.tools
        declared = [(a.name, a.type, a.required) for a in tool.arguments]
        assert declared == [("x", "integer", True), ("why", "string", False)]
        turns = ["no call", '{"name": "ACT", "arguments": {"x": 4}}']
        (won,) = env.run_trial([{"seed": 4}], ByteAgent(lambda row, turn, seen: turns[turn]), 1)["trajectories"]
        assert won.steps[0].parse_error and won.env_reward == 1.0 and won.correct is None


def test_a_server_of_mcp_tools_has_its_own() -> None:
    with Server(CALL) as server:
        env = OpenEnvEnv(url=server.url)
        assert [t.name for t in env.tools] == ["add"]
        turns = ['{"name": "add", "arguments": {"a": 1}}', '{"name": "add", "arguments": {"a": 9}}']
        (done,) = env.run_trial([{"seed": 4}], ByteAgent(lambda row, turn, seen: turns[turn]), 1)["trajectories"]
        assert [s.observation for s in done.steps] == ["2", "10"] and done.env_reward == 1.0


def test_a_full_server_says_what_it_needs() -> None:
    with Server(GUESS, capacity=1) as server:
        env = OpenEnvEnv(url=server.url)
        trial = env.run_trial([{"seed": 4}], ByteAgent(lambda row, turn, seen: "4"), 3)
        failed = [t for t in trial["trajectories"] if t.error]
        assert len(failed) == 2 and all("max_concurrent_envs" in t.error for t in failed)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"url": "http://127.0.0.1:9"}, "no OpenEnv server at http://127.0.0.1:9"),
        ({"url": "127.0.0.1:8000"}, "url is the address"),
        ({}, "url"),
    ],
)
def test_what_cannot_be_had_is_one_sentence(config: dict[str, Any], said: str) -> None:
    with pytest.raises(EnvLoadError, match=said) as raised:
        make_env("grpo_tui.envs.plugins.openenv.OpenEnvEnv", config)
    assert "\n" not in str(raised.value)


def test_an_unknown_field_is_said_at_once(guessing: Server) -> None:
    with pytest.raises(ValueError, match="no field answer; they have guess"):
        OpenEnvEnv(url=guessing.url, action="answer")
