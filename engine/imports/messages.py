"""Read conversations: OpenAI chat, content parts, ShareGPT, Responses items, and flat text (`templates.py`).

Texts stay verbatim. Calls come from the writer's fields or from the text (`<tool_call>{…}</tool_call>`, `calls.py`). A
call that is not JSON carries a problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...envs.trajectory import DISPLAYS
from .calls import call as call
from .calls import error_text as error_text
from .calls import with_text_calls
from .frameworks import LANGCHAIN, as_openai, langchain
from .rollout import Call, Display, Message
from .templates import ROLES, answers, flat, joined
from .values import Document, listed, mapping, number, parsed, text

_ROLES = frozenset(ROLES.values())
_RESULTS = ("tool_result", "tool_call_response")
_CALLS = ("tool_call", "tool_use", "function_call", "function", "server_tool_use", "mcp_tool_use")
_PARTS = frozenset([*_CALLS, "text", "output_text", "thinking", "redacted_thinking", "image", "image_url"]) - {
    "function_call"
}
"""Types of message parts. A list of parts is one message. A `function_call` may be a Responses item instead."""


def conversation(value: object, role: str = "user") -> tuple[Message, ...]:
    """Read a list of messages in any of these shapes. A bare text is one message of `role`."""
    if isinstance(value, (str, bool, int, float)):
        read = completion if role == "assistant" else conversation
        return read(items) if (items := _messages_in(value)) else flat(text(value) or "", role)
    if isinstance(value, Mapping):
        value = langchain(value)
        if (inner := _inner_list(value)) is not None:
            return conversation(inner)
        if not value.keys() & _SPOKEN:  # the question or the answer itself is an object
            only = next(iter(value.values())) if len(value) == 1 and role == "user" else value
            return (Message(role, text(only) or ""),) if value else ()
        result = message(value)
        return (replace(result, role=role) if result.role == "user" and "role" not in value else result,)
    found: list[Message] = []
    for item in as_openai(listed(value)):
        if isinstance(item, list):  # LangChain wraps the messages of a call in another list
            found.extend(conversation(item))
        elif isinstance(item, Mapping):
            stop = item.get("finish_reason", item.get("finishReason"))
            said = item.get("message", item.get("content"))
            if isinstance(said, Mapping) and ("message" in item or "parts" in said):  # a choice, or Gemini's candidate
                item = {**langchain(said), **({"finish_reason": stop} if stop else {})}
            elif stop is not None and "text" in item and "role" not in item:  # a choice of the older completions
                item = {**item, "role": "assistant"}
            if not item.keys() & {"role", "type"} and (inner := _inner_list(item)) is not None:  # an API response
                found.extend(conversation(inner))
                continue
            other = next((turns for read in _OTHERS if (turns := read(item)) is not None), None)
            found.extend(answers(message(item)) if other is None else other)
        elif isinstance(item, str):
            found.extend(conversation(item))
    return joined(found)


def _messages_in(value: object) -> list[Any]:
    """Return the messages in a text that is JSON with them, or an empty list, also for other JSON."""
    items = listed(value) if isinstance(value, str) and value[:2] in ("[{", "[\n") else []
    if data := mapping(value) if isinstance(value, str) else {}:
        items = [data] if data.get("role") in _ROLES and "content" in data else _inner_list(data) or []
    entries = [i for i in items if isinstance(i, Mapping)]
    known = (
        i.keys() & _ENTRY or str(i.get("type")) in _TYPES or isinstance(i.get("message"), Mapping) for i in entries
    )
    return items if any(known) else []


def message(data: Document) -> Message:
    """Read one message with `role`/`content`, ShareGPT's `from`/`value`, or similar keys."""
    role = str(data.get("role") or data.get("from") or data.get("source") or "user")
    content = data.get("content", data.get("value", data.get("text", data.get("message", data.get("parts")))))
    if role == "function_call":
        return Message(
            "assistant", "", calls=(call(parsed(content) or content if isinstance(content, str) else content),)
        )
    body, thought, calls, errors = _content(content)
    reasoning = data.get("reasoning_content") or data.get("reasoning") or data.get("thinking") or ""
    called = data.get("tool_calls")
    calls += tuple(call(c) for c in listed(called) or ([called] if mapping(called) else []) if c is not None)
    if isinstance(data.get("function_call"), Mapping):
        calls += (call(data["function_call"]),)
    error = data.get("error")
    if error is True or (data.get("status") == "error" and role in ("tool", "function")):
        error = "the tool failed"
    stop = data.get("finish_reason") or data.get("stop_reason")
    result = Message(
        role=ROLES.get(role) or ROLES.get(role.lower()) or (role.lower() if role.lower() in _ROLES else role),
        text=body or text(data.get("refusal")) or "",
        thought=str(thought or (reasoning if isinstance(reasoning, str) else text(reasoning) or "")),
        calls=calls,
        call_id=str(data.get("tool_call_id") or data.get("call_id") or ""),
        name=str(data.get("name") or data.get("function") or "")
        if not isinstance(data.get("function"), Mapping)
        else "",
        error=error_text(error) or errors,
        stop=stop if isinstance(stop, str) else "",
        reward=number(data.get("reward")),
        advantage=number(data.get("advantage")),
        display=displays(data["display"]) if "display" in data else (),
    )
    return with_text_calls(result) if result.is_agent and not result.calls else result


_SPOKEN = frozenset(
    ["role", "from", "content", "value", "text", "message", "parts", "tool_calls", "function_call", "type", "refusal"]
)
"""Keys of a message."""
_ENTRY = frozenset(["role", "from", "lc"])
_TYPES = _PARTS | LANGCHAIN.keys() | {"message", "reasoning", "function_call", "function_call_output"}
"""Types of messages without a role."""


def displays(value: object) -> tuple[Display, ...]:
    """Read views of an environment: Markdown texts, or objects such as `{"kind": "ansi", "content": …}`."""
    found = []
    for item in [value] if isinstance(value, (str, Mapping)) else listed(value):
        view = item if isinstance(item, Mapping) else {"content": item}
        kind, content = view.get("kind") or view.get("type") or "markdown", view.get("content", view.get("text"))
        rows = view.get("rows")
        if kind == "table" and isinstance(rows, list) and all(isinstance(row, list) for row in rows):
            found.append(Display.table(rows, str(view.get("title") or "")))
        elif isinstance(content, str):
            found.append(Display(kind if kind in DISPLAYS else "text", content, str(view.get("title") or "")))
    return tuple(found)


def completion(value: object) -> tuple[Message, ...]:
    """Read a completion: a conversation, or text that the policy begins."""
    parts = [] if isinstance(value, str) else listed(value)
    if parts and all(isinstance(p, int | float) for p in parts):  # the answer itself is a list
        return (Message("assistant", text(value) or ""),)
    if parts and all(isinstance(p, str) for p in parts):
        return tuple(turn for part in parts for turn in completion(part))
    if parts and all(isinstance(p, Mapping) and "role" not in p and p.get("type") in _PARTS for p in parts):
        return (message({"role": "assistant", "content": parts}),)
    return conversation(value, "assistant")


def split(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Split a conversation. The completion begins with the policy's first message."""
    first = next((i for i, m in enumerate(messages) if m.is_agent), len(messages))
    return tuple(messages[:first]), tuple(messages[first:])


def _content(value: object) -> tuple[str, str, tuple[Call, ...], str | None]:
    """Return text, thought, calls and error of plain text or of parts as OpenAI, Anthropic or GenAI write them."""
    if not isinstance(value, (Mapping, list, tuple)):
        return text(value) or "", "", (), None
    if isinstance(value, Mapping) and not any(k in value for k in ("type", "text", "content")):
        return text(value) or "", "", (), None
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[Call] = []
    error: str | None = None
    for part in [value] if isinstance(value, Mapping) else listed(value):
        if not isinstance(part, Mapping):
            texts.append(text(part) or "")
            continue
        kind = part.get("type") or part.get("media_type")
        if kind in ("reasoning", "thinking"):
            thoughts.append(text(part.get("reasoning") or part.get("thinking") or part.get("content")) or "")
        elif kind in _CALLS:
            calls.append(call(part))
        elif str(kind).endswith("_tool_result"):  # the result of a server tool that ran within the turn
            result = text(part.get("content")) or ""
            calls = [replace(c, result=result) if c.id == part.get("tool_use_id") else c for c in calls]
        elif kind in _RESULTS:
            inner = part.get("response", part.get("result", part.get("content")))
            texts.append(_content(inner)[0] if isinstance(inner, (list, Mapping)) else text(inner) or "")
            error = error or ("the tool failed" if part.get("is_error") is True else None)
        elif (shown := str(kind).removeprefix("input_").removesuffix("_url").partition("/")[0]) in _MEDIA:
            texts.append(f"[{shown}]")
        elif part.get("text") is not None or part.get("content") is not None:
            inner = part.get("text") if part.get("text") is not None else part.get("content")
            texts.append(inner if isinstance(inner, str) else _content(inner)[0])
        elif part.get("refusal"):
            texts.append(str(part["refusal"]))
        elif kind != "redacted_thinking":
            texts.append(text(part) or "")
    return "\n".join(texts), "\n".join(thoughts), tuple(calls), error


_MEDIA = ("image", "video", "audio")
CHOICES = ("choices", "candidates")
"""Keys of the answers to one request."""


def _inner_list(value: Document) -> list[object] | None:
    """Return the conversation inside an OpenAI API response or request, or None."""
    if isinstance(value.get("body"), Mapping) and "role" not in value:  # a batch response: `{"status_code", "body"}`
        return [value["body"]]
    for key in ("choices", "candidates", "output", "messages", "contents", "input"):
        inner = value.get(key)
        if isinstance(inner, list) and "role" not in value:
            return inner[:1] if key in CHOICES else inner
        if key == "input" and isinstance(inner, str) and "role" not in value and "content" not in value:
            return [inner]
    return None


def _responses_item(item: Document) -> tuple[Message, ...] | None:
    """Read an OpenAI Responses item that is not a message: a call, its output, or a thought. None for a message."""
    kind = item.get("type")
    if not isinstance(kind, str) or "role" in item:
        return None
    if kind == "reasoning":
        thought = _content(item.get("summary"))[0] or _content(item.get("content"))[0]
        return (Message("assistant", "", thought=thought),)
    if kind.endswith("_call_output"):
        body, _, _, error = _content(item.get("output"))
        return (
            Message("tool", body, call_id=str(item.get("call_id") or ""), error=error_text(item.get("error")) or error),
        )
    if kind.endswith("_call"):
        call_ = call({"name": kind.removesuffix("_call"), "arguments": _request_field(item), **item})
        results = [item[k] for k in ("output", "outputs", "results") if item.get(k) is not None]
        message_ = Message("assistant", "", calls=(call_,))
        return (message_, *(Message("tool", _content(r)[0], call_id=call_.id, error=call_.error) for r in results))
    return () if kind.startswith(("mcp_", "item_")) else None


def _request_field(item: Document) -> Any:
    """Return the arguments of a call. Code and the input of a custom tool are text."""
    key = next((k for k in ("arguments", "input", "action", "code", "queries") if k in item), None)
    value = None if key is None else item[key]
    return {key: value} if isinstance(value, str) and key != "arguments" else value


def _gym_step(item: Document) -> tuple[Message, ...] | None:
    """Read an environment step: observation, action and reward. None for a message."""
    if "action" not in item or any(k in item for k in ("role", "content", "from", "type")):
        return None
    seen = Message("user", text(item.get("observation")) or text(item.get("state")) or "")
    thought = text(item.get("thought")) or ""
    done = Message("assistant", text(item["action"]) or "", thought, reward=number(item.get("reward")))
    turns = (done, seen) if thought else (seen, done)  # an agent that thinks sees what its action did
    return turns if seen.text else (done,)


def _tool_results(item: Document) -> tuple[Message, ...] | None:
    """Split a message with tool results as parts (Anthropic, GenAI) into one message per result and one for the other
    parts. None for any other message."""
    content = item.get("content")
    parts = [p for p in content if isinstance(p, Mapping)] if isinstance(content, list) else []
    if not any(p.get("type") in _RESULTS for p in parts):
        return None
    found = []
    for part in parts:
        if part.get("type") in _RESULTS:
            id_ = part.get("tool_use_id") or part.get("id") or part.get("tool_call_id") or ""
            result, _, _, error = _content([part])
            found.append(Message("tool", result, call_id=str(id_), error=error))
    rest = [p for p in parts if p.get("type") not in _RESULTS]
    return (*found, message({**item, "content": rest})) if rest else tuple(found)


_OTHERS = (_responses_item, _tool_results, _gym_step)
"""Readers of entries that are not messages."""
