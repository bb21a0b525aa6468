"""Answers in OpenAI's forms: chat completions and responses, whole or as a stream of server-sent events."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ..answers import Answer

PIECE = 48
"""Characters in one event of a stream. The answer is known as a whole, by vote, before its first character goes out."""


@dataclass(frozen=True)
class Usage:
    """Tokens of the trajectory that gave the answer: what it read (prompt and observations) and what it wrote."""

    read: int
    written: int

    @classmethod
    def of(cls, answer: Answer) -> Usage:
        """Counted from the arrays of the rollout."""
        for sample in answer.samples:
            if sample.trajectory is not None and sample.trajectory.id == answer.trajectory_id:
                written = int(sample.agent_mask.sum())
                return cls(len(sample) - written, written)
        return cls(0, 0)

    def as_chat(self) -> dict[str, int]:
        """As chat completions name it."""
        return {
            "prompt_tokens": self.read,
            "completion_tokens": self.written,
            "total_tokens": self.read + self.written,
        }

    def as_response(self) -> dict[str, Any]:
        """As responses name it."""
        return {
            "input_tokens": self.read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": self.written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.read + self.written,
        }


@dataclass(frozen=True)
class Completion:
    """One answer under way to its caller. `facts`: what grpo-tui says besides (votes, version, trajectory)."""

    identifier: str
    model: str
    answer: Answer
    facts: dict[str, Any]
    created: int = 0

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """`length` when the rollout that is shown ran out of tokens or turns."""
        for sample in self.answer.samples:
            shown = sample.trajectory
            if shown is not None and shown.id == self.answer.trajectory_id:
                cut = bool(shown.steps) and shown.steps[-1].stop_reason in ("token_limit", "turn_limit")
                return "length" if cut or shown.stop_reason in ("max_tokens", "max_turns") else "stop"
        return "stop" if self.answer.text is not None else "length"

    @property
    def text(self) -> str:
        """The answer; empty when no rollout came to one."""
        return self.answer.text or ""

    # ------------------------------------------------------------------------------------------ chat completions

    def chat(self) -> dict[str, Any]:
        """A `chat.completion`."""
        message = {"role": "assistant", "content": self.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish_reason}
        return {
            "id": self.identifier,
            "object": "chat.completion",
            "created": self.created or int(time.time()),
            "model": self.model,
            "choices": [choice],
            "usage": Usage.of(self.answer).as_chat(),
            "grpo_tui": self.facts,
        }

    def chat_events(self, include_usage: bool) -> Iterator[str]:
        """The chunks of a streamed chat completion, as server-sent events."""
        head = {
            "id": self.identifier,
            "object": "chat.completion.chunk",
            "created": self.created or int(time.time()),
            "model": self.model,
        }
        usage: dict[str, Any] = {"usage": None} if include_usage else {}

        def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return event({**head, "choices": [choice], **usage, **more})

        yield chunk({"role": "assistant", "content": ""})
        for start in range(0, len(self.text), PIECE):
            yield chunk({"content": self.text[start : start + PIECE]})
        yield chunk({}, self.finish_reason, grpo_tui=self.facts)
        if include_usage:
            yield event({**head, "choices": [], "usage": Usage.of(self.answer).as_chat()})
        yield "data: [DONE]\n\n"

    # ------------------------------------------------------------------------------------------------- responses

    def response(self, status: str = "completed") -> dict[str, Any]:
        """A `response` with one message; without it while `status` is `in_progress`."""
        done = status != "in_progress"
        if done and self.finish_reason == "length":
            status = "incomplete"
        return {
            "id": self.identifier,
            "object": "response",
            "created_at": self.created or int(time.time()),
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": None,
            "metadata": {},
            "model": self.model,
            "output": [self._message(status)] if done else [],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            "temperature": None,
            "top_p": None,
            "usage": Usage.of(self.answer).as_response() if done else None,
            "grpo_tui": self.facts,
        }

    def _message(self, status: str) -> dict[str, Any]:
        text = [{"type": "output_text", "text": self.text, "annotations": []}]
        return {
            "id": f"msg_{self.identifier.removeprefix('resp_')}",
            "type": "message",
            "role": "assistant",
            "status": status,
            "content": [] if status == "in_progress" else text,
        }

    def response_events(self) -> Iterator[str]:
        """The events of a streamed response."""
        number = iter(range(1_000_000))
        message = self._message("completed")
        part = message["content"][0]
        place = {"item_id": message["id"], "output_index": 0, "content_index": 0}

        def named(kind: str, **values: Any) -> str:
            return f"event: {kind}\n" + event({"type": kind, "sequence_number": next(number), **values})

        started = self.response("in_progress")
        yield named("response.created", response=started)
        yield named("response.in_progress", response=started)
        yield named("response.output_item.added", output_index=0, item=self._message("in_progress"))
        yield named("response.content_part.added", **place, part={**part, "text": ""})
        for start in range(0, len(self.text), PIECE):
            yield named("response.output_text.delta", **place, delta=self.text[start : start + PIECE], logprobs=[])
        yield named("response.output_text.done", **place, text=self.text, logprobs=[])
        yield named("response.content_part.done", **place, part=part)
        yield named("response.output_item.done", output_index=0, item=message)
        whole = self.response()
        yield named(f"response.{whole['status']}", response=whole)


def event(data: dict[str, Any]) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(data)}\n\n"
