"""Format answers as in the OpenAI API: chat completions and responses, complete or as server-sent events."""

from __future__ import annotations

import itertools
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .....envs.trajectory import Call
from ....agents.sampling import TokenLogprobs
from ....rollouts.rollout import Rollout
from ..answers import Answer, answer_as_json
from ..conversations import tool_call
from ..texts import Piece, Written

_PROCESS = secrets.token_hex(6)
"""Part of the ids of this process's answers. Another process may have answered a request of the same number."""
_IDENTIFIER = re.compile(rf"(?:chatcmpl-|resp_)(\d{{1,18}})-{_PROCESS}|(?:request-)?(\d{{1,18}})(?:-.*)?", re.ASCII)
PIECE = 48
"""Characters per event if the complete answer is known at once, as after a vote."""


class ChatForm:
    """Formats a chat completion: `whole`, or as events `piece` for each piece of a text, `rest` and `end`.

    text_of_token: for log-probs.
    """

    prefix = "chatcmpl-"

    def __init__(self, model: str, text_of_token: Callable[[int], str], include_usage: bool = False) -> None:
        self._model = model
        self._text_of_token = text_of_token
        self._usage = include_usage
        self._created = int(time.time())
        self._identifier = ""
        self._sent: dict[int, tuple[int, int]] = {}
        """The numbers of characters and scores sent so far, by text."""

    def name(self, number: int) -> None:
        """Set the id of the answer to a request. All of its events carry this id."""
        self._identifier = f"{self.prefix}{number}-{_PROCESS}"

    def whole(self, answer: Answer) -> dict[str, Any]:
        self.name(answer.request.number)
        choices = []
        for index, written in enumerate(_texts(answer)):
            content = None if written.calls and not written.text else written.text
            message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
            if written.calls:
                message["tool_calls"] = [_tool_call(call) for call in written.calls]
            logprobs, reason = self._logprobs(written.scores), _finish_reason(answer, index)
            choices.append({"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason})
        return self._body("chat.completion", choices, usage=self._usage_of(answer), grpo_tui=answer_as_json(answer))

    def piece(self, number: int, piece: Piece) -> str:
        """Return the event of a piece of text. The first piece of a text comes after the text's opening event.

        number: of the request.
        """
        opening = self._opened(number, piece.index)
        characters, scores = self._sent[piece.index]
        self._sent[piece.index] = characters + len(piece.text), scores + len(piece.scores)
        return opening + self._delta(piece)

    def rest(self, answer: Answer) -> Iterator[str]:
        """Yield the parts of the texts that have not been sent yet."""
        for index, written in enumerate(_texts(answer)):
            yield self._opened(answer.request.number, index)
            characters, scored = self._sent[index]
            text, scores = written.text[characters:], written.scores[scored:]
            while text or scores:
                yield self.piece(answer.request.number, Piece(text[:PIECE], index, scores))
                text, scores = text[PIECE:], ()
            for number, call in enumerate(written.calls):
                yield self._chunk({"tool_calls": [{"index": number, **_tool_call(call)}]}, index)

    def end(self, answer: Answer) -> Iterator[str]:
        """Yield the finish reasons, the usage if requested, and the end mark."""
        for index in range(len(_texts(answer))):
            facts: dict[str, Any] = {} if index else {"grpo_tui": answer_as_json(answer)}
            yield self._chunk({}, index, finish=_finish_reason(answer, index), **facts)
        if self._usage:
            yield event(self._body("chat.completion.chunk", [], usage=self._usage_of(answer)))
        yield "data: [DONE]\n\n"

    def _opened(self, number: int, index: int) -> str:
        """Return the opening event of a text, or an empty string if it was returned before."""
        if index in self._sent:
            return ""
        self.name(number)
        self._sent[index] = 0, 0
        return self._opening(index)

    def _opening(self, index: int) -> str:
        return self._chunk({"role": "assistant", "content": ""}, index)

    def _delta(self, piece: Piece) -> str:
        return self._chunk({"content": piece.text}, piece.index, piece.scores)

    def _chunk(
        self,
        delta: dict[str, object],
        index: int = 0,
        scores: Sequence[TokenLogprobs] = (),
        finish: str | None = None,
        **more: object,
    ) -> str:
        logprobs = self._logprobs(scores)
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        usage = {"usage": None} if self._usage else {}
        return event(self._body("chat.completion.chunk", [choice], **usage, **more))

    def _logprobs(self, scores: Sequence[TokenLogprobs]) -> dict[str, object] | None:
        if not scores:
            return None
        content = [
            {
                **self._scored(score.token, score.logprob),
                "top_logprobs": [self._scored(token, logprob) for token, logprob in score.likeliest],
            }
            for score in scores
        ]
        return {"content": content, "refusal": None}

    def _scored(self, token: int, logprob: float) -> dict[str, object]:
        text = self._text_of_token(token)
        complete = "\ufffd" not in text
        return {"token": text, "logprob": max(logprob, -9999.0), "bytes": list(text.encode()) if complete else None}

    def _body(self, kind: str, choices: Sequence[Mapping[str, object]], **more: object) -> dict[str, Any]:
        head = {"id": self._identifier, "object": kind, "created": self._created, "model": self._model}
        return {**head, "choices": choices, **more}

    @staticmethod
    def _usage_of(answer: Answer) -> dict[str, int]:
        read, written = _tokens(answer)
        return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


class ResponseForm(ChatForm):
    """Formats a response of the OpenAI API, with the methods of `ChatForm`."""

    prefix = "resp_"

    def name(self, number: int) -> None:
        super().name(number)
        self._item = self._identifier.replace("resp_", "msg_")
        self._place = {"item_id": self._item, "output_index": 0, "content_index": 0}

    def whole(self, answer: Answer) -> dict[str, Any]:
        self.name(answer.request.number)
        truncated = _finish_reason(answer, 0) == "length"
        status = "incomplete" if truncated else "completed"
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
            incomplete_details={"reason": "max_output_tokens"} if truncated else None,
            output=[self._message(status, answer.text or "")],
            usage=usage,
            grpo_tui=answer_as_json(answer),
        )

    def _opening(self, index: int) -> str:
        self._number = itertools.count()
        part = {"type": "output_text", "text": "", "annotations": []}
        item = self._message("in_progress", None)
        return (
            self._event("response.created", response=self._response())
            + self._event("response.in_progress", response=self._response())
            + self._event("response.output_item.added", output_index=0, item=item)
            + self._event("response.content_part.added", **self._place, part=part)
        )

    def _delta(self, piece: Piece) -> str:
        return self._event("response.output_text.delta", **self._place, delta=piece.text, logprobs=[])

    def end(self, answer: Answer) -> Iterator[str]:
        done = self.whole(answer)
        [item] = done["output"]
        yield self._event("response.output_text.done", **self._place, text=answer.text or "", logprobs=[])
        yield self._event("response.content_part.done", **self._place, part=item["content"][0])
        yield self._event("response.output_item.done", output_index=0, item=item)
        yield self._event(f"response.{done['status']}", response=done)

    def _event(self, kind: str, **values: object) -> str:
        return f"event: {kind}\n" + event({"type": kind, "sequence_number": next(self._number), **values})

    def _message(self, status: str, text: str | None) -> dict[str, object]:
        content = [] if text is None else [{"type": "output_text", "text": text, "annotations": []}]
        return {"id": self._item, "type": "message", "role": "assistant", "status": status, "content": content}

    def _response(self, **filled: object) -> dict[str, object]:
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


def _texts(answer: Answer) -> Sequence[Written]:
    return answer.written or (Written(answer.text or ""),)


def _written_samples(answer: Answer) -> list[Rollout]:
    """Return the rollouts of the caller's texts; empty if only neighbours gave the answer."""
    if answer.written:
        return answer.samples[: len(answer.written)]
    return [s for s in answer.samples if s.trajectory is not None and s.trajectory.id == answer.trajectory_id][:1]


def _tokens(answer: Answer) -> tuple[int, int]:
    """Count the tokens that the texts' rollouts read (prompt and observations, once) and wrote."""
    samples = _written_samples(answer)
    written = sum(int(sample.agent_mask.sum()) for sample in samples)
    return (len(samples[0]) - int(samples[0].agent_mask.sum()) if samples else 0), written


def _tool_call(call: Call) -> dict[str, object]:
    return tool_call(call.id, call.name, json.dumps(call.arguments))


def _finish_reason(answer: Answer, index: int) -> str:
    """Return `tool_calls` for a text with calls, `length` if its rollout ran out of tokens or turns, else `stop`."""
    samples = _written_samples(answer)
    if _texts(answer)[index].calls:
        return "tool_calls"
    shown = samples[index].trajectory if samples else None
    if shown is None:
        return "stop" if answer.text is not None else "length"
    cut = bool(shown.steps) and shown.steps[-1].stop_reason in ("token_limit", "turn_limit")
    return "length" if cut or shown.stop_reason in ("max_tokens", "max_turns") else "stop"


def request_number(identifier: str) -> int:
    """Return the request's number in the id of its completion or response. Raises KeyError for other text, and for the
    ids of other processes.
    """
    found = _IDENTIFIER.fullmatch(identifier.strip())
    if found is None:
        raise KeyError(identifier)
    return int(found[1] or found[2])


def event(data: dict[str, object]) -> str:
    """Format one server-sent event."""
    return f"data: {json.dumps(data)}\n\n"
