"""Explain an environment to a policy that does not know it: its tools and the call format.

The explanation is the first message of the prompt, so any model can read it, the record shows it, and it does not
depend on the chat template. `calls.parse_call` parses such calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from .agent import Message
from .content import with_text_before
from .tools import Argument, ToolSpec

EXAMPLES: dict[str, object] = {
    "integer": 1,
    "number": 0.5,
    "string": "…",
    "boolean": True,
    "array": ["…"],
    "object": {"…": "…"},
    "box": [10, 20, 40, 50],
    "any": "…",
}
"""An example value of each type, for the example call."""

OPTIONAL_CALLS = (
    "Use the tools below where they help; when you know the answer, write it in plain words without a call."
)
"""The first sentence when a turn without a call is the answer."""


def explain_calls(tools: Sequence[ToolSpec], about: str = "Use the tools below to do the task.") -> str:
    """Explain the call format with an example, and each tool in one line. `about` is the first sentence."""
    example = {"name": tools[0].name, "arguments": {a.name: _example(a) for a in tools[0].arguments if a.required}}
    lines = [
        f"{about} One call a turn.",
        "Write a short thought if you like, then exactly one JSON object and nothing after it, such as:",
        json.dumps(example, ensure_ascii=False),
        "Tools:",
        *(
            f"- {tool.name}({'; '.join(map(_argument, tool.arguments))}): {tool.description}".rstrip(": ")
            for tool in tools
        ),
    ]
    return "\n".join(lines)


def with_system(text: str, messages: Sequence[Message]) -> list[Message]:
    """Prepend a system prompt, merging it into an existing one. An empty text changes nothing."""
    if not text:
        return list(messages)
    first, rest = messages[0], messages[1:]
    if first.get("role") == "system":
        return [{**first, "content": with_text_before(text, first.get("content", ""))}, *rest]
    return [{"role": "system", "content": text}, *messages]


def _argument(argument: Argument) -> str:
    kind = " or ".join(json.dumps(c) for c in argument.choices) if argument.choices else argument.type
    if argument.declared and argument.type in ("array", "object", "any"):
        kind = json.dumps({k: v for k, v in argument.declared.items() if k != "description"}, ensure_ascii=False)
    text = f"{argument.name}{'' if argument.required else '?'}: {kind}"
    return f"{text}, {argument.description}" if argument.description else text


def _example(argument: Argument) -> object:
    if argument.choices:
        return argument.choices[0]
    example, minimum = EXAMPLES[argument.type], argument.minimum
    if argument.type in ("integer", "number") and isinstance(example, float | int) and isinstance(minimum, float | int):
        return max(example, minimum)
    return example
