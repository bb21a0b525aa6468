"""A plain conversation: the policy reads the messages of the task and writes one turn, which is the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Unpack

from .agent import ROLES, Message
from .base import EnvOptions, StepResult
from .calls import ToolCall, without_thoughts
from .content import Block, Content
from .multi_turn import MultiTurnEnv
from .pictures import picture_of


class ChatEnv(MultiTurnEnv[Mapping[str, object], Mapping[str, object]]):
    """Tasks `{"messages": [{"role": "user", "content": "…"}], "answer": "…"}` with an optional `answer`.

    Content is text, or blocks: `{"type": "text", "text": "…"}` and `{"type": "image", "image": "file.png"}` (a file or
    a data URL). A vision policy gets the images.

    There are no tools: the policy's text is the answer. It is right and earns 1 if it equals a known `answer`, ignoring
    thoughts, white space and case.
    """

    name = "chat"

    def __init__(self, tokenizer: object = None, *, max_turns: int = 1, **config: Unpack[EnvOptions]) -> None:
        super().__init__(tokenizer, max_turns=max_turns, **config)

    @classmethod
    def task_of_question(cls, question: str, images: Sequence[str]) -> dict[str, object] | None:
        return None if images else {"messages": [{"role": "user", "content": question}]}

    def reset(self, task: Mapping[str, object]) -> tuple[Mapping[str, object], list[Message]]:
        """Return the messages of the task. Raises ValueError if they are not a conversation."""
        messages = task.get("messages")
        if not isinstance(messages, list) or not messages:
            raise ValueError('a task needs "messages": a list of {"role": …, "content": …}')
        for number, message in enumerate(messages):
            if not isinstance(message, Mapping) or message.get("role") not in ROLES:
                raise ValueError(f"messages[{number}] must have a role of {', '.join(ROLES)}")
            if not isinstance(message.get("content"), (str, list)):
                raise ValueError(f"messages[{number}].content must be text or a list of blocks")
        return task, [
            Message(role=m["role"], content=content_from(m["content"], f"messages[{n}]"))
            for n, m in enumerate(messages)
        ]

    def explain(self) -> str:
        return ""

    def step(self, state: Mapping[str, object], call: ToolCall) -> StepResult:
        text, expected = str(call.arguments["text"]), self.expected(state)
        words = without_thoughts(text).lower().split()
        correct = None if expected is None else words == expected.lower().split()
        return StepResult("", reward=float(bool(correct)), done=True, answer=text, correct=correct)


def content_from(content: str | list[object], where: str) -> Content:
    """Return the content of a message from a file: text unchanged, blocks with their pictures opened.

    Raises ValueError. Its message starts with `where`.
    """
    if isinstance(content, str):
        return content
    blocks: list[Block] = []
    for block in content:
        match block:
            case {"type": "text", "text": str(text)}:
                blocks.append({"type": "text", "text": text})
            case {"type": "image", "image": str(source)}:
                try:
                    blocks.append({"type": "image", "image": picture_of(source)})
                except ValueError as problem:
                    raise ValueError(f"{where}: {problem}") from problem
            case _:
                known = '{"type": "text", "text": …} or {"type": "image", "image": …}'
                raise ValueError(f"{where}: a block must be {known}")
    return blocks
