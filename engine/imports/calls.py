"""Read tool calls from objects or from the agent's text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from .rollout import Call, Message
from .values import mapping, parsed, text

_TEXT_CALL = re.compile(
    r"<tool_call>\s*(?P<hermes>.*?)\s*(?:</tool_call>|\Z)"
    r"|(?:\[TOOL_CALLS\]|<\|python_tag\|>)\s*(?P<json>\[\s*\{.*\]|\{.*\})"  # Mistral, Llama
    # Mistral, DeepSeek, Kimi
    r"|(?:\[TOOL_CALLS\]|<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?|<\|tool_call_begin\|>(?:functions\.)?)"
    r"(?P<name>[\w.-]{1,200})(?:\[CALL_ID\]\w+|:\d+)?"
    r"(?:\[ARGS\]|<｜tool▁sep｜>|<\|tool_call_argument_begin\|>|\n```json\n)"
    r"(?P<arguments>.*?)(?=\s*(?:```|<｜tool▁call▁end｜>|<\|tool_call_end\|>|\[TOOL_CALLS\]|\Z))",
    re.S,
)
_CALL_MARKS = ("<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<｜tool▁call▁begin｜>", "<|tool_call_begin|>")
_THINK = re.compile(r"\A\s*<think>(.*?)(?:</think>|\Z)", re.S)
_FUNCTION = re.compile(r"<function=([^>\s]{1,200})>(.*?)(?:</function>|\Z)", re.S)
_PARAMETER = re.compile(r"<parameter=([^>\s]{1,200})>\n?(.*?)\n?(?=</parameter>|<parameter=|\Z)", re.S)
_KEYED = re.compile(r"([\w.-]{1,200})\s*<arg_key>.*", re.S)
_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.S)


def call(value: object) -> Call:
    """Read a call in the shape of OpenAI (also as JSON text), inspect-ai, ATIF, Hermes or flat `{name, arguments}`."""
    data = mapping(value)
    if isinstance(value, str) and not data:
        return Call("?", value, problem="the call is not JSON")
    inner = data.get("function")
    source = inner if isinstance(inner, Mapping) else data
    name = source.get("name") or source.get("function_name") or source.get("tool_name") or data.get("name")
    if name is None and isinstance(inner, str):
        name = inner
    arguments: object = next((source[k] for k in ("arguments", "args", "input", "parameters") if k in source), None)
    problem = text(data.get("parse_error"))
    if name == "python_interpreter" and isinstance(arguments, str):  # smolagents
        arguments = {"code": arguments}
    elif isinstance(arguments, str):
        read = parsed(arguments) if arguments.strip() else {}
        if read is None and arguments.strip() != "null":
            problem = problem or "the arguments are not JSON"
        else:
            arguments = read
    id_ = data.get("call_id") or data.get("id") or data.get("tool_call_id") or ""  # Responses items have an id besides
    return Call(str(name or "?"), arguments, str(id_), problem=problem, error=error_text(data.get("error")))


def with_text_calls(message: Message) -> Message:
    """Add the calls and the thought found in an agent's text."""
    if "<" not in message.text and "[TOOL_CALLS]" not in message.text:
        return message
    thought = message.thought
    if not thought:
        before, end, _ = message.text.partition("</think>")
        if match := _THINK.match(message.text):
            thought = match[1].strip()
        elif end and "<think>" not in before:  # the prompt ended with <think>
            thought = before.strip()
    found = _TEXT_CALL.finditer(message.text) if any(mark in message.text for mark in _CALL_MARKS) else ()
    calls = [
        call_
        for match in found
        for call_ in ([call(match.groupdict())] if match["name"] else _from_text(match["json"] or match["hermes"]))
    ]
    return replace(message, thought=thought, calls=(*message.calls, *calls)) if calls or thought else message


def _from_text(body: str) -> list[Call]:
    """Read the text between two tags: JSON (Hermes) or a list of it (Granite), or tags of Qwen-Coder (`<function=…>`)
    or GLM (`<arg_key>`)."""
    data = parsed(body)
    found = data if isinstance(data, list) else [data]
    if found and all(isinstance(each, Mapping) and each.get("name") for each in found):
        return [call(each) for each in found]
    if match := _FUNCTION.fullmatch(body):
        return [Call(match[1], {name: value_of(raw) for name, raw in _PARAMETER.findall(match[2])})]
    if "<arg_key>" in body and (match := _KEYED.fullmatch(body)):
        return [Call(match[1], {name.strip(): value_of(raw) for name, raw in _ARGUMENT.findall(body)})]
    name = re.search(r'"name"\s*:\s*"([^"]{1,200})"', body)
    return [Call(name[1] if name else "?", body, problem="the call is not JSON")]


def value_of(raw: str) -> object:
    """Parse a value that is JSON, else return the plain text."""
    found = parsed(raw)
    return raw if found is None and raw.strip() != "null" else found


def error_text(value: object) -> str | None:
    """Return one error, or a list of them, as one text, or None. An error may be an object with type and message."""
    if value is None or value is False or value == "" or value == {}:
        return None
    if isinstance(value, (list, tuple)):
        return "; ".join(e for v in value if (e := error_text(v))) or None
    if isinstance(value, Mapping):
        kind = value.get("type") or value.get("error")
        message = value.get("message") or value.get("error_chain_str")
        if kind and message and not str(message).startswith(f"{kind}: "):
            return f"{kind}: {message}"
        if message or kind:
            return str(message or kind)
    return text(value)
