"""Environments behind an OpenEnv server, over its WebSocket protocol: `pip install 'grpo-tui[openenv]'`.

https://github.com/meta-pytorch/OpenEnv: `GET /schema` describes an action. On `/ws` every message is `{"type": "reset"
| "step" | "close", "data": {...}}`, answered by `{"type": "observation", "data": {"observation", "reward", "done"}}` or
`{"type": "error", "data": {"message", "code"}}`. One connection is one episode.
"""

from __future__ import annotations

import json
import threading
import urllib.request
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from ..agent import Message
from ..base import EnvOptions, Split, StepResult, Verdict
from ..calls import ToolCall, without_thoughts
from ..multi_turn import MultiTurnEnv
from ..seeds import split_seeds
from ..tools import ToolSpec, tool_of_schema
from ..user_code import one_line
from . import optional

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

HIDDEN = ("done", "reward", "metadata")
"""Fields of an observation to hide from the policy."""
ACT = "ACT"
"""The tool for actions that are not a single text."""


class OpenEnvEnv(MultiTurnEnv):
    """An OpenEnv server at `url`.

    If an action has a single text field, the policy's whole turn fills it. Otherwise an action is a call of the tool
    ACT. A server of MCP tools has its own tools. action: the field for the whole turn, if there are several.
    observation: the field that the policy reads (None: the only text field, else all fields as JSON). options:
    arguments of each reset, in addition to the seed. instruction: text before the first observation. success_score: the
    minimum total reward of a right episode (None: success is unknown, and the reward is the total).
    """

    name = "openenv"

    def __init__(
        self,
        tokenizer: object = None,
        *,
        url: str,
        action: str | None = None,
        observation: str | None = None,
        options: Mapping[str, object] | None = None,
        instruction: str = "",
        success_score: float | None = None,
        max_turns: int = 16,
        **config: Unpack[EnvOptions],
    ) -> None:
        super().__init__(tokenizer, max_turns=max_turns, **config)
        if not url.startswith(("http://", "https://", "ws://", "wss://")):
            raise ValueError(f'url is the address of an OpenEnv server, such as "http://127.0.0.1:8000", not {url!r}')
        self.url = url.rstrip("/").replace("ws://", "http://", 1).replace("wss://", "https://", 1)
        self.observation, self.instruction = observation, instruction
        self.options = dict(options or {})
        self.success_score, self.knows_success = success_score, success_score is not None
        optional("websockets.sync.client", "openenv")
        action_schema = self._action_schema()
        fields = {k: v for k, v in (action_schema.get("properties") or {}).items() if k not in ("metadata", "type")}
        self.mcp = {"tool_name", "arguments"} <= fields.keys()
        texts = [name for name, schema in fields.items() if schema.get("type") == "string"]
        self.field = action or (texts[0] if len(fields) == 1 and texts else None)
        if self.field is not None and self.field not in fields:
            raise ValueError(f"actions of {url} have no field {self.field}; they have {', '.join(fields)}")
        if self.mcp:
            self.tools = self._listed_tools()
        elif self.field is None:
            required = [name for name, schema in fields.items() if "default" not in schema]
            schema = {**action_schema, "properties": fields, "required": required}
            self.tools = (tool_of_schema(ACT, "Acts in the environment.", schema),)

    def make_tasks(self, split: Split, n: int, seed: int) -> list[dict[str, int | str]]:
        return [{"url": self.url, "seed": number} for number in split_seeds(split, n, seed)]

    def reset(self, task: Mapping[str, int | str]) -> tuple[ServerEpisode, list[Message]]:
        episode = ServerEpisode(self.url, self.turn_timeout_s)
        answer = episode.ask("reset", {**self.options, **({"seed": task["seed"]} if "seed" in task else {})})
        text = "\n\n".join(part for part in (self.instruction, self._text(answer.get("observation"))) if part)
        return episode, [Message(role="user", content=text or "Begin.")]

    def explain(self) -> str:
        return super().explain() if self.tools else ""

    def step(self, state: ServerEpisode, call: ToolCall) -> StepResult:
        arguments = dict(call.arguments)
        if self.mcp:
            data: Mapping[str, object] = {"type": "call_tool", "tool_name": call.name, "arguments": arguments}
        elif self.field is not None:
            data = {self.field: without_thoughts(arguments["text"]).strip()}
        else:
            data = arguments
        try:
            answer = state.ask("step", data)
        except ActionRefused as problem:  # the policy's fault, so the policy reads the error
            return StepResult(f"error: {problem}", error=str(problem))
        reward = float(answer.get("reward") or 0.0)
        state.total += reward
        done = bool(answer.get("done"))
        correct = None if self.success_score is None else state.total >= self.success_score
        text = self._text(answer.get("observation"))
        return StepResult(text, reward, done, call.text.strip() if done else None, correct)

    def finish(self, states: Sequence[ServerEpisode]) -> list[Verdict | None]:
        for state in states:
            state.close()
        return [None] * len(states)

    def _text(self, observation: object) -> str:
        if not isinstance(observation, Mapping):
            return str(observation or "")
        if self.observation is not None:
            if self.observation not in observation:
                raise ValueError(f"the observation has no field {self.observation}; it has {', '.join(observation)}")
            value = observation[self.observation]
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if self.mcp and "tool_name" in observation:
            return _tool_result(observation)
        values = {k: v for k, v in observation.items() if k not in HIDDEN and v not in (None, "", [], {})}
        if len(values) == 1 and isinstance(only := next(iter(values.values())), str):
            return only
        return json.dumps(values, ensure_ascii=False) if values else ""

    def _action_schema(self) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{self.url}/schema", timeout=self.turn_timeout_s) as answer:
                return json.load(answer)["action"]
        except Exception as problem:  # a network or an unknown server may fail in any way
            raise ValueError(f"there is no OpenEnv server at {self.url}: {one_line(problem)}") from problem

    def _listed_tools(self) -> tuple[ToolSpec, ...]:
        episode = ServerEpisode(self.url, self.turn_timeout_s)
        try:
            episode.ask("reset", self.options)
            listed = episode.ask("step", {"type": "list_tools"})["observation"]["tools"]
        finally:
            episode.close()
        return tuple(
            tool_of_schema(t["name"], t.get("description"), t.get("input_schema") or t.get("inputSchema"))
            for t in listed
        )


class ActionRefused(ValueError):
    """The server rejected an action."""


class ServerEpisode:
    """A connection to the server, which is one episode. total: the sum of its rewards."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.total = 0.0
        self._timeout_s = timeout_s
        self._turn = threading.Lock()
        address = f"{url.replace('http', 'ws', 1)}/ws"
        try:
            self._socket = optional("websockets.sync.client", "openenv").connect(
                address, open_timeout=timeout_s, max_size=2**27
            )
        except Exception as problem:
            raise ConnectionError(f"{address} accepts no connection: {one_line(problem)}") from problem
        self.close = weakref.finalize(self, _close, self._socket)

    def ask(self, kind: str, data: Mapping[str, object]) -> dict[str, Any]:
        """Return the answer to one message. Raises ActionRefused, ConnectionError."""
        with self._turn:
            try:
                self._socket.send(json.dumps({"type": kind, "data": dict(data)}))
                answer = json.loads(self._socket.recv(timeout=self._timeout_s))
            except Exception as problem:
                raise ConnectionError(f"the OpenEnv server did not answer {kind}: {one_line(problem)}") from problem
        found = answer.get("data") or {}
        if answer.get("type") != "error":
            return found
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in found.get("errors") or ()]
        code, message = found.get("code"), " ".join(": ".join([str(found.get("message") or found), *faults]).split())
        if code == "CAPACITY_REACHED":
            raise ConnectionError(
                f"{message}: the server needs max_concurrent_envs of at least training.prompts_per_step times "
                "training.num_generations"
            )
        if code == "VALIDATION_ERROR" and kind == "step":
            raise ActionRefused(message)
        raise ConnectionError(f"the OpenEnv server failed at {kind}: {message}")


def _close(socket: ClientConnection) -> None:
    try:
        socket.send(json.dumps({"type": "close"}))
        socket.close()
    except Exception:  # the server may already be gone
        return


def _tool_result(observation: Mapping[str, object]) -> str:
    if observation.get("error"):
        error = observation["error"]
        return f"error: {error.get('message') if isinstance(error, Mapping) else error}"
    result = observation.get("result")
    if isinstance(result, Mapping):
        content = result.get("content")
        if isinstance(content, list):
            return "\n".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
        result = result.get("data", result)
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
