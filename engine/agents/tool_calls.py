"""Tool calls in the model's native syntax, if its chat template shows tools.

transformers' `parse_response` reads a turn, with the tokenizer's response template or TRL's for its chat template.
Additional parsers read the forms that it misses: JSON in tags (Hermes, Qwen), bare JSON (Llama), `[TOOL_CALLS]`
(Mistral), `<function=…>` with JSON or XML parameters (Qwen Coder), Python calls (LFM2), `to=functions.…` (gpt-oss).
"""

from __future__ import annotations

import ast
import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from ...envs.agent import Message
from ...envs.calls import MARKERS, ToolCall, clean_json, clean_text, parse_calls, without_thoughts
from ..policy.versions import typed_by_tools
from .chat import ChatBridge, ChatTemplateError

PROBE = "sentinel_tool_a8f3"
_MISTRAL = re.compile(r"\[TOOL_CALLS\]\s*([\w.-]+)\s*(?:\[CALL_ID\]\w*\s*)?\[ARGS\]\s*")
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_HARMONY = re.compile(r"to=functions\.([^\s<]+)[^{\[]*?<\|message\|>\s*")
_PYTHON = re.compile(r"<\|tool_call_start\|>(.*?)(?:<\|tool_call_end\|>|\Z)", re.DOTALL)
_MARKS = (*MARKERS, "<|tool_list_start|>")
"""Parts of a chat template, or of its prompts, that identify a supported form."""
_MARK = re.compile(r"(?:<\|(?:start|channel)\|>(?:assistant|analysis|commentary|final)?|<\|[a-z]+\|>)+")
"""Harmony's marks around thoughts."""
_JSON_NAMES = {"true": True, "false": False, "null": None}
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


class NativeCalls:
    """Reads the calls of one model (`envs.agent.CallReader`)."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, response_template: Any, prefix: str) -> None:
        self._tokenizer, self._template, self._prefix = tokenizer, response_template, prefix
        self.problem = ""
        """Why the model's calls may be taken for answers; empty if a parser fits."""

    @classmethod
    def of(cls, chat: ChatBridge) -> NativeCalls | None:
        """Return the reader of a chat template that shows its tools; None for any other."""
        schema = {"type": "object", "properties": {"text": {"type": "string", "description": "?"}}}
        probe = {"type": "function", "function": {"name": PROBE, "description": "?", "parameters": schema}}
        question: Message = {"role": "user", "content": "?"}
        try:
            if chat.vision is not None or PROBE not in (shown := chat.prompt_text([question], [probe])):
                return None
            prefix = chat.prompt_text([question])
        except ChatTemplateError:
            return None
        native = cls(chat.tokenizer, response_template(chat.tokenizer), prefix)
        if not native._fits(chat, shown, [question], probe):
            native.problem = (
                "the chat template shows tools, but no parser fits its call format, so a call may be taken for the "
                "final answer; model.tool_calls: json explains calls as JSON in the prompt"
            )
        return native

    def _fits(self, chat: ChatBridge, shown: str, question: Sequence[Message], probe: Mapping[str, object]) -> bool:
        """Return whether a call by the template can be read, or for a template without calls whether its form is known.

        shown: the prompt with the probe.
        """
        called = ToolCall(PROBE, {"text": "a"})
        if PROBE in (written := _rendered(chat, shown, question, "", [called], [probe])):
            call = self.read(written, [probe])
            return (call.name, call.arguments) == (PROBE, called.arguments)
        template = chat.tokenizer.chat_template
        return self._template is not None or any(mark in f"{template}{shown}" for mark in _MARKS)

    def write(
        self, chat: ChatBridge, thought: str, calls: Sequence[ToolCall], tools: Sequence[Mapping[str, object]]
    ) -> str | None:
        """Return a turn with these calls in the form of the chat template; None if it cannot be read back."""
        question: list[Message] = [{"role": "user", "content": "?"}]
        text = _rendered(chat, chat.prompt_text(question, tools), question, thought, calls, tools)
        if chat.end_of_turn is not None:
            text = text.partition(str(chat.tokenizer.decode([chat.end_of_turn])))[0]
        first = self.read(text := text.strip(), tools)
        read = [(call.name, dict(call.arguments)) for call in (first, *first.further)]
        return text if read == [(call.name, dict(call.arguments)) for call in calls] else None

    def read(self, text: str, tools: Sequence[Mapping[str, object]]) -> ToolCall:
        """Return the first call of a turn, with the others as `further`. Without a call, the result has no name.

        tools: their schemas, which determine the types of arguments. Never raises.
        """
        text = clean_text(text)
        # TRL's template of LFM2 reads `False` as text.
        calls = _python_calls(text, tools) or list(self._parsed(text, tools)) or list(_written(text, tools))
        if not calls:
            return parse_calls(text)
        try:
            first, *others = [replace(call, arguments=clean_json(call.arguments)) for call in calls]
        except ValueError as problem:
            return ToolCall(None, {}, text, calls[0].thought, str(problem))
        return replace(first, further=tuple(others))

    def _parsed(self, text: str, tools: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
        if self._template is None:
            return
        try:
            parsed: Any = self._tokenizer.parse_response(
                text, schema=self._template, prefix=self._prefix, tools=[dict(tool) for tool in tools]
            )
            found = [call["function"] for call in parsed.get("tool_calls") or ()]
            found = [function for function in found if isinstance(function, dict)]
        except Exception:  # a malformed turn may raise anything: read it as plain text
            return
        thoughts = [parsed.get("reasoning_content"), parsed.get("content")]
        thought = "\n".join(part.strip() for part in thoughts if isinstance(part, str) and part.strip())
        for function in found:
            arguments = function.get("arguments") or {}
            if isinstance(arguments, str):
                arguments = _json(arguments)
            if isinstance(function.get("name"), str) and isinstance(arguments, dict):
                yield ToolCall(function["name"], arguments, text, thought)


def _rendered(
    chat: ChatBridge,
    shown: str,
    question: Sequence[Message],
    thought: str,
    calls: Sequence[ToolCall],
    tools: Sequence[Mapping[str, object]],
) -> str:
    """Return the turn with these calls after `shown`, the prompt. It is empty if the template writes no calls."""
    tool_calls = [
        {"id": f"a1b2c3d4{i}", "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
        for i, call in enumerate(calls)
    ]
    called: Any = {"role": "assistant", "content": thought, "tool_calls": tool_calls}
    try:
        written = chat.prompt_text([*question, called], tools, opened=False)
    except ChatTemplateError:
        return ""
    return written[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(written, shown, strict=False))) :]


def response_template(tokenizer: PreTrainedTokenizerBase) -> object:
    """Return the tokenizer's response template, or TRL's for its chat template; None without one."""
    template = getattr(tokenizer, "response_template", None)
    if template is not None:
        return template
    from trl.chat_template_utils import add_response_schema

    try:
        return typed_by_tools(getattr(add_response_schema(copy.copy(tokenizer)), "response_template", None))
    except Exception:  # a chat template that TRL does not know
        return None


def _written(text: str, tools: Sequence[Mapping[str, object]]) -> Iterator[ToolCall]:
    """Yield calls in forms other than a JSON object with a name."""
    visible = without_thoughts(text)
    for match in (*_MISTRAL.finditer(visible), *_HARMONY.finditer(visible)):
        try:
            arguments, _ = json.JSONDecoder().raw_decode(visible, match.end())
        except (ValueError, RecursionError):
            continue
        if isinstance(arguments, dict):
            yield ToolCall(match[1], arguments, text, _MARK.sub("\n", text[: match.start()]).strip())
    for match in _FUNCTION.finditer(visible):
        name, body = match[1], match[2].strip()
        arguments = _json(body) if body.startswith("{") else _parameters(name, body, tools)
        if isinstance(arguments, dict):
            thought = text[: match.start()].removesuffix("\n").removesuffix("<tool_call>")
            yield ToolCall(name, arguments, text, thought.strip())


def _python_calls(text: str, tools: Sequence[Mapping[str, object]]) -> list[ToolCall]:
    """Read calls such as `<|tool_call_start|>[look_up(word='a', times=2)]<|tool_call_end|>` (LFM2). Unreadable calls
    give one call without a name."""
    calls: list[ToolCall] = []
    for match in _PYTHON.finditer(without_thoughts(text)):
        written, thought = match[1].strip(), text[: match.start()].strip()
        if written.startswith(("{", "[{")):  # LFM2 can be asked for JSON
            continue
        try:
            found: Any = JSONNames().visit(ast.parse(written, mode="eval")).body
            several: list[Any] = found.elts if isinstance(found, (ast.List, ast.Tuple)) else [found]
            for call in several:
                name = ast.unparse(call.func)
                arguments = dict(zip(_declared(name, tools), map(ast.literal_eval, call.args), strict=False))
                arguments |= {keyword.arg + "": ast.literal_eval(keyword.value) for keyword in call.keywords}
                calls.append(ToolCall(name, arguments, text, thought))
        except (SyntaxError, ValueError, AttributeError, TypeError, RecursionError, MemoryError):
            return [ToolCall(None, {}, text, thought, "the call is not written as name(argument=value)")]
    return calls


class JSONNames(ast.NodeTransformer):
    """Replaces `true`, `false` and `null` by their Python values."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_NAMES[node.id]) if node.id in _JSON_NAMES else node


def _declared(name: str, tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    parameters = next((t["function"]["parameters"] for t in tools if t["function"]["name"] == name), {})
    return parameters.get("properties") or {}


def _parameters(name: str, body: str, tools: Sequence[Mapping[str, object]]) -> dict[str, object]:
    types = {key: schema.get("type") for key, schema in _declared(name, tools).items()}
    values = _PARAMETER.findall(body)
    return {key: value if types.get(key) == "string" else _json(value, value) for key, value in values}


def _json(text: str, otherwise: object = None) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise
