"""Recent conversations of callers. A new turn continues the rollout of the turns before it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from cachetools import FIFOCache

from ....envs.trajectory import Call, Step
from ...rollouts.rollout import Rollout

REMEMBERED = 1024
"""Number of turns that can still be continued."""

Told = Mapping[str, Any]
"""A message in the chat template's form: role, content, and `tool_calls` with their arguments as objects."""


@dataclass(frozen=True)
class Turn:
    """A turn that the policy wrote. messages: the conversation including this turn. rollout: of all turns so far.
    request: the number of the turn's request.
    """

    messages: tuple[Told, ...]
    rollout: Rollout
    request: int


@dataclass(frozen=True)
class Conversation:
    """The conversation of a request. prompt: its tokens; None if the environment builds the prompt. previous: the turn
    that it continues.
    """

    messages: tuple[Told, ...]
    caller: str = ""
    prompt: tuple[int, ...] | None = None
    previous: Turn | None = None


@dataclass
class Conversations:
    """Remembers each caller's turns by the messages up to them. Usable from any thread."""

    _turns: FIFOCache[bytes, Turn] = field(default_factory=lambda: FIFOCache(REMEMBERED))
    _keys: FIFOCache[int, bytes] = field(default_factory=lambda: FIFOCache(REMEMBERED))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def find(self, caller: str, messages: Sequence[Told]) -> Turn | None:
        """Return the policy's last turn in a conversation, if it is remembered."""
        keys = [key for message, key in _keyed(caller, messages) if message["role"] == "assistant"]
        with self._lock:
            return next((self._turns[key] for key in reversed(keys) if key in self._turns), None)

    def turn(self, caller: str, request: int) -> Turn | None:
        """Return the caller's turn that answered a request, if it is remembered."""
        with self._lock:
            turn = self._turns.get(self._keys.get(request, b""))
        if turn is None:
            return None
        *_, (_, key) = _keyed(caller, turn.messages)
        return turn if key == self._keys.get(request) else None

    def keep(
        self, conversation: Conversation, text: str, calls: Sequence[Call], rollout: Rollout, request: int
    ) -> None:
        messages = (*conversation.messages, assistant(text, calls))
        *_, (_, key) = _keyed(conversation.caller, messages)
        with self._lock:
            self._turns[key] = Turn(messages, rollout, request)
            self._keys.setdefault(request, key)


def assistant(text: str, calls: Sequence[Call]) -> Told:
    """Return the message for a turn of the policy."""
    tool_calls = [tool_call(call.id, call.name, call.arguments) for call in calls]
    return {"role": "assistant", "content": text, **({"tool_calls": tool_calls} if tool_calls else {})}


def tool_call(id: str, name: str, arguments: object) -> dict[str, object]:
    """Return a call as in messages. arguments: an object for chat templates, JSON text for callers."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _keyed(caller: str, messages: Sequence[Told]) -> Iterator[tuple[Told, bytes]]:
    """Yield each message with the key of the conversation up to it. Call ids and leading or trailing white space do not
    count, because clients change them.
    """
    digest = hashlib.sha256(caller.encode())
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls") or ()]
        part = [message["role"], str(message["content"]).strip(), calls]
        digest.update(json.dumps(part, sort_keys=True).encode() + b"\n")
        yield message, digest.digest()


def continued(previous: Turn, messages: Sequence[Told], rollout: Rollout) -> Rollout:
    """Join the earlier turns and a turn that was written after their tokens into one rollout.

    messages: of the conversation. Those after `previous` are the observation of the last earlier turn.
    """
    before, trajectory = previous.rollout, rollout.trajectory
    if before.trajectory is None or trajectory is None or not trajectory.steps:
        return rollout
    start, number = len(before), len(before.trajectory.steps)
    agent, turns = rollout.agent_mask.copy(), rollout.turn_ids.copy()
    agent[:start], turns[:start] = before.agent_mask, before.turn_ids
    turns[start:] = np.where(agent[start:], number, number - 1)
    logprobs = None
    if rollout.logprobs is not None and before.logprobs is not None:
        logprobs = np.concatenate([before.logprobs, rollout.logprobs[start:]])
    rewards = rollout.rewards.copy()
    rewards[:start] = before.rewards
    *earlier, last = before.trajectory.steps
    last = _answered(last, messages[len(previous.messages) :])
    steps = (*earlier, last, *(replace(s, index=s.index + number) for s in trajectory.steps))
    first = before.trajectory  # all turns of a conversation have the prompt of its first turn
    fields = ("prompt", "prompt_id", "messages", "task", "tools", "meta")
    beginning = {name: getattr(first, name) for name in fields}
    extra = {**trajectory.extra, "conversation": first.extra.get("conversation", first.id)}
    return replace(
        rollout,
        agent_mask=agent,
        turn_ids=turns,
        rewards=rewards,
        logprobs=logprobs,
        trajectory=replace(trajectory, steps=steps, extra=extra, **beginning),
    )


def _answered(step: Step, new: Sequence[Told]) -> Step:
    """Return a turn with its observation, the `new` messages, and with the result of each of its tool calls."""
    results = {str(m.get("tool_call_id")): str(m["content"]) for m in new if m["role"] == "tool"}
    calls = tuple(replace(call, result=results.get(call.id)) for call in step.calls)
    return replace(step, observation="\n".join(str(m["content"]) for m in new), calls=calls)


def with_calls(rollout: Rollout, calls: Sequence[Call], text: str, tools: Sequence[Mapping[str, Any]]) -> Rollout:
    """Return a rollout whose last turn calls the caller's tools. text: the text before the calls."""
    trajectory = rollout.trajectory
    if trajectory is None or not trajectory.steps:
        return rollout
    names = [tool["function"]["name"] for tool in tools]
    trajectory = replace(trajectory, meta={**trajectory.meta, "offered": names})
    if calls:
        first, last = calls[0], trajectory.steps[-1]
        called = {"thought": text, "action": first.name, "arguments": first.arguments, "calls": tuple(calls)}
        trajectory = replace(
            trajectory, answer=None, correct=None, steps=(*trajectory.steps[:-1], replace(last, **called))
        )
    return replace(rollout, trajectory=trajectory)
