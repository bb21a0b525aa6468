"""Conversations as the field writes them, read into messages: OpenAI chat, content parts, ShareGPT, Responses items,
and flat text of chat templates.

Texts stay verbatim. A call is taken from where the writer put it; calls written in the text itself
(`<tool_call>{…}</tool_call>`) are read from it, and one that is no JSON says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .rollout import Call, Message, listed, mapping, number, parsed, text

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "agent": "assistant",
    "observation": "tool",
    "function": "tool",
    "function_call_output": "tool",
    "environment": "tool",
    "ipython": "tool",
    "developer": "system",
}
"""What other writers call the roles."""

_TEXT_CALL = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|\Z)", re.S)
_THINK = re.compile(r"\A\s*<think>(.*?)(?:</think>|\Z)", re.S)
_TOOL_RESPONSE = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>\s*", re.S)
_TEMPLATES = (
    re.compile(r"<\|im_start\|>(?P<role>\w+)\n?(?P<text>.*?)(?=<\|im_end\|>|<\|im_start\|>|\Z)(?:<\|im_end\|>)?", re.S),
    re.compile(
        r"<\|start_header_id\|>(?P<role>\w+)<\|end_header_id\|>\s*(?P<text>.*?)"
        r"(?=<\|eot_id\|>|<\|eom_id\|>|<\|start_header_id\|>|\Z)(?:<\|eot_id\|>|<\|eom_id\|>)?",
        re.S,
    ),
)
_RESULTS = ("tool_result", "tool_call_response")
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "</s>", "<|end_of_text|>")
# Special tokens left out by the decoder: a role alone on its line is what remains of a template.
_STRIPPED = re.compile(r"(?:\A|\n)(?P<role>system|user|assistant|tool)\n")


def conversation(value: object) -> tuple[Message, ...]:
    """A list of messages in any of the shapes above; a bare text is one message of the user."""
    if isinstance(value, str):
        if value[:2] in ("[{", "[\n") and (items := listed(value)):
            return conversation(items)
        return flat(value, "user")
    if isinstance(value, Mapping):
        return (message(value),)
    found: list[Message] = []
    for item in listed(value):
        if isinstance(item, Mapping):
            if isinstance(item.get("message"), Mapping):  # a choice of a completion: its message is what was said
                item = item["message"]
            found.extend(_responses_item(item) or _tool_results(item) or (message(item),))
        elif isinstance(item, str):
            found.append(Message("user", item))
    return _joined(found)


def message(data: Mapping[str, Any]) -> Message:
    """One message: `role`/`content`, ShareGPT's `from`/`value`, or a step's own words for them."""
    role = str(data.get("role") or data.get("from") or data.get("source") or "user")
    content = data.get("content", data.get("value", data.get("text", data.get("message", data.get("parts")))))
    if role == "function_call":
        return Message("assistant", "", calls=(call(_json_or_text(content)),))
    body, thought, calls, errors = _content(content)
    reasoning = data.get("reasoning_content") or data.get("reasoning") or data.get("thinking") or ""
    calls += tuple(call(c) for c in listed(data.get("tool_calls")))
    if isinstance(data.get("function_call"), Mapping):
        calls += (call(data["function_call"]),)
    error = data.get("error")
    made = Message(
        role=ROLES.get(role, role),
        text=body,
        thought=str(thought or (reasoning if isinstance(reasoning, str) else text(reasoning) or "")),
        calls=calls,
        call_id=str(data.get("tool_call_id") or data.get("call_id") or ""),
        name=str(data.get("name") or data.get("function") or "")
        if not isinstance(data.get("function"), Mapping)
        else "",
        error=_error(error) or errors,
    )
    return with_text_calls(made) if made.is_agent and not made.calls else made


def call(value: object) -> Call:
    """A call: OpenAI's (also inside JSON text), a flat `{name, arguments}`, inspect's, ATIF's, or Hermes' text."""
    if isinstance(value, str):
        data = mapping(value)
        if not data:
            return Call("?", value, problem="the call is no JSON")
    else:
        data = mapping(value)
    inner = data.get("function")
    source = inner if isinstance(inner, Mapping) else data
    name = source.get("name") or source.get("function_name") or source.get("tool_name") or data.get("name")
    if name is None and isinstance(inner, str):
        name = inner
    arguments: Any = None
    for key in ("arguments", "args", "input", "parameters"):
        if key in source:
            arguments = source[key]
            break
    problem = text(data.get("parse_error"))
    if isinstance(arguments, str):
        read = parsed(arguments) if arguments.strip() else {}
        if read is None and arguments.strip() != "null":
            problem = problem or "the arguments are no JSON"
        else:
            arguments = read
    id_ = data.get("id") or data.get("call_id") or data.get("tool_call_id") or ""
    return Call(str(name or "?"), arguments, str(id_), problem=problem, error=_error(data.get("error")))


def flat(value: str, role: str = "user") -> tuple[Message, ...]:
    """Text with the marks of a chat template as messages; without any, one message of `role`."""
    for template in _TEMPLATES:
        first = template.search(value)
        if first is None:
            continue
        found = []
        head = _trimmed(value[: first.start()])
        if head.strip() or (role == "assistant" and first.start()):
            found.append(Message(role, head))
        for part in template.finditer(value):
            said = Message(ROLES.get(part["role"], part["role"]), _trimmed(part["text"]))
            if said.text.strip() or not said.is_agent or part.end() < len(value):
                found.append(said)
        return _read(found)
    return _read([Message(role, _trimmed(value))])


def completion(value: object) -> tuple[Message, ...]:
    """What a policy wrote: a conversation, or text that begins with its own words."""
    if isinstance(value, str):
        if value[:2] == "[{" and (items := listed(value)):
            return conversation(items)
        return flat(value, "assistant")
    if isinstance(value, Mapping):
        made = message(value)
        return (replace(made, role="assistant") if made.role == "user" and "role" not in value else made,)
    return conversation(value)


def stripped_prompt(value: str) -> tuple[Message, ...]:
    """A prompt whose template lost its special tokens: `user\\nWhich …\\nassistant\\n`."""
    marks = list(_STRIPPED.finditer(value))
    if not marks or marks[0].start() != 0:
        return flat(value, "user")
    found = []
    for i, mark in enumerate(marks):
        end = marks[i + 1].start() if i + 1 < len(marks) else len(value)
        said = Message(mark["role"], value[mark.end() : end])
        if said.text.strip() or not said.is_agent:
            found.append(said)
    return tuple(found)


def stripped_completion(value: str) -> tuple[Message, ...]:
    """A completion whose template lost its special tokens: `…\\nuser\\n<tool_response>…\\nassistant\\n…`."""
    # one character is found ten times sooner than two: most texts have none of these marks
    if "|" in value and "<|" in value and any(template.search(value) for template in _TEMPLATES):
        return flat(value, "assistant")
    found, own = [], ""
    *answered, rest = value.split("\nassistant\n")
    for part in answered:
        marks = [(at, role) for role in ("user", "tool") if (at := part.find(f"\n{role}\n")) >= 0]
        if not marks:  # no mark of a template: the policy's own line
            own += f"{part}\nassistant\n"
            continue
        at, role = min(marks)
        answer = part[at + len(role) + 2 :]
        found.append(Message("assistant", own + part[:at]))
        found.append(Message("tool" if "<tool_response>" in answer else role, answer))
        own = ""
    rest = own + rest
    found.append(Message("assistant", rest.removesuffix("\n") if found or rest != "\n" else ""))
    return _read(found)


def with_text_calls(said: Message) -> Message:
    """Calls and thought that an agent wrote into its text."""
    if "<" not in said.text:
        return said
    thought = said.thought
    if not thought and (match := _THINK.match(said.text)):
        thought = match[1].strip()
    calls = []
    for match in _TEXT_CALL.finditer(said.text) if "<tool_call>" in said.text else ():
        data = parsed(match[1])
        if isinstance(data, Mapping) and data.get("name"):
            calls.append(call(data))
        else:
            name = re.search(r'"name"\s*:\s*"([^"]{1,200})"', match[1])
            calls.append(Call(name[1] if name else "?", match[1], problem="the call is no JSON"))
    return replace(said, thought=thought, calls=(*said.calls, *calls)) if calls or thought else said


def split(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Prompt and completion of a whole conversation: the completion begins with the policy's first message."""
    first = next((i for i, m in enumerate(messages) if m.is_agent), len(messages))
    return tuple(messages[:first]), tuple(messages[first:])


def _read(found: Iterable[Message]) -> tuple[Message, ...]:
    """Messages from text: tool responses without their tags, calls out of agents' words."""
    made = []
    for said in found:
        if said.is_agent:
            said = with_text_calls(said)
        elif responses := _tool_responses(said.text):
            made += [replace(said, role="tool", text=response) for response in responses]
            continue
        made.append(said)
    return tuple(made)


def _tool_responses(value: str) -> list[str]:
    """The results of a text that consists of nothing else: one, or one for each of several calls."""
    found: list[str] = []
    at = 0
    while at < len(value):
        match = _TOOL_RESPONSE.match(value, at)
        if match is None:
            return []
        found.append(match[1])
        at = match.end()
    return found


def _trimmed(value: str) -> str:
    """Text without the marks that end a turn."""
    trimmed = value
    while (end := next((e for e in _ENDS if trimmed.rstrip("\n").endswith(e)), None)) is not None:
        trimmed = trimmed.rstrip("\n").removesuffix(end)
    return trimmed


def _content(value: object) -> tuple[str, str, tuple[Call, ...], str | None]:
    """Text, thought, calls and error of a content: a text, or parts in OpenAI's, Anthropic's or GenAI's shape."""
    if value is None or isinstance(value, str):
        return value or "", "", (), None
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
        kind = part.get("type")
        if kind in ("reasoning", "thinking"):
            thoughts.append(text(part.get("reasoning") or part.get("thinking") or part.get("content")) or "")
        elif kind in ("tool_call", "tool_use", "function_call"):
            calls.append(call(part))
        elif kind in _RESULTS:
            inner = part.get("response", part.get("result", part.get("content")))
            texts.append(_content(inner)[0] if isinstance(inner, (list, Mapping)) else text(inner) or "")
            error = error or ("the tool failed" if part.get("is_error") is True else None)
        elif kind in ("image", "image_url", "input_image", "video", "audio", "input_audio"):
            texts.append(f"[{kind.removeprefix('input_').removesuffix('_url')}]")
        elif part.get("text") is not None or part.get("content") is not None:
            inner = part.get("text") if part.get("text") is not None else part.get("content")
            texts.append(inner if isinstance(inner, str) else _content(inner)[0])
        elif part.get("refusal"):
            texts.append(str(part["refusal"]))
        else:
            texts.append(text(part) or "")
    return "\n".join(texts), "\n".join(thoughts), tuple(calls), error


def _responses_item(item: Mapping[str, Any]) -> tuple[Message, ...]:
    """An item of OpenAI's Responses that is no message; nothing for a message."""
    match item.get("type"):
        case "function_call" | "custom_tool_call":
            return (Message("assistant", "", calls=(call(item),)),)
        case "function_call_output" | "custom_tool_call_output":
            body = _content(item.get("output"))[0]
            return (Message("tool", body, call_id=str(item.get("call_id") or "")),)
        case "reasoning":
            thought = _content(item.get("summary"))[0] or _content(item.get("content"))[0]
            return (Message("assistant", "", thought=thought),)
    return ()


def _tool_results(item: Mapping[str, Any]) -> tuple[Message, ...]:
    """The results in a message whose content holds them as parts (Anthropic's, GenAI's), each a message of its own,
    and what else it says; nothing for any other message."""
    content = item.get("content", item.get("parts"))
    parts = [p for p in content if isinstance(p, Mapping)] if isinstance(content, list) else []
    if not any(p.get("type") in _RESULTS for p in parts):
        return ()
    found = []
    for part in parts:
        if part.get("type") in _RESULTS:
            id_ = part.get("tool_use_id") or part.get("id") or part.get("tool_call_id") or ""
            said, _, _, error = _content([part])
            found.append(Message("tool", said, call_id=str(id_), error=error))
    rest = [p for p in parts if p.get("type") not in _RESULTS]
    return (*found, message({**item, "content": rest})) if rest else tuple(found)


def _joined(found: Sequence[Message]) -> tuple[Message, ...]:
    """Responses items and ShareGPT write one turn as several entries: words, then calls. They are one turn again."""
    made: list[Message] = []
    for said in found:
        last = made[-1] if made else None
        # an entry of calls alone, or what follows a thought alone, belongs to the turn that it continues
        if last is not None and last.is_agent and said.is_agent and (_only_calls(said) or _only_thought(last)):
            made[-1] = replace(
                last,
                text=last.text or said.text,
                thought="\n".join(t for t in (last.thought, said.thought) if t),
                calls=(*last.calls, *said.calls),
            )
        else:
            made.append(said)
    return tuple(made)


def _only_calls(said: Message) -> bool:
    return not said.text and not said.thought and bool(said.calls)


def _only_thought(said: Message) -> bool:
    return not said.text and not said.calls and bool(said.thought)


def _json_or_text(value: object) -> object:
    return parsed(value) or value if isinstance(value, str) else value


def _error(value: object) -> str | None:
    """An error that a writer stated, as text; None for none."""
    if value is None or value is False or value == "" or value == {}:
        return None
    if isinstance(value, Mapping):
        kind, said = value.get("type"), value.get("message")
        if said or kind:
            return ": ".join(str(p) for p in (kind, said) if p)
    return text(value)


def error_text(value: object) -> str | None:
    """An error that a writer stated (a text, or an object with type and message), as one text; None for none."""
    if isinstance(value, (list, tuple)):
        return "; ".join(e for v in value if (e := error_text(v))) or None
    return _error(value)


__all__ = [
    "call",
    "completion",
    "conversation",
    "error_text",
    "flat",
    "message",
    "number",
    "split",
    "stripped_completion",
    "stripped_prompt",
]
