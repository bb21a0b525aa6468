"""The contract between environment and agent. Implementations are in `engine/agents`; mocks in tests fit too.

An agent opens a session for a batch of conversations. In a session every row is one rollout; the rows that are still
alive act together, and the answers of the environment are appended as tokens: agent text is never re-tokenised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, runtime_checkable

from .calls import ToolCall
from .content import Content, Picture
from .trajectory import TokenArrays


class Message(TypedDict, total=False):
    """One chat message."""

    role: str
    content: Content
    tool_call_id: str


@dataclass(frozen=True)
class AgentTurn:
    """One turn of the agent. `token_span` is `[start, end)` of its tokens in the row's `TokenArrays`.

    `stop_reason`: `stop` (end-of-turn token or stop string), `turn_limit`, `token_limit` (of the trajectory), `refused`
    (the agent cannot continue this conversation, for the reason in `problem`).
    `policy_version`: optimiser steps that the policy which wrote it had made; None where the agent does not know.
    `server`: address of the inference server that wrote it; empty: none did.
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
        """Let these rows write their next turn, all together; one `AgentTurn` per row, in order."""
        ...

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        """Append the answers of the environment to these rows, as tokens of the conversation."""

    def tokens(self, row: int) -> TokenArrays:
        """Everything of this row so far."""
        ...

    def close(self) -> None:
        """Free the KV cache."""


class ShownImage(Protocol):
    """One image that an agent was shown. Further fields belong to the agent."""

    @property
    def turn(self) -> int:
        """The turn whose observation it came with; -1: the prompt."""
        ...

    @property
    def size(self) -> tuple[int, int]:
        """Width and height as the model was shown it."""
        ...

    @property
    def tokens(self) -> int:
        """Tokens of the image."""
        ...


class SeeingSession(AgentSession, Protocol):
    """A session of an agent that sees."""

    def observe_seen(
        self, rows: Sequence[int], observations: Sequence[str], pictures: Sequence[Sequence[Picture]]
    ) -> None:
        """As `observe`; pictures[i] are shown with observation i."""

    def shown(self, row: int) -> Sequence[ShownImage]:
        """The images of this row so far, in the order of their tokens."""
        ...


@runtime_checkable
class AsyncAgentSession(AgentSession, Protocol):
    """A session in which each row may write its next turn as soon as it is ready."""

    async def act_alone(self, row: int) -> AgentTurn:
        """Let one row write its next turn; as many rows at once as there are."""
        ...


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
        tools: Sequence[Mapping[str, Any]] | None = None,
        seed: Seed = None,
    ) -> AgentSession:
        """Open a session with `len(prompts) * num_rollouts` rows.

        `seed`: one for each prompt, so that its rollouts do not depend on which other prompts are in the session; or
        one number that such are made from; None draws one.

        `tools`, when given, are JSON schemas that the chat template may render; None when the prompt says all.
        """
        ...


class CallReader(Protocol):
    """Reads calls of tools in a model's own syntax."""

    def read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
        """The calls of a turn, without a name where there is none. tools: JSON schemas."""
        ...


def call_reader(agent: object) -> CallReader | None:
    """What reads an agent's calls in its own syntax: `call_reader`, where its chat template shows tools."""
    return getattr(agent, "call_reader", None)


def knows(agent: object, environment: str) -> bool:
    """Whether an agent was taught the tools of an environment, by its name in records.

    An agent that knows some says so with a method `knows(environment)`; any other has to be told.
    """
    method = getattr(agent, "knows", None)
    return bool(method(environment)) if callable(method) else False


def sees(agent: object) -> bool:
    """Whether an agent is shown pictures (its attribute `sees`)."""
    return bool(getattr(agent, "sees", False))
