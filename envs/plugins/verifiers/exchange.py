"""A running rollout of a `verifiers` environment or harness, and its messages to and from the agent."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...agent import Message
from ...guard import loop, submit
from .library import dumped, library, plain_messages


@dataclass(frozen=True)
class Completion:
    """One turn of the agent. calls: id, name and arguments of each. cut: a limit ended the turn."""

    text: str
    calls: tuple[tuple[str, str, dict[str, object]], ...] = ()
    cut: bool = False


class NoRoom(Exception):
    """A limit ended the rollout before another turn."""


class RolloutExchange:
    """A rollout as a coroutine on the background loop, and its messages to and from the agent.

    play: runs the rollout, which requests completions from this object, and returns its final state. tools: those in
    the last request, if any.
    """

    def __init__(self, play: Callable[[RolloutExchange], Awaitable[object]]) -> None:
        self.tools: Sequence[Mapping[str, Any]] = ()
        self._events: queue.Queue[list[Message] | None] = queue.Queue()
        self._waiting: asyncio.Future[Completion] | None = None
        self._messages: list[dict[str, object]] = []
        self._outcome: object = None
        self._ended = threading.Event()
        self._task = submit(self._run(play))

    def next(self, timeout_s: float) -> list[Message] | None:
        """Return the messages that the environment adds before its next completion request, or None at its end. Raises
        TimeoutError and the environment's exceptions."""
        try:
            added = self._events.get(timeout=timeout_s)
        except queue.Empty:
            self.give_up()
            raise TimeoutError(f"took longer than {timeout_s:g} s") from None
        if added is None and isinstance(self._outcome, BaseException):
            raise self._outcome
        return added

    def answer(self, turn: Completion) -> None:
        loop().call_soon_threadsafe(self._settle, turn)

    def end(self, timeout_s: float) -> Any:
        """Return the final state, or the exception that ended the rollout. If it still waits for a completion, it gets
        an inference server's context-length error."""
        if not self._ended.is_set():
            loop().call_soon_threadsafe(self._settle, NoRoom("no room for another turn"))
        if not self._ended.wait(timeout_s):
            self.give_up()
            return TimeoutError(f"it took longer than {timeout_s:g} s to end")
        return self._outcome

    def last_words(self) -> list[Message]:
        """Return the messages that the environment added after its last completion request."""
        state = self._outcome
        final = state.get("final_env_response") if isinstance(state, Mapping) else None
        if isinstance(final, str):
            return [Message(role="user", content=final)]
        return plain_messages([dumped(m) for m in final], "the last reply") if final else []

    def give_up(self) -> None:
        self._task.cancel()

    async def _run(self, play: Callable[[RolloutExchange], Awaitable[object]]) -> None:
        try:
            self._outcome = await play(self)
        except BaseException as problem:
            self._outcome = problem
        finally:
            self._ended.set()
            self._events.put(None)

    async def ask(self, prompt: Sequence[object]) -> Completion:
        """Return the agent's next turn to the environment's rollout. Raises ValueError if the conversation cannot be a
        single token sequence."""
        messages = [dumped(m) for m in prompt]
        known = len(self._messages)
        if self._waiting is not None:
            raise ValueError("the environment requests two completions at once, which one rollout cannot represent")
        if messages[:known] != self._messages:
            raise ValueError("the environment changed earlier messages, which one token sequence cannot represent")
        added = plain_messages(messages[known:], "the environment's reply")
        self._messages = messages
        self._waiting = asyncio.get_running_loop().create_future()
        self._events.put(added)
        try:
            return await self._waiting
        finally:
            self._waiting = None

    def said(self, message: object) -> None:
        """Add the agent's turn in the environment's format."""
        self._messages.append(dumped(message))

    def _settle(self, result: Completion | Exception) -> None:
        if self._waiting is None or self._waiting.done():
            return
        if isinstance(result, Exception):
            self._waiting.set_exception(result)
        else:
            self._waiting.set_result(result)


def client(exchange: RolloutExchange) -> Any:
    """Return a verifiers client that gets its completions from `exchange`."""
    types = library().types

    class PolicyClient(library().Client):
        def setup_client(self, config: object) -> object:
            return config

        async def to_native_tool(self, tool: object) -> object:
            return tool

        async def to_native_prompt(self, messages: object) -> tuple[object, dict[str, object]]:
            return messages, {}

        async def get_native_response(self, prompt: Sequence[object], *_: object, **__: object) -> Completion:
            try:
                return await exchange.ask(prompt)
            except NoRoom as error:
                raise library().OverlongPromptError(str(error)) from error

        async def raise_from_native_response(self, response: object) -> None:
            """A turn is always a valid response."""

        async def from_native_response(self, response: Completion) -> object:
            calls = [types.ToolCall(id=k, name=n, arguments=json.dumps(a)) for k, n, a in response.calls] or None
            reason = "length" if response.cut else "tool_calls" if calls else "stop"
            exchange.said(types.AssistantMessage(content=response.text, tool_calls=calls))
            return types.Response(
                id=f"turn-{id(response)}",
                created=int(time.time()),
                model="policy",
                message=types.ResponseMessage(
                    content=response.text, tool_calls=calls, finish_reason=reason, is_truncated=response.cut
                ),
            )

        async def close(self) -> None:
            """Do nothing: no connection is open."""

    return PolicyClient(None)
