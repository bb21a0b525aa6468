"""Measure the share of a document's text that reached a message. A low share means that the shape is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from .rollout import Rollout
from .values import parsed, text

MEASURED = 4
"""The number of measured documents per file. Documents without a message of the policy are always measured."""
_WORDS = 50_000
_WORD = re.compile(r"[^\W_]+")
_MARK = re.compile(r"<[^<>\s]{1,60}>(?:user|assistant|system|tool)?")
FEW = 10
"""The number of missing words up to which the shape counts as known."""
_SPOKEN = frozenset([
    "content", "text", "value", "arguments", "args", "input", "output", "completion", "response", "prompt", "message",
    "reasoning", "reasoning_content", "thinking", "thought", "observation", "action", "result", "refusal", "question",
    "problem", "generation", "parts", "command", "code",
])  # fmt: skip
"""Keys that hold the text of a conversation. Settings and copies under other keys are not counted."""


def is_low(words: int, reached: int, share: float = 0.95) -> bool:
    """Return whether too few words reached a message, so the document's shape is probably unknown."""
    return reached < share * words and words - reached > FEW


def is_silent(rollout: Rollout) -> bool:
    """Return whether the policy wrote nothing and called nothing."""
    return not any(m.is_agent and (m.text or m.calls or m.thought) for m in rollout.completion)


def words_reached(document: object, rollouts: list[Rollout]) -> tuple[int, int]:
    """Count the distinct words in the conversations of a document, and how many of them are in a rollout."""
    known: set[str] = set()
    for part in _message_texts(document, "", 0):
        known.update(_split(part))
        if len(known) > _WORDS:
            break
    shown = {word for rollout in rollouts for part in _shown(rollout) for word in _split(part)}
    return len(known), len(known & shown)


def _split(value: str) -> list[str]:
    """Return the words made of letters and digits, without chat template marks."""
    return _WORD.findall(_MARK.sub(" ", value))


def _message_texts(value: object, key: str, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        if key in _SPOKEN and len(value) > 1:
            inner = parsed(value) if value[:1] in ("{", "[") else None
            if isinstance(inner, (Mapping, list)):
                yield from _message_texts(inner, key, depth + 1)
            else:
                yield value
    elif depth < 24 and isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "status":  # the status of a span has a `code` and a `message`
                yield from _message_texts(inner, str(name), depth + 1)
    elif depth < 24 and isinstance(value, list):
        for inner in value:
            yield from _message_texts(inner, key, depth + 1)


def _shown(rollout: Rollout) -> Iterator[str]:
    for message in (*rollout.prompt, *rollout.completion):
        yield f"{message.role} {message.text} {message.thought} {message.error or ''}"
        for call in message.calls:
            yield f"{call.name} {text(call.arguments)} {call.result or ''}"
    for extra_text in (rollout.answer, rollout.expected, rollout.error):
        yield extra_text or ""
    yield text([rollout.extra, rollout.task, rollout.tools]) or ""
