"""Calls of tools in the model's own syntax, where its chat template shows tools.

What a turn says is read by transformers' response parsing (`parse_response`), with the response template that the
tokenizer brings or that TRL knows for its chat template; what neither reads, by the forms that are in use: JSON in tags
(Hermes, Qwen), bare JSON (Llama), `[TOOL_CALLS]` (Mistral), `<function=…>` with JSON or XML parameters (Qwen Coder).
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...envs.calls import ToolCall, clean_text, parse_calls
from .chat import ChatBridge, ChatTemplateError

PROBE = "sentinel_tool_a8f3"
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*([\w.-]+)\s*(?:\[CALL_ID\]\w*\s*)?\[ARGS\]\s*")
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class NativeCalls:
    """Reads the calls of one model; see `envs.agent.CallReader`."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, response_template: Any, prefix: str) -> None:
        self._tokenizer, self._template, self._prefix = tokenizer, response_template, prefix

    @classmethod
    def of(cls, chat: ChatBridge) -> NativeCalls | None:
        """That of a chat template which shows the tools it is given; None for any other."""
        schema = {"type": "object", "properties": {}}
        probe = {"type": "function", "function": {"name": PROBE, "description": "?", "parameters": schema}}
        try:
            if chat.sight is not None or PROBE not in chat.prompt_text([{"role": "user", "content": "?"}], [probe]):
                return None
            prefix = chat.prompt_text([{"role": "user", "content": "?"}])
        except ChatTemplateError:
            return None
        return cls(chat.tokenizer, response_template(chat.tokenizer), prefix)

    def read(self, text: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
        """The calls of a turn: the first, with the others as `further`; without a name where there is none.

        tools: their schemas, by which arguments get their types. Never raises.
        """
        text = clean_text(text)
        calls = list(self._parsed(text, tools)) or list(_written(text, tools))
        if not calls:
            return parse_calls(text)
        first, *others = calls
        return ToolCall(first.name, first.arguments, text, first.thought, further=tuple(others))

    def _parsed(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
        if self._template is None:
            return
        try:
            parsed: Any = self._tokenizer.parse_response(
                text, schema=self._template, prefix=self._prefix, tools=[dict(tool) for tool in tools]
            )
            found = [call["function"] for call in parsed.get("tool_calls") or ()]
            found = [function for function in found if isinstance(function, dict)]
        except Exception:  # whatever a malformed turn trips: it is read as plain text
            return
        said = [parsed.get("reasoning_content"), parsed.get("content")]
        thought = "\n".join(part.strip() for part in said if isinstance(part, str) and part.strip())
        for function in found:
            arguments = function.get("arguments") or {}
            if isinstance(arguments, str):
                arguments = _json(arguments)
            if isinstance(function.get("name"), str) and isinstance(arguments, dict):
                yield ToolCall(function["name"], arguments, text, thought)


def response_template(tokenizer: PreTrainedTokenizerBase) -> Any:
    """How transformers reads this tokenizer's responses: its own, or TRL's for its chat template; None if neither."""
    own = getattr(tokenizer, "response_template", None)
    if own is not None:
        return own
    from trl.chat_template_utils import add_response_schema

    try:
        return getattr(add_response_schema(copy.copy(tokenizer)), "response_template", None)
    except Exception:  # a chat template that TRL does not know
        return None


def _written(text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    """Calls in forms that hold no JSON object with a name."""
    for match in _MISTRAL.finditer(text):
        try:
            arguments, _ = json.JSONDecoder().raw_decode(text, match.end())
        except (ValueError, RecursionError):
            continue
        if isinstance(arguments, dict):
            yield ToolCall(match[1], arguments, text, text[: match.start()].strip())
    for match in _FUNCTION.finditer(text):
        name, body = match[1], match[2].strip()
        arguments = _json(body) if body.startswith("{") else _parameters(name, body, tools)
        if isinstance(arguments, dict):
            thought = text[: match.start()].removesuffix("\n").removesuffix("<tool_call>")
            yield ToolCall(name, arguments, text, thought.strip())


def _parameters(name: str, body: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """XML parameters with the types that the tool declares: `7` is a number where one is wanted, else text."""
    declared = next((t["function"]["parameters"] for t in tools if t["function"]["name"] == name), {})
    types = {key: schema.get("type") for key, schema in (declared.get("properties") or {}).items()}
    values = _PARAMETER.findall(body)
    return {key: value if types.get(key) == "string" else _json(value, value) for key, value in values}


def _json(text: str, otherwise: Any = None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise
