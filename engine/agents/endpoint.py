"""An `Agent` whose turns a server with OpenAI's chat completions API writes. Only evaluations use it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...configs.schema import RunConfig
from ...envs.agent import AgentTurn, AsyncAgentSession, Message, Seed
from ...envs.calls import ToolCall, parse_calls
from ...envs.content import text_of
from ...envs.seeds import seed_of
from ...envs.trajectory import TokenArrays
from ...rewards.chat_completions import ChatCompletions, ChatError
from .chat_session import seeds_of

TIMEOUT_S = 600.0
"""Time limit of one request. A reasoning model may write for minutes."""
FIRST_TRIES = 2
"""Tries of the first request. Few, so that a wrong address is reported soon."""
REFUSED = frozenset({400, 413, 422})
"""HTTP codes for a request that the server will never accept."""
_REFUSED = (
    "; if it supports no tools, --set model.tool_calls=json explains them in the prompt, and "
    "evaluation.request.FIELD=VALUE changes another field"
)
ADVICE = {
    **dict.fromkeys((401, 403), "; the key comes from ${key}, and --api-key-env selects another variable"),
    404: "; the address is the base of the API, such as http://127.0.0.1:8000/v1, and NAME a model that it serves",
    **dict.fromkeys(REFUSED, _REFUSED),
}
"""The fix by HTTP code, if the first request fails."""
MOST_TOKENS = 2**24
"""Larger token counts in an answer are ignored as implausible."""
FULL = ("context length", "context_length", "context window", "maximum context", "context size")
"""Parts of error messages about a conversation that is too long for the model."""


class EndpointAgent:
    """The model `NAME` of `model.base: URL@NAME`. It reads text only.

    The environment's tools are sent in the field `tools`, or with `model.tool_calls: json` in the prompt. A turn has at
    most `training.max_turn_tokens` tokens. Only the server limits a conversation.
    """

    sees = False

    def __init__(self, config: RunConfig) -> None:
        spec = config.evaluation
        url, _, self.model = config.model.base.partition("@")
        self.key_name = spec.api_key_env
        key = os.environ.get(self.key_name, "")
        self.api = ChatCompletions(url, key, parallel=spec.parallel, timeout=TIMEOUT_S, tries=spec.tries)
        self.options = {"temperature": spec.temperature, "max_tokens": config.training.max_turn_tokens, **spec.request}
        self.call_reader = self if config.model.native_calls else None
        self.counted = True
        """Whether every answer came with its number of tokens."""
        self._answered = False

    def read(self, text: str, tools: Sequence[Mapping[str, object]]) -> ToolCall:
        """Return the calls of a turn (`envs.agent.CallReader`)."""
        return parse_calls(text)

    def start(
        self,
        prompts: Sequence[Sequence[Message]],
        num_rollouts: int = 1,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        seed: Seed = None,
    ) -> EndpointSession:
        """Open a session (`envs.agent.Agent`). The first one asks the server for a token. Raises ChatError."""
        opening = [[{**m, "content": text_of(m.get("content", ""))} for m in messages] for messages in prompts]
        seeds = [(s, i) for s in seeds_of(seed, len(prompts)) for i in range(num_rollouts)]
        rows = [_Conversation(list(opening[i // num_rollouts]), *seeds[i]) for i in range(len(seeds))]
        session = EndpointSession(self, rows, list(tools or ()))
        if not self._answered and rows:
            asyncio.run(self._check(session.body(rows[0])))
            self._answered = True
        return session

    async def _check(self, body: dict[str, object]) -> None:
        """Check that the server accepts our requests, before single rollouts may be refused."""
        limits = {name: 1 for name in ("max_tokens", "max_completion_tokens") if name in body}
        try:
            await self.api.ask({**body, **limits}, FIRST_TRIES)
        except ChatError as problem:
            advice = ADVICE.get(problem.code or 0, "").format(key=self.key_name)
            raise ChatError(f"{problem}{advice}", problem.code) from None


@dataclass
class _Conversation:
    """A row. ids: the calls that wait for an answer. tokens: the turn of each, and whether the model wrote it."""

    messages: list[dict[str, object]]
    seed: int
    index: int
    ids: list[str] = field(default_factory=list)
    turns: int = 0
    tokens: list[tuple[int, bool]] = field(default_factory=lambda: [(-1, False)])


class EndpointSession(AsyncAgentSession):
    """An `AsyncAgentSession` (`envs.agent`). Servers report the number of tokens but not their ids, which are 0."""

    def __init__(
        self, agent: EndpointAgent, rows: Sequence[_Conversation], tools: Sequence[Mapping[str, object]]
    ) -> None:
        self.agent, self.rows, self.tools = agent, rows, tools

    def body(self, row: _Conversation) -> dict[str, Any]:
        seed = seed_of(row.seed, row.index, row.turns) % 2**31
        body = {"model": self.agent.model, "messages": row.messages, "seed": seed, **self.agent.options}
        if self.tools:
            body["tools"] = self.tools
        return {name: value for name, value in body.items() if value is not None}

    async def act_alone(self, row: int) -> AgentTurn:
        """Let one row write its next turn. Raises ChatError."""
        conversation = self.rows[row]
        start = len(conversation.tokens)
        try:
            choice = await self.agent.api.ask(self.body(conversation))
        except ChatError as problem:
            if problem.code not in REFUSED:
                raise
            full = any(part in str(problem).lower() for part in FULL)
            return AgentTurn("", (start, start), "token_limit" if full else "refused", str(problem))
        message = choice["message"]
        start = self._count(conversation, choice["usage"])
        calls = message.get("tool_calls") or []
        conversation.ids = [str(call.get("id", "")) for call in calls]
        content = message.get("content") or ""
        conversation.messages.append(
            {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}
        )
        conversation.turns += 1
        reason = "turn_limit" if choice.get("finish_reason") == "length" else "stop"
        return AgentTurn(_text(message), (start, len(conversation.tokens)), reason, server=self.agent.api.url)

    def observe(self, rows: Sequence[int], observations: Sequence[str]) -> None:
        """Append observations: as the answer to the first call of the turn, or as a user message."""
        for row, text in zip(rows, observations, strict=True):
            conversation = self.rows[row]
            if not conversation.ids:
                conversation.messages.append({"role": "user", "content": text})
            for number, name in enumerate(conversation.ids):
                answer = text if number == 0 else "See the answer to the first call."
                conversation.messages.append({"role": "tool", "tool_call_id": name, "content": answer})

    def tokens(self, row: int) -> TokenArrays:
        tokens = self.rows[row].tokens
        count = len(tokens)
        return TokenArrays(
            token_ids=np.zeros(count, np.int32),
            agent_mask=np.array([written for _, written in tokens], bool),
            logprobs=np.zeros(count, np.float32),
            turn=np.array([turn for turn, _ in tokens], np.int16),
        )

    def _count(self, conversation: _Conversation, usage: Mapping[str, object]) -> int:
        """Count the tokens of a turn and of the text before it. Returns the index of its first token."""
        before, written = usage.get("prompt_tokens"), usage.get("completion_tokens")
        if not (isinstance(before, int) and isinstance(written, int) and 0 < max(before, written) < MOST_TOKENS):
            before, written, self.agent.counted = 0, 1, False
        # Thoughts are not sent again, so the next prompt may be shorter than the conversation.
        conversation.tokens += [(conversation.turns - 1, False)] * (before - len(conversation.tokens))
        start = len(conversation.tokens)
        conversation.tokens += [(conversation.turns, True)] * max(written, 1)
        return start


def _text(message: Mapping[str, Any]) -> str:
    """Return a turn as text: thoughts in tags, the content, and each call in the form of Hermes."""
    thought = message.get("reasoning_content") or message.get("reasoning")
    parts = [f"<think>\n{thought}\n</think>"] if isinstance(thought, str) and thought.strip() else []
    content = message.get("content")
    if isinstance(content, list):  # Mistral's reasoning models answer with parts
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    if content:
        parts.append(str(content))
    for call in message.get("tool_calls") or []:
        arguments = call["function"].get("arguments")
        with contextlib.suppress(ValueError, TypeError):  # `parse_calls` reports it
            arguments = json.loads(arguments)
        written = json.dumps({"name": call["function"]["name"], "arguments": arguments}, ensure_ascii=False)
        parts.append(f"<tool_call>\n{written}\n</tool_call>")
    return "\n".join(parts)
