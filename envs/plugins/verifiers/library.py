"""The library itself, imported when an environment of it is made, and its messages."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any

from ...agent import Message
from ...user_code import one_line

ROLES = ("system", "user", "assistant", "tool")


def library() -> Any:
    """Import `verifiers`, untyped: it resolves its names on use. Raises ValueError if it is not usable."""
    try:
        found = importlib.import_module("verifiers")
        _ = found.Environment
    except (ImportError, AttributeError) as problem:
        raise ValueError(
            f"the environments of verifiers need its versions 0.2.1 to 0.3 ({one_line(problem)}); "
            "pip install 'grpo-tui[verifiers]'"
        ) from problem
    return found


def plain_messages(messages: Any, where: str) -> list[Message]:
    """Convert messages of verifiers to ours. Raises ValueError for content other than text."""
    if isinstance(messages, str):
        return [Message(role="user", content=messages)]
    plain: list[Message] = []
    for given in messages:
        message = dumped(given)
        role, content = message.get("role"), message.get("content")
        if isinstance(content, list):
            parts = [dumped(part) for part in content]
            if any(part.get("type") != "text" for part in parts):
                kinds = ", ".join(sorted({str(p.get("type")) for p in parts} - {"text"}))
                raise ValueError(f"{where}: a message holds {kinds}; only text of verifiers' environments is mapped")
            content = "\n".join(str(part.get("text", "")) for part in parts)
        if role not in ROLES:
            raise ValueError(f"{where}: a message has the role {role!r}; known are {', '.join(ROLES)}")
        made: dict[str, Any] = {"role": role, "content": content or ""}
        with suppress(KeyError):
            made["tool_call_id"] = message["tool_call_id"]
        plain.append(made)  # type: ignore[arg-type]
    return plain


def dumped(message: Any) -> dict[str, Any]:
    """Return a message as a mapping without unset fields."""
    values = message.model_dump() if hasattr(message, "model_dump") else dict(message)
    return {key: value for key, value in values.items() if value is not None}
