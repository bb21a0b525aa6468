"""Answers in the formats of the OpenAI API: chat completions and responses, whole or as server-sent events."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from ..requests import Answer


@dataclass(frozen=True)
class Usage:
    """Tokens of the answer's trajectory: those it read (prompt and observations) and those it wrote."""

    read: int
    written: int

    @classmethod
    def of(cls, answer: Answer) -> Usage:
        for sample in answer.samples:
            if sample.trajectory is not None and sample.trajectory.id == answer.trajectory_id:
                written = int(sample.agent_mask.sum())
                return cls(len(sample) - written, written)
        return cls(0, 0)

    def as_chat(self) -> dict[str, int]:
        return {
            "prompt_tokens": self.read,
            "completion_tokens": self.written,
            "total_tokens": self.read + self.written,
        }

    def as_response(self) -> dict[str, Any]:
        return {
            "input_tokens": self.read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": self.written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.read + self.written,
        }


@dataclass(frozen=True)
class Completion:
    """One answer for its caller. facts: the fields under `grpo_tui` (votes, version, trajectory)."""

    identifier: str
    model: str
    answer: Answer
    facts: dict[str, Any]
    created: int

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """`length` when the shown rollout ran out of tokens or turns."""
        for sample in self.answer.samples:
            shown = sample.trajectory
            if shown is not None and shown.id == self.answer.trajectory_id:
                cut = bool(shown.steps) and shown.steps[-1].stop_reason in ("token_limit", "turn_limit")
                return "length" if cut or shown.stop_reason in ("max_tokens", "max_turns") else "stop"
        return "stop" if self.answer.text is not None else "length"

    @property
    def text(self) -> str:
        return self.answer.text or ""

    # ------------------------------------------------------------------------------------------ chat completions

    def chat(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": self.finish_reason}
        return {
            "id": self.identifier,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [choice],
            "usage": Usage.of(self.answer).as_chat(),
            "grpo_tui": self.facts,
        }

    # ------------------------------------------------------------------------------------------------- responses

    def response(self) -> dict[str, Any]:
        cut = self.finish_reason == "length"
        status = "incomplete" if cut else "completed"
        return response_in(
            self.identifier,
            self.model,
            self.created,
            status=status,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            output=[_message(self.identifier, status, self.text)],
            usage=Usage.of(self.answer).as_response(),
            grpo_tui=self.facts,
        )


class ChatStream:
    """A streamed chat completion as server-sent events: `begin`, `piece` for each piece of text, `end`."""

    def __init__(self, identifier: str, model: str, created: int, include_usage: bool) -> None:
        self._usage = include_usage
        self._head = {"id": identifier, "object": "chat.completion.chunk", "created": created, "model": model}

    def begin(self) -> str:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> str:
        return self._chunk({"content": text})

    def end(self, whole: Completion) -> Iterator[str]:
        """Yield the finish reason, the usage if requested, and the end mark."""
        yield self._chunk({}, whole.finish_reason, grpo_tui=whole.facts)
        if self._usage:
            yield event({**self._head, "choices": [], "usage": Usage.of(whole.answer).as_chat()})
        yield "data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage: dict[str, Any] = {"usage": None} if self._usage else {}
        return event({**self._head, "choices": [choice], **usage, **more})


class ResponseStream:
    """A streamed response with the methods of `ChatStream`."""

    def __init__(self, identifier: str, model: str, created: int) -> None:
        self._number = itertools.count()
        self._started = response_in(identifier, model, created)
        self._place = {"item_id": _message_id(identifier), "output_index": 0, "content_index": 0}

    def begin(self) -> str:
        item = _message(self._started["id"], "in_progress", "")
        part = {"type": "output_text", "text": "", "annotations": []}
        return "".join(
            (
                self._named("response.created", response=self._started),
                self._named("response.in_progress", response=self._started),
                self._named("response.output_item.added", output_index=0, item=item),
                self._named("response.content_part.added", **self._place, part=part),
            )
        )

    def piece(self, text: str) -> str:
        return self._named("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def end(self, whole: Completion) -> Iterator[str]:
        item = _message(self._started["id"], "completed", whole.text)
        yield self._named("response.output_text.done", **self._place, text=whole.text, logprobs=[])
        yield self._named("response.content_part.done", **self._place, part=item["content"][0])
        yield self._named("response.output_item.done", output_index=0, item=item)
        done = whole.response()
        yield self._named(f"response.{done['status']}", response=done)

    def _named(self, kind: str, **values: Any) -> str:
        return f"event: {kind}\n" + event({"type": kind, "sequence_number": next(self._number), **values})


def response_in(identifier: str, model: str, created: int, **filled: Any) -> dict[str, Any]:
    """Return a `response` in progress, or with the `filled` fields."""
    return {
        "id": identifier,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": model,
        "output": [],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
        "temperature": None,
        "top_p": None,
        "usage": None,
        **filled,
    }


def _message_id(identifier: str) -> str:
    return f"msg_{identifier.removeprefix('resp_')}"


def _message(identifier: str, status: str, text: str) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {
        "id": _message_id(identifier),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [] if status == "in_progress" else content,
    }


def event(data: dict[str, Any]) -> str:
    """Format one server-sent event."""
    return f"data: {json.dumps(data)}\n\n"
