"""Messages and tools of a caller in the form of the chat template, and the form of the text that it asks for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .....envs.calls import format_call
from ..conversations import Told
from ..wanted import JsonSchema, Wanted
from .problems import HttpProblem
from .schema import ChatMessage, ChatRequest, ImagePart, NamedTool, ToolPart

SCHEMA_CHARACTERS = 100_000
"""Largest JSON schema of a `response_format`."""


def told(messages: Sequence[ChatMessage]) -> list[Told]:
    """Return messages as the chat template reads them. Raises HttpProblem."""
    found: list[Told] = []
    open_calls: set[str] = set()
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        made: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role}
        made["content"] = _text(message)
        if message.tool_calls and message.role != "assistant":
            raise HttpProblem(400, f"{where}: only messages of the role assistant call tools", param="messages")
        if message.tool_calls:
            made["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _arguments(call.function.arguments, f"{where}.tool_calls[{i}]"),
                    },
                }
                for i, call in enumerate(message.tool_calls)
            ]
            open_calls |= {call.id for call in message.tool_calls}
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                reason = f"{where}: tool_call_id must be the id of a call in a message of the assistant before it"
                raise HttpProblem(400, reason, param="messages")
            made["tool_call_id"] = message.tool_call_id
            made |= {"name": message.name} if message.name else {}
        found.append(made)
    return found


def recorded(messages: Sequence[Told]) -> list[dict[str, Any]]:
    """Return messages for a task, with calls as text."""
    made = []
    for message in messages:
        calls = [format_call(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())]
        made.append({"role": message["role"], "content": "\n".join(filter(None, [message["content"], *calls]))})
    return made


def tools_of(asked: ChatRequest) -> tuple[dict[str, Any], ...]:
    """Return the schemas of the tools that the prompt shows. Raises HttpProblem."""
    if asked.tool_choice == "none":
        return ()
    return tuple(_schema(tool, f"tools[{i}].function") for i, tool in enumerate(asked.tools or ()))


def wanted_of(asked: ChatRequest, tools: Sequence[dict[str, Any]]) -> Wanted | None:
    """Return the form of the text that a caller asks for, if any. Raises HttpProblem."""
    names = tuple(tool["function"]["name"] for tool in tools)
    if len({*names}) < len(names):
        raise HttpProblem(400, "tools: two functions have the same name", param="tools")
    required: tuple[str, ...] = ()
    if isinstance(asked.tool_choice, NamedTool):
        required = (asked.tool_choice.function.name,)
        if required[0] not in names:
            raise HttpProblem(400, f"tool_choice: tools has no function {required[0][:100]!r}", param="tool_choice")
    elif asked.tool_choice == "required":
        required = names
        if not names:
            raise HttpProblem(400, "tool_choice: required needs tools", param="tool_choice")
    form = asked.response_format
    is_json = form is not None and form.type != "text"
    if not tools and not is_json:
        return None
    schema = None
    if form is not None and form.type == "json_schema":
        schema = _json_schema(form.json_schema.schema_ if form.json_schema is not None else None)
    return Wanted(tuple(tools), required, asked.parallel_tool_calls is not False, is_json, schema)


def _json_schema(schema: dict[str, Any] | None) -> JsonSchema:
    where = "response_format.json_schema.schema"
    if schema is None:
        raise HttpProblem(400, f"{where} is missing", param="response_format")
    if len(json.dumps(schema)) > SCHEMA_CHARACTERS:
        raise HttpProblem(400, f"{where} has more than {SCHEMA_CHARACTERS:,} characters", param="response_format")
    try:
        return JsonSchema(schema)
    except ValueError as error:
        raise HttpProblem(400, f"{where}: {error}", param="response_format") from None


def _schema(tool: ToolPart, where: str) -> dict[str, Any]:
    given = tool.function
    parameters = given.parameters or {"type": "object", "properties": {}}
    properties = parameters.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(p, dict) for p in properties.values()):
        raise HttpProblem(400, f"{where}.parameters.properties must be JSON schemas by name", param="tools")
    made = {"name": given.name, "description": given.description or "", "parameters": parameters}
    return {"type": "function", "function": made}


def _text(message: ChatMessage) -> str:
    if message.content is None or isinstance(message.content, str):
        return message.content or ""
    return "".join("" if isinstance(part, ImagePart) else part.text for part in message.content)


def _arguments(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HttpProblem(400, f"{where}.function.arguments must be a JSON object as text", param="messages")
    return found
