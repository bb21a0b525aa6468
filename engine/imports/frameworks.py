"""Rewrite the messages of agent frameworks as messages of OpenAI's chat format, which `messages.py` reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .values import Document, listed, mapping, objects

LANGCHAIN = {"human": "user", "ai": "assistant", "AIMessageChunk": "assistant", "system": "system", "tool": "tool"}


def langchain(item: Document) -> Document:
    """Rewrite a message of Gemini or of LangChain (serialised, dumped, or `{"type", "data"}`)."""
    if isinstance(parts := item.get("parts"), list) and "content" not in item:
        return {**item, "content": [_gemini(part) if isinstance(part, Mapping) else part for part in parts]}
    if isinstance(item.get("kwargs"), Mapping) and "lc" in item:
        item = item["kwargs"]
    elif isinstance(item.get("data"), Mapping) and item.get("type") in LANGCHAIN and "content" in item["data"]:
        item = {"type": item["type"], **item["data"]}
    if "role" in item or item.get("type") not in LANGCHAIN or "content" not in item:
        return item
    about = item.get("response_metadata")
    stop = (about.get("finish_reason") or about.get("stop_reason")) if isinstance(about, Mapping) else None
    return {**item, "role": LANGCHAIN[item["type"]], "finish_reason": stop or item.get("finish_reason")}


def _gemini(part: Document) -> Document:
    """Return a part of a Gemini message with its type, as Anthropic writes it."""
    for key, value in part.items() if "type" not in part else ():
        match key.replace("_", "").lower(), value:
            case "functioncall", {}:
                return {"type": "tool_use", **value}
            case "functionresponse", {}:
                return {"type": "tool_result", **value}
            case "inlinedata" | "filedata", {}:
                return {"type": str(value.get("mimeType") or value.get("mime_type")).partition("/")[0]}
            case "thought", True:
                return {"type": "thinking", "thinking": part.get("text")}
    return part


def as_openai(items: list[Any]) -> list[Any]:
    """Return a conversation of a framework as messages. The first entry identifies the framework."""
    first = mapping(items[0]) if items else {}
    if any("part_kind" in part for part in objects(first.get("parts"))):
        read = _pydantic_ai
    elif "models_usage" in first:
        read = _autogen
    elif {"task", "task_images"} <= first.keys() or {"step_number", "model_output_message"} <= first.keys():
        read = _smolagents
    elif {"model_output", "result", "state"} <= first.keys():
        read = _browser_use
    elif "projectHash" in first or any(isinstance(item, Mapping) and item.get("type") == "gemini" for item in items):
        read, items = _gemini_cli, _without_rewound(objects(items))
    else:
        return [langchain(item) if isinstance(item, Mapping) else item for item in items]
    found = objects(items)
    asked = [message for item in found for message in objects(item.get("model_input_messages"))]  # of smolagents
    rules = next((m.get("content") for m in asked if m.get("role") == "system"), first.get("instructions"))
    system = [{"role": "system", "content": rules}] if rules else []
    return [*system, *(message for item in found for message in read(item))]


_OF_REQUESTS = {"system-prompt": "system", "user-prompt": "user", "tool-return": "tool", "retry-prompt": "tool"}


def _pydantic_ai(item: Document) -> Iterator[Document]:
    said: list[object] = []
    for part in objects(item["parts"]):
        kind, content, id_ = part.get("part_kind"), part.get("content"), part.get("tool_call_id")
        if role := _OF_REQUESTS.get(str(kind)):
            outcome = "retried" if kind == "retry-prompt" else part.get("outcome")
            yield {**part, "role": role, "error": None if outcome == "success" else outcome}
        elif kind == "thinking":
            said.append({"type": "thinking", "thinking": content})
        elif kind == "builtin-tool-return":
            said.append({"type": "builtin_tool_result", "tool_use_id": id_, "content": content})
        else:
            said.append({**part, "type": "tool_use", "call_id": id_} if id_ else content)
    if said:
        yield {"role": "assistant", "content": said, "finish_reason": item.get("finish_reason")}


def _autogen(item: Document) -> Iterator[Document]:
    kind, content, agent = str(item.get("type")), item.get("content"), item.get("source")
    if kind == "ToolCallExecutionEvent":
        yield from ({**result, "role": "tool", "error": result.get("is_error")} for result in objects(content))
        return
    if isinstance(content, list):
        content = [{"type": "image"} if "data" in mapping(part) else part for part in content]
    key = {"ToolCallRequestEvent": "tool_calls", "ThoughtEvent": "reasoning_content"}.get(kind, "content")
    yield {"role": "user" if agent == "user" else "assistant", "name": agent, key: content}


def _smolagents(item: Document) -> Iterator[Document]:
    if "task" in item:
        yield {"role": "user", "content": [item["task"], *({"type": "image"} for _ in listed(item.get("task_images")))]}
    elif "step_number" in item:
        said = mapping(item.get("model_output_message")) or {"content": item.get("action_output")}
        calls = listed(item.get("tool_calls")) or said.get("tool_calls")
        yield {"role": "assistant", "content": said.get("content"), "tool_calls": calls}
        if item.get("observations") is not None or item.get("error"):
            yield {"role": "tool", "content": item.get("observations"), "error": item.get("error")}


def _browser_use(item: Document) -> Iterator[Document]:
    said = mapping(item.get("model_output"))
    words = [str(said[key]) for key in ("evaluation_previous_goal", "memory", "next_goal") if said.get(key)]
    calls = [{"name": k, "arguments": v} for action in objects(said.get("action")) for k, v in action.items()]
    if item.get("state_message"):
        yield {"role": "user", "content": item["state_message"]}
    yield {"role": "assistant", "content": "\n".join(words), "thinking": said.get("thinking"), "tool_calls": calls}
    for result in objects(item.get("result")):
        yield {"role": "tool", "content": result.get("extracted_content"), "error": result.get("error")}


def _gemini_cli(item: Document) -> Iterator[Document]:
    message = langchain({"role": item["type"], "parts": listed(item["content"]) or [item["content"]]})
    thoughts = [f"{thought.get('subject')}: {thought.get('description')}" for thought in objects(item.get("thoughts"))]
    calls = objects(item.get("toolCalls"))
    yield {**message, "reasoning_content": "\n".join(thoughts), "tool_calls": calls}
    for call in calls:
        for result in objects(call.get("result"))[:1]:
            response = mapping(mapping(result.get("functionResponse")).get("response"))
            error = None if call.get("status") == "success" else call.get("status")
            content = response.get("output", response.get("error", result))
            yield {"role": "tool", "tool_call_id": call.get("id"), "content": content, "error": error}


def _without_rewound(entries: list[Document]) -> list[Document]:
    """Return the messages of a session of the Gemini CLI. One with a known id replaces the earlier one, and a rewind
    removes the messages from an id on."""
    kept: dict[object, Document] = {}
    for entry in entries:
        if (first := entry.get("$rewindTo")) in kept:
            names = list(kept)
            kept = {name: kept[name] for name in names[: names.index(first)]}
        elif entry.get("type") in ("user", "gemini") and "content" in entry:
            kept[entry.get("id") or len(kept)] = entry
    return list(kept.values())
