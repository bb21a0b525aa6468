"""Parse the tool calls of a turn.

A turn is an optional thought, then one JSON object `{"name": ..., "arguments": {...}}`, bare, in a code fence, or
between `<tool_call>` tags. Parsing never raises: a turn without a readable call gets an `error`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MARKERS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<function=", "<|tool_call_start|>", "to=functions.")
"""Strings that start a call. A turn that contains one but no readable call is not an answer."""

DEEPEST = 100
"""Maximum nesting of lists and objects in a call. The record cannot hold deeper ones."""

DECODER = json.JSONDecoder(parse_constant=lambda name: finite(name), parse_float=lambda digits: finite(digits))
_THOUGHT = re.compile(r"^[ \t]*<think>", re.MULTILINE)
_CLOSE = len("</think>")
_OPENERS = re.compile(r"(<tool_call>|```(?:json)?)\s*$")


@dataclass(frozen=True)
class ToolCall:
    """One parsed call. If no call was readable, `name` is None and `error` gives the reason in one sentence.

    `text` is the whole turn verbatim, `thought` the text before the call. `further` holds more calls of the same turn,
    for environments that accept several. `cut`: a limit ended the turn, not the agent.
    """

    name: str | None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    thought: str = ""
    error: str | None = None
    further: tuple[ToolCall, ...] = ()
    cut: bool = False


def format_call(name: str, arguments: Mapping[str, object] | None = None) -> str:
    """Return the text of a turn that calls `name`. `parse_call` is the inverse."""
    return json.dumps({"name": name, "arguments": dict(arguments or {})}, ensure_ascii=False)


def parse_call(text: str) -> ToolCall:
    """Parse the first tool call of a turn. Never raises: `ToolCall.error` describes failures."""
    return next(_calls(clean_text(text)))


def parse_calls(text: str) -> ToolCall:
    """Parse all tool calls of a turn. `further` of the first holds the later readable ones. Never raises."""
    first, *others = _calls(clean_text(text))
    return replace(first, further=tuple(call for call in others if call.name is not None))


def means_call(call: ToolCall, names: Container[str]) -> bool:
    """Return whether a turn is a call or an attempt at one, rather than plain text. names: the names of the tools."""
    is_tool, text = call.name is not None and call.name in names, without_thoughts(call.text)
    return is_tool or any(marker in text for marker in (*MARKERS, '"arguments"'))


def without_thoughts(text: str) -> str:
    """Return a turn with its thoughts blanked out, at the same length.

    A thought ends with `</think>`. It starts with a line `<think>`, or at the start of the turn if the template wrote
    that tag. Tags inside the strings of a call do not count.
    """
    parts, end = [], 0
    while (close := text.find("</think>", end)) != -1:
        before, opened = text[end:close], _THOUGHT.search(text, end, close)
        if opened is not None:
            begin = opened.start()
        else:
            begin = 0 if end == 0 and ("{" not in before or before.rstrip(" ").endswith("\n")) else close + _CLOSE
        parts += [text[end:begin], " " * (close + _CLOSE - begin)]
        end = close + _CLOSE
    return "".join([*parts, text[end:]])


def _calls(text: str) -> Iterator[ToolCall]:
    """Yield the calls of a turn in order, or a single call with the error if there are none."""
    first_problem: str | None = None
    visible = without_thoughts(text)
    start, tried, found = visible.find("{"), 0, False
    while start != -1 and tried < 64:  # this bounds the work on hostile text
        tried += 1
        try:
            value, end = DECODER.raw_decode(visible, start)
        except (ValueError, RecursionError) as problem:
            first_problem = first_problem or _json_problem(problem, visible, start)
            start = visible.find("{", start + 1)
            continue
        if "name" in value:
            found = True
            yield _understand(value, text, _OPENERS.sub("", text[:start].rstrip()).strip())
        first_problem = first_problem or 'the JSON object has no "name" of a tool'
        start = visible.find("{", end)
    if not found:
        problem = first_problem or ("empty turn" if not text.strip() else "no JSON object in the turn")
        yield ToolCall(None, {}, text, text.strip(), problem)


def clean_text(text: str) -> str:
    """Remove lone surrogates, which files and databases cannot store."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode("utf-8")
    return text


def _understand(value: dict[str, object], text: str, thought: str) -> ToolCall:
    name, arguments = value["name"], value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):  # OpenAI-style: the arguments are JSON in a string
        try:
            arguments = DECODER.decode(arguments)
        except (ValueError, RecursionError):
            return ToolCall(None, {}, text, thought, '"arguments" is a string that is not JSON')
    try:
        name, arguments = clean_json(name), clean_json({} if arguments is None else arguments)
    except ValueError as problem:
        return ToolCall(None, {}, text, thought, str(problem))
    if not isinstance(name, str) or not name.strip():
        return ToolCall(None, {}, text, thought, f'"name" must be the name of a tool, not {_shown(name)}')
    if not isinstance(arguments, dict):
        return ToolCall(None, {}, text, thought, f'"arguments" must be an object, not {_shown(arguments)}')
    return ToolCall(name, arguments, text, thought)


def _json_problem(problem: Exception, text: str, start: int) -> str:
    if isinstance(problem, json.JSONDecodeError):
        if problem.pos >= len(text.rstrip()):
            return "the JSON object is not closed"
        return f"invalid JSON at character {problem.pos - start + 1} of the call: {problem.msg}"
    return "the JSON object is nested too deeply" if isinstance(problem, RecursionError) else f"invalid JSON: {problem}"


def finite(written: str) -> float:
    """Read a number. Raises ValueError for NaN, infinity and numbers beyond the range of floats."""
    number = float(written)
    if not math.isfinite(number):
        raise ValueError(f"{written[:24]} is not a number")
    return number


def clean_json(value: object, depth: int = 0) -> Any:
    """Return a JSON value without lone surrogates. Raises ValueError for other values and for deep nesting."""
    if depth > DEEPEST:
        raise ValueError("the JSON object is nested too deeply")
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(k)): clean_json(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean_json(v, depth + 1) for v in value]
    if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value)):
        raise ValueError(f"{_shown(str(value))} is no value of JSON")
    return value


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=True)
    return text if len(text) <= 40 else f"{text[:37]}..."
