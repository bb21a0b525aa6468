"""Converts a conversation to a task.

A single question (with an optional system message) is a task of the run's environment, if that accepts questions.
`ChatEnv` serves any other conversation in one turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .....configs.sections import EnvironmentConfig
from .....envs.base import Env
from .problems import HttpProblem
from .schema import ChatMessage, ImagePart
from .uploads import Uploads

CHAT_ENVIRONMENT = "grpo_tui.envs.chat.ChatEnv"


def row_of(
    messages: Sequence[ChatMessage],
    uploads: Uploads,
    environment: EnvironmentConfig,
    env_class: type[Env] | None,
    sees: bool = False,
) -> dict[str, Any]:
    """Return a row (`env_class_path`, `env_config`, `task_data`) for a conversation. Raises HttpProblem.

    sees: whether the policy sees pictures.
    """
    if not messages:
        raise HttpProblem(400, "messages is empty: it must end with a message of the role user", param="messages")
    if messages[-1].role != "user":
        raise HttpProblem(400, f"the last message must be of the role user, not {messages[-1].role}", param="messages")
    plain: list[dict[str, Any]] = []
    pictures: list[str] = []
    for number, message in enumerate(messages):
        text, found = _content(message, f"messages[{number}]", uploads)
        role = "system" if message.role == "developer" else message.role
        plain.append({"role": role, "content": text, "pictures": found})
        pictures += found
    if not plain[-1]["content"].strip():
        raise HttpProblem(400, f"messages[{len(plain) - 1}] holds no text", param="messages")
    systems = [m["content"] for m in plain[:-1] if m["role"] == "system"]
    if env_class is not None and len(systems) == len(plain) - 1:
        task = env_class.task_of_question(plain[-1]["content"], pictures)
        if task is not None:
            prompt = {"system_prompt": "\n\n".join(systems)} if systems else {}
            return {
                "env_class_path": environment.class_path,
                "env_config": environment.config,
                "task_data": task | prompt,
            }
    if pictures and not sees:
        raise HttpProblem(
            400, "a picture can be asked about in one question, without turns before it", param="messages"
        )
    told = [{"role": m["role"], "content": _blocks(m["content"], m["pictures"])} for m in plain]
    return {"env_class_path": CHAT_ENVIRONMENT, "env_config": {}, "task_data": {"messages": told}}


def _blocks(text: str, pictures: Sequence[str]) -> str | list[dict[str, str]]:
    """Return the content for `ChatEnv`: text, or pictures and then the text."""
    if not pictures:
        return text
    return [*({"type": "image", "image": path} for path in pictures), {"type": "text", "text": text}]


def _content(message: ChatMessage, where: str, uploads: Uploads) -> tuple[str, list[str]]:
    """Return a message's text, and the files of its pictures."""
    if message.content is None:
        return "", []
    if isinstance(message.content, str):
        return message.content, []
    text, pictures = "", []
    for part in message.content:
        if isinstance(part, ImagePart):
            if message.role != "user":
                raise HttpProblem(400, f"{where}: only messages of the role user hold pictures", param="messages")
            pictures.append(uploads.picture(part.image_url if isinstance(part.image_url, str) else part.image_url.url))
        else:
            text += part.text
    return text, pictures
