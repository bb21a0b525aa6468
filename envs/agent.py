"""The contract between environment and agent. Implementations are in `engine/agents`. Mocks in tests fit too.

An agent opens a session for a batch of conversations, in which every row is one rollout. The rows that are still alive
act together. The answers of the environment are appended as tokens, so agent text is never tokenised again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, runtime_checkable

from .calls import ToolCall
from .content import Content, Picture
from .trajectory import TokenArrays

ROLES = ("system", "user", "assistant", "tool")


class Message(TypedDict, total=False):
    """One chat message."""

    role: str
    content: Content
    tool_call_id: str


@dataclass(frozen=True)
class AgentTurn:
    """One turn of the agent. `token_span` is `[start, end)` of its tokens in the row's `TokenArrays`.

    `stop_reason`: `stop` (end-of-turn token or stop string), `turn_limit`, `token_limit` (of the trajectory), `refused`
    (the agent cannot continue this conversation, for the reason in `problem`). `policy_version`: optimiser steps of the
    policy that wrote it (None: not known). `server`: address of the inference server that wrote it, or empty.
    """

    text: str
    token_span: tuple[int, int]
    stop_reason: str = "stop"
    problem: str = ""
    policy_version: int | None = None
    server: str = ""


@runtime_checkable
class AgentSession(Protocol):
    """A batch of conversations under way. Rows are numbered prompt-major: row = prompt * num_rollouts + rollout.

    One of an agent that sees (`sees`) also has `observe_seen` and `shown`, see `SeeingSession`.
    """

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        """Let these rows write their next turn together. Returns one `AgentTurn` per row, in order."""
        ...

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        """Append the answers of the environment to these rows, as tokens of the conversation."""

    def tokens(self, row: int) -> TokenArrays:
        """Return everything of this row so far."""
        ...

    def close(self) -> None:
        """Free the KV cache."""


@dataclass(frozen=True)
class ShownImage:
    """One image that an agent was shown. image: in the agent's own form, with its `size` (width and height in pixels)
    and its number of `tokens`. turn: the turn whose observation it came with, -1 for the prompt."""

    image: Any
    turn: int


class SeeingSession(AgentSession, Protocol):
    """A session of an agent that sees."""

    def observe_seen(
        self, rows: Sequence[int], observations: Sequence[str], pictures: Sequence[Sequence[Picture]]
    ) -> None:
        """Append observations as `observe` does, observation i with pictures[i]."""

    def shown(self, row: int) -> Sequence[ShownImage]:
        """Return the images of this row so far, in the order of their tokens."""
        ...


@runtime_checkable
class AsyncAgentSession(AgentSession, Protocol):
    """A session in which each row may write its next turn once it is ready."""

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        """Let these rows write their next turn. Not inside a running event loop."""

        async def all_rows() -> list[AgentTurn]:
            return await asyncio.gather(*map(self.act_alone, rows))

        return asyncio.run(all_rows())

    async def act_alone(self, row: int) -> AgentTurn:
        """Let one row write its next turn. Any number of rows may write at once."""
        ...


@runtime_checkable
class BranchingSession(AgentSession, Protocol):
    """A session whose rows may branch from others."""

    def branch(self, row: int, source: int, turns: int) -> None:
        """Let `row`, which has only its prompt, continue after the first `turns` turns of row `source` and their
        observations. Their tokens are not the agent's in `row`: its agent mask is False there."""


Seed = int | Sequence[int] | None
"""Of a session: one for each prompt, one for all, or none."""


@runtime_checkable
class Agent(Protocol):
    """A policy that can act."""

    def start(
        self,
        prompts: Sequence[Sequence[Message]],
        num_rollouts: int = 1,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        seed: Seed = None,
    ) -> AgentSession:
        """Open a session with `len(prompts) * num_rollouts` rows.

        `seed`: one for each prompt, so that its rollouts do not depend on the other prompts, or one number from which
        these are made (None: draw one). `tools`: JSON schemas that the chat template may render (None: the prompt
        explains the tools).
        """
        ...


class CallReader(Protocol):
    """Reads calls of tools in a model's own syntax."""

    def read(self, text: str, tools: Sequence[Mapping[str, object]]) -> ToolCall:
        """Return the calls of a turn, without a name if there is none. tools: JSON schemas."""
        ...


def call_reader(agent: object) -> CallReader | None:
    """Return the reader of an agent's own call syntax; None if its chat template shows no tools."""
    return getattr(agent, "call_reader", None)


def knows(agent: object, environment: str) -> bool:
    """Return whether an agent was trained on the tools of an environment, given by its name in records.

    Such an agent has a method `knows(environment)`. The prompt explains the tools to any other.
    """
    method = getattr(agent, "knows", None)
    return bool(method(environment)) if callable(method) else False


def sees(agent: object) -> bool:
    """Return whether an agent is shown pictures (its attribute `sees`)."""
    return bool(getattr(agent, "sees", False))
