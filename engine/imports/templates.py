"""Read flat text of chat templates, with or without the template's marks. Texts stay verbatim."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .calls import call, with_text_calls
from .rollout import Message

ROLES = {
    "human": "user",
    "gpt": "assistant",
    "gemini": "assistant",
    "model": "assistant",
    "ai": "assistant",
    "agent": "assistant",
    "bot": "assistant",
    "observation": "tool",
    "function": "tool",
    "function_call_output": "tool",
    "environment": "tool",
    "ipython": "tool",
    "developer": "system",
    "User": "user",
    "Assistant": "assistant",
    "INST": "user",
    "/INST": "assistant",
}
"""Our roles by the role names of writers."""


def _template(mark: str, begin: str, end: str, again: str) -> tuple[str, re.Pattern[str]]:
    """Return a mark that every text of the template contains and that is quick to find, and the message pattern."""
    return mark, re.compile(rf"{begin}(?P<text>.*?)(?={end}|{again}|\Z)(?:{end})?", re.S)


_TEMPLATES = (
    _template("<|im_start|>", r"<\|im_start\|>(?P<role>\w+)\n?", r"<\|im_end\|>", r"<\|im_start\|>"),
    _template(
        "<|start_header_id|>",
        r"<\|start_header_id\|>(?P<role>\w+)<\|end_header_id\|>\s*",
        r"<\|eot_id\|>|<\|eom_id\|>",
        r"<\|start_header_id\|>",
    ),
    _template("<start_of_turn>", r"<start_of_turn>(?P<role>\w+)\n?", r"<end_of_turn>\n?", r"<start_of_turn>"),
    _template("｜>", r"<｜(?P<role>User|Assistant)｜>", r"<｜end▁of▁sentence｜>", r"<｜(?:User|Assistant)｜>"),
    _template(
        "<|assistant|>",
        r"<\|(?P<role>system|user|assistant|observation|tool)\|>\n?",
        r"<\|end\|>\n?|</s>\n?",
        r"<\|(?:system|user|assistant|observation|tool)\|>",
    ),
    _template("[/INST]", r"\[(?P<role>/?INST)\]", r"</s>", r"\[/?INST\]"),
)
_HARMONY = re.compile(
    r"(?:<\|start\|>(?P<role>[^<]*))?(?:<\|channel\|>(?P<channel>[^<]*))?(?:<\|constrain\|>[^<]*)?<\|message\|>"
    r"(?P<text>.*?)(?=<\|end\|>|<\|call\|>|<\|return\|>|<\|start\|>|\Z)",
    re.S,
)
"""gpt-oss: the agent thinks (channel `analysis`), calls (`to=functions.NAME`), or answers (`final`)."""
_RECIPIENT = re.compile(r"to=functions\.([\w.-]+)")
_TOOL_RESPONSE = re.compile(r"\s*<tool_response>\n?(.*?)\n?</tool_response>\s*", re.S)
_BEGINS = re.compile(r"\A(?:<s>|<bos>|<\|begin_of_text\|>|<｜begin▁of▁sentence｜>|\[gMASK\]|<sop>)+")
_ENDS = (
    "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|endoftext|>", "</s>", "<|end_of_text|>", "<end_of_turn>", "<|end|>",
    "<｜end▁of▁sentence｜>",
)  # fmt: skip
_TO_BE_SAID = re.compile(r"\s*(?:<think>\s*)?(?:</think>\s*)?")
"""Template text at the beginning of the agent's turn."""
# If the decoder skips special tokens, only a role alone on its line remains of the template.
_STRIPPED = re.compile(r"(?:\A|\n)(?P<role>system|user|assistant|tool|model)\n")


def flat(value: str, role: str = "user") -> tuple[Message, ...]:
    """Read text with the marks of a chat template. Text without marks is one message of `role`."""
    if "<|message|>" in value:
        return _harmony(value, role)
    for template_mark, message in _TEMPLATES:
        if template_mark not in value or (first := message.search(value)) is None:
            continue
        found = []
        head = _trimmed(_BEGINS.sub("", value[: first.start()]))
        if head.strip() or (role == "assistant" and first.start()):
            found.append(Message("system" if role == "user" else role, head))
        for part in message.finditer(value):
            message_ = Message(ROLES.get(part["role"], part["role"]), _trimmed(part["text"]))
            if not message_.is_agent or part.end() < len(value) or not _TO_BE_SAID.fullmatch(message_.text):
                found.append(message_)
        return read(found)
    return read([Message(role, _trimmed(value))])


def stripped_prompt(value: str) -> tuple[Message, ...]:
    """Read a prompt whose template lost its special tokens: `user\\nWhich …\\nassistant\\n`."""
    marks = list(_STRIPPED.finditer(value))
    if not marks or marks[0].start() != 0:
        return flat(value, "user")
    found = []
    for i, mark in enumerate(marks):
        end = marks[i + 1].start() if i + 1 < len(marks) else len(value)
        message = Message(ROLES.get(mark["role"], mark["role"]), value[mark.end() : end])
        if not message.is_agent or not _TO_BE_SAID.fullmatch(message.text):
            found.append(message)
    return tuple(found)


def stripped_completion(value: str) -> tuple[Message, ...]:
    """Read a completion without special tokens: `…\\nuser\\n<tool_response>…\\nassistant\\n…`."""
    # most texts have no marks, and a search for one character is ten times faster than for several
    if ("|" in value or "｜" in value or "[" in value) and any(mark in value for mark, _ in _TEMPLATES):
        return flat(value, "assistant")
    found, own = [], ""
    agent = "\nassistant\n" if "\nassistant\n" in value else "\nmodel\n"
    *answered, rest = value.split(agent)
    for part in answered:
        marks = [(position, role) for role in ("user", "tool") if (position := part.find(f"\n{role}\n")) >= 0]
        if not marks:  # not a template mark but the policy's own line
            own += f"{part}{agent}"
            continue
        position, role = min(marks)
        answer = part[position + len(role) + 2 :]
        found.append(Message("assistant", own + part[:position]))
        found += _answers(answer, role)
        own = ""
    rest = own + rest
    # It ended with a call.
    if (position := rest.find("\nuser\n<tool_response>")) >= 0 or (position := rest.find("\ntool\n")) >= 0:
        _, role, answer = rest[position:].split("\n", 2)
        found.append(Message("assistant", rest[:position]))
        return read([*found, *_answers(answer, role)])
    found.append(Message("assistant", rest.removesuffix("\n") if found or rest != "\n" else ""))
    return read(found)


def _answers(answer: str, role: str) -> list[Message]:
    """Return the messages between two turns. Some templates repeat the role before each call's result."""
    if "<tool_response>" in answer:
        return [Message("tool", each) for each in re.split(r"\n(?:user|tool)\n(?=<tool_response>)", answer)]
    return [Message(role, answer)]


def read(found: Iterable[Message]) -> tuple[Message, ...]:
    """Extract calls from agents' texts, and split tool responses from their tags."""
    return tuple(one for m in found for one in ([with_text_calls(m)] if m.is_agent else answers(m)))


def answers(message: Message) -> tuple[Message, ...]:
    """Split a message with nothing but tool results in tags into one message per result."""
    results = () if message.is_agent else _tool_responses(message.text)
    return tuple(replace(message, role="tool", text=result) for result in results) or (message,)


def joined(found: Sequence[Message]) -> tuple[Message, ...]:
    """Join the entries of one turn, because Responses items, ShareGPT and gpt-oss write text and calls separately."""
    result: list[Message] = []
    for message in found:
        last = result[-1] if result else None
        only_calls = bool(message.calls) and not message.text and not message.thought
        after_thought = last is not None and bool(last.thought) and not last.text and not last.calls
        # an entry with only calls, or one that follows a bare thought, continues the previous turn
        if last and last.is_agent and message.is_agent and last.name == message.name and (only_calls or after_thought):
            result[-1] = replace(
                last,
                text=last.text or message.text,
                thought="\n".join(t for t in (last.thought, message.thought) if t),
                calls=(*last.calls, *message.calls),
                stop=message.stop or last.stop,
            )
        else:
            result.append(message)
    return tuple(result)


def _harmony(value: str, role: str) -> tuple[Message, ...]:
    def parts() -> Iterator[Message]:
        for part in _HARMONY.finditer(value):
            role_text, channel = (part["role"] or "").strip(), (part["channel"] or "").strip()
            called = _RECIPIENT.search(f"{role_text} {channel}")
            author = role_text.partition(" ")[0] or ("assistant" if role == "assistant" or channel else role)
            if author.startswith("functions."):
                yield Message("tool", part["text"], name=author.removeprefix("functions."))
            elif called is not None:
                yield Message("assistant", "", calls=(call({"name": called[1], "arguments": part["text"]}),))
            elif channel == "analysis":
                yield Message("assistant", "", thought=part["text"])
            else:
                yield Message(ROLES.get(author, author), part["text"])

    return joined(list(parts()))


def _tool_responses(value: str) -> list[str]:
    """Return the results if a text contains nothing but tool results."""
    found: list[str] = []
    offset = 0
    while offset < len(value):
        match = _TOOL_RESPONSE.match(value, offset)
        if match is None:
            return []
        found.append(match[1])
        offset = match.end()
    return found


def _trimmed(value: str) -> str:
    """Strip the marks that end a turn."""
    trimmed = value
    while (end := next((e for e in _ENDS if trimmed.rstrip("\n").endswith(e)), None)) is not None:
        trimmed = trimmed.rstrip("\n").removesuffix(end)
    return trimmed
