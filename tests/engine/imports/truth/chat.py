"""Conversations as writers keep them."""

from __future__ import annotations

import json
from typing import Any

from .scenario import Called, Episode, Turn

Messages = list[dict[str, Any]]


def asked(e: Episode) -> Messages:
    found = [{"role": "system", "content": e.system}] if e.system else []
    return [*found, {"role": "user", "content": e.question}]


def openai_call(c: Called) -> dict[str, Any]:
    return {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}


def said(e: Episode, *, errors: bool = False) -> Messages:
    """Messages of a chat API. Results of parallel calls come in the reverse order."""
    found: Messages = []
    for turn in e.turns:
        message: dict[str, Any] = {"role": "assistant", "content": turn.text}
        if turn.thought:
            message["reasoning_content"] = turn.thought
        if turn.calls:
            message["tool_calls"] = [openai_call(c) for c in turn.calls]
        found.append(message)
        for c in reversed(turn.calls):
            result = {"role": "tool", "tool_call_id": c.id, "content": c.result}
            found.append({**result, "error": "failed"} if errors and c.failed else result)
        if turn.heard:
            found.append({"role": "user", "content": turn.heard})
    return found


def hermes(turn: Turn) -> str:
    """A turn as Qwen's chat template renders it."""
    calls = [f"<tool_call>\n{json.dumps({'name': c.name, 'arguments': c.arguments})}\n</tool_call>" for c in turn.calls]
    thought = [f"<think>\n{turn.thought}\n</think>\n"] if turn.thought else []
    return "\n".join([*thought, *([turn.text] if turn.text else []), *calls]).rstrip("\n")


def answers(turn: Turn) -> str:
    """The user's message behind a turn, with the results of its calls."""
    results = [f"<tool_response>\n{c.result}\n</tool_response>" for c in turn.calls]
    return "\n".join(results) if turn.calls else turn.heard


def chatml(messages: Messages, *, generation: bool = False) -> str:
    rows = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return rows + ("<|im_start|>assistant\n" if generation else "")


def anthropic(e: Episode) -> Messages:
    """Messages of Anthropic's API: calls, thoughts and results are parts of a message."""
    found: Messages = []
    for turn in e.turns:
        parts: list[dict[str, Any]] = (
            [{"type": "thinking", "thinking": turn.thought, "signature": "s"}] if turn.thought else []
        )
        parts += [{"type": "text", "text": turn.text}] if turn.text else []
        parts += [{"type": "tool_use", "id": c.id, "name": c.name, "input": dict(c.arguments)} for c in turn.calls]
        found.append({"role": "assistant", "content": parts})
        if turn.calls:
            results = [{"type": "tool_result", "tool_use_id": c.id, "content": c.result} for c in turn.calls]
            results = [{**r, "is_error": True} if c.failed else r for r, c in zip(results, turn.calls, strict=True)]
            found.append({"role": "user", "content": results})
        elif turn.heard:
            found.append({"role": "user", "content": turn.heard})
    return found
