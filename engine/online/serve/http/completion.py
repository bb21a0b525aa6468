"""Answers in the formats of the OpenAI API: chat completions and responses, whole or as server-sent events."""

from __future__ import annotations

import itertools
import json
import secrets
import time
from collections.abc import Iterator
from typing import Any

from ....rollouts.rollout import Rollout
from ..requests import Answer, answer_as_json


class ChatForm:
    """A chat completion: `whole`, or as events: `begin`, `piece` for each piece of text, `end`."""

    prefix = "chatcmpl-"

    def __init__(self, model: str, include_usage: bool = False) -> None:
        self._model = model
        self._usage = include_usage
        self._random, self._created = secrets.token_hex(6), int(time.time())
        self._identifier = ""

    def name(self, number: int) -> str:
        """Return the id of the answer to a request, which all its events have."""
        self._identifier = f"{self.prefix}{number}-{self._random}"
        return self._identifier

    def whole(self, answer: Answer) -> dict[str, Any]:
        self.name(answer.request.number)
        message = {"role": "assistant", "content": answer.text or "", "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _finish_reason(answer)}
        return self._body("chat.completion", [choice], usage=self._spent(answer), grpo_tui=answer_as_json(answer))

    def begin(self) -> str:
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str) -> str:
        return self._chunk({"content": text})

    def end(self, answer: Answer) -> Iterator[str]:
        """Yield the finish reason, the usage if requested, and the end mark."""
        yield self._chunk({}, _finish_reason(answer), grpo_tui=answer_as_json(answer))
        if self._usage:
            yield event(self._body("chat.completion.chunk", [], usage=self._spent(answer)))
        yield "data: [DONE]\n\n"

    def _chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage: dict[str, Any] = {"usage": None} if self._usage else {}
        return event(self._body("chat.completion.chunk", [choice], **usage, **more))

    def _body(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        head = {"id": self._identifier, "object": kind, "created": self._created, "model": self._model}
        return {**head, "choices": choices, **more}

    @staticmethod
    def _spent(answer: Answer) -> dict[str, int]:
        read, written = _tokens(answer)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


class ResponseForm(ChatForm):
    """A response of the OpenAI API, with the methods of `ChatForm`."""

    prefix = "resp_"

    def name(self, number: int) -> str:
        self._number = itertools.count()
        self._item = super().name(number).replace("resp_", "msg_")
        self._place = {"item_id": self._item, "output_index": 0, "content_index": 0}
        return self._identifier

    def whole(self, answer: Answer) -> dict[str, Any]:
        if not self._identifier:
            self.name(answer.request.number)
        cut = _finish_reason(answer) == "length"
        status = "incomplete" if cut else "completed"
        read, written = _tokens(answer)
        usage = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + written,
        }
        return self._response(
            status=status,
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            output=[self._message(status, answer.text or "")],
            usage=usage,
            grpo_tui=answer_as_json(answer),
        )

    def begin(self) -> str:
        part = {"type": "output_text", "text": "", "annotations": []}
        item = self._message("in_progress", None)
        return (
            self._named("response.created", response=self._response())
            + self._named("response.in_progress", response=self._response())
            + self._named("response.output_item.added", output_index=0, item=item)
            + self._named("response.content_part.added", **self._place, part=part)
        )

    def piece(self, text: str) -> str:
        return self._named("response.output_text.delta", **self._place, delta=text, logprobs=[])

    def end(self, answer: Answer) -> Iterator[str]:
        item = self._message("completed", answer.text or "")
        yield self._named("response.output_text.done", **self._place, text=answer.text or "", logprobs=[])
        yield self._named("response.content_part.done", **self._place, part=item["content"][0])
        yield self._named("response.output_item.done", output_index=0, item=item)
        done = self.whole(answer)
        yield self._named(f"response.{done['status']}", response=done)

    def _named(self, kind: str, **values: Any) -> str:
        return f"event: {kind}\n" + event({"type": kind, "sequence_number": next(self._number), **values})

    def _message(self, status: str, text: str | None) -> dict[str, Any]:
        content = [] if text is None else [{"type": "output_text", "text": text, "annotations": []}]
        return {"id": self._item, "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, **filled: Any) -> dict[str, Any]:
        """Return a `response` in progress, or with the `filled` fields."""
        empty = dict.fromkeys(("error", "incomplete_details", "instructions", "temperature", "top_p", "usage"))
        return {
            "id": self._identifier,
            "object": "response",
            "created_at": self._created,
            "status": "in_progress",
            **empty,
            "metadata": {},
            "model": self._model,
            "output": [],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
            **filled,
        }


def _shown(answer: Answer) -> Rollout | None:
    samples = (s for s in answer.samples if s.trajectory is not None and s.trajectory.id == answer.trajectory_id)
    return next(samples, None)


def _tokens(answer: Answer) -> tuple[int, int]:
    """Count the tokens that the shown rollout read (prompt and observations) and wrote."""
    sample = _shown(answer)
    if sample is None:
        return 0, 0
    written = int(sample.agent_mask.sum())
    return len(sample) - written, written


def _finish_reason(answer: Answer) -> str:
    """Return `length` when the shown rollout ran out of tokens or turns, else `stop`."""
    sample = _shown(answer)
    if sample is None or (shown := sample.trajectory) is None:
        return "stop" if answer.text is not None else "length"
    cut = bool(shown.steps) and shown.steps[-1].stop_reason in ("token_limit", "turn_limit")
    return "length" if cut or shown.stop_reason in ("max_tokens", "max_turns") else "stop"


def event(data: dict[str, Any]) -> str:
    """Format one server-sent event."""
    return f"data: {json.dumps(data)}\n\n"
