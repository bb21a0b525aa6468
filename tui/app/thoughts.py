"""Thought and words of a step, wherever the agent wrote its thought: in a field, in tags, or in a channel."""

from __future__ import annotations

import re

from ...engine.runs.types import Call, Step

_TAGS = re.compile(r"<(think|thinking|thought|reasoning)>(.*?)(?:</\1>|\Z)", re.S)
_CHANNEL = re.compile(
    r"(?:<\|start\|>\w*)?<\|channel\|>(\w*)[^<]*<\|message\|>(.*?)(?:<\|(?:end|return|call)\|>|(?=<\|start\|>)|\Z)",
    re.S,
)
_WRITTEN = re.compile(r"<tool_call>.*?(?:</tool_call>|\Z)", re.S)


def said(step: Step) -> tuple[str, str]:
    """Return thought and text of a step. Thoughts come from a field, tags or a channel. Calls in the text are
    removed."""
    thoughts = [step.thought] if step.thought else []
    words = "" if step.action is not None and not step.calls and not step.is_text else step.text
    if step.thought and "<think" in step.thought:
        thoughts = [found[2] for found in _TAGS.finditer(step.thought)] or thoughts
    if "<|channel|>" in words:
        found = _CHANNEL.findall(words)
        thoughts += [text for channel, text in found if channel == "analysis"]
        words = "\n\n".join(text for channel, text in found if channel != "analysis")
    if "</think" in words or "<think" in words or "<reasoning>" in words or "<thought>" in words:
        before, end, after = words.partition("</think>")
        if end and "<think>" not in before:  # the prompt ended with <think>
            thoughts, words = [*thoughts, before], after
        thoughts += [found[2] for found in _TAGS.finditer(words)]
        words = _TAGS.sub("", words)
    if step.calls:
        words = _WRITTEN.sub("", words)
        if words == "\n".join(written(call) for call in step.calls):
            words = ""
    whole = dict.fromkeys(text.strip() for text in thoughts)
    return "\n\n".join(text for text in whole if text), words.strip("\n")


def written(call: Call) -> str:
    """Return a call in the form of the importers, for agents that wrote no text."""
    from ...engine.imports.convert import call_text

    return call_text(call)
