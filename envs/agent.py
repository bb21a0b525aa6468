"""The interface between environment and agent. `engine/agents` implements it, and tests mock it.

An agent opens a session for a batch of conversations. Every row is one rollout, and all live rows act together.
Observations are appended as tokens, so the agent's text is never tokenised again.
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
    """One turn of the agent. `token_span` is the `[start, end)` of its tokens in the row's `TokenArrays`.

    `stop_reason`: `stop` (end-of-turn token or stop string), `turn_limit`, `token_limit` (of the trajectory), `refused`
    (the agent cannot continue this conversation; `problem` is the reason). `policy_version`: optimiser steps of the
    policy that wrote the turn (None: unknown). `server`: address of the inference server that wrote it, or empty.
    """

    text: str
    token_span: tuple[int, int]
    stop_reason: str = "stop"
    problem: str = ""
    policy_version: int | None = None
    server: str = ""


@runtime_checkable
class AgentSession(Protocol):
    """A batch of running conversations. Rows are numbered prompt-major: row = prompt * num_rollouts + rollout.

    The session of a vision agent (`sees`) is a `SeeingSession`.
    """

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        """Generate the next turn of these rows as one batch. Returns one `AgentTurn` per row, in order."""
        ...

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        """Append the environment's observations to these rows as tokens."""

    def tokens(self, row: int) -> TokenArrays:
        """Return all tokens of this row so far."""
        ...

    def close(self) -> None:
        """Free the KV cache."""


@dataclass(frozen=True)
class ShownImage:
    """One image that an agent was shown. image: in the agent's own format, with its `size` (width and height in pixels)
    and its number of `tokens`. turn: the turn whose observation included it, -1 for the prompt."""

    image: Any
    turn: int


class SeeingSession(AgentSession, Protocol):
    """A session of a vision agent."""

    def observe_seen(
        self, rows: Sequence[int], observations: Sequence[str], pictures: Sequence[Sequence[Picture]]
    ) -> None:
        """Append observations as `observe` does. pictures[i] belongs to observation i."""

    def shown(self, row: int) -> Sequence[ShownImage]:
        """Return the images of this row so far, in token order."""
        ...


@runtime_checkable
class AsyncAgentSession(AgentSession, Protocol):
    """A session whose rows can generate independently of each other."""

    def act(self, rows: Sequence[int]) -> list[AgentTurn]:
        """Generate the next turn of these rows. Do not call it inside a running event loop."""

        async def all_rows() -> list[AgentTurn]:
            return await asyncio.gather(*map(self.act_alone, rows))

        return asyncio.run(all_rows())

    async def act_alone(self, row: int) -> AgentTurn:
        """Generate the next turn of one row. Any number of rows may do so concurrently."""
        ...


@runtime_checkable
class BranchingSession(AgentSession, Protocol):
    """A session whose rows can branch from other rows."""

    def branch(self, row: int, source: int, turns: int) -> None:
        """Copy the first `turns` turns of row `source`, with their observations, into `row`, which has only its prompt.
        In `row`, the agent mask of the copied tokens is False."""


Seed = int | Sequence[int] | None
"""The seed of a session: one per prompt, one for all prompts, or None."""


@runtime_checkable
class Agent(Protocol):
    """A policy that can act. Optional: `sees` is True if it accepts pictures. `knows(environment)` returns whether it
    was trained on the tools of the environment of this name. Otherwise, the prompt explains them."""

    def start(
        self,
        prompts: Sequence[Sequence[Message]],
        num_rollouts: int = 1,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        seed: Seed = None,
    ) -> AgentSession:
        """Open a session with `len(prompts) * num_rollouts` rows.

        `seed`: one per prompt, so that its rollouts do not depend on the other prompts, or one number that determines
        them all (None: draw one). `tools`: JSON schemas for the chat template to render (None: the prompt explains the
        tools).
        """
        ...


class CallReader(Protocol):
    """Parses tool calls in a model's own syntax."""

    def read(self, text: str, tools: Sequence[Mapping[str, object]]) -> ToolCall:
        """Parse the calls of a turn. `name` is None if there are none. tools: JSON schemas."""
        ...


def call_reader(agent: object) -> CallReader | None:
    """Return the parser of the agent's own call syntax, or None if its chat template does not render tools."""
    return getattr(agent, "call_reader", None)
