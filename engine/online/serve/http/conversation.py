"""Converts a conversation to a task, and pictures of callers to files of the run. No address is fetched.

A single question (with an optional system message) is a task of the run's environment, if that accepts questions.
`ChatEnv` serves any other conversation in one turn.
"""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .....configs.pictures import open_picture
from .....configs.schema import CHAT_ENV
from .....configs.sections import EnvironmentConfig
from .....envs.base import Env
from ....runs.durable import replace_file
from .problems import HttpProblem
from .schema import ChatMessage, ImagePart

MAX_PIXELS = 1 << 24
FILE_KEYS = ("image", "images", "video", "frames", "file_name")
"""Keys that name picture files, at any depth of a task (`ChatEnv` reads them from its messages)."""


@dataclass(frozen=True)
class Uploads:
    """folder: for uploaded pictures. shared: folders of which callers may name pictures."""

    folder: Path
    shared: tuple[Path, ...] = ()

    def picture(self, url: str) -> str:
        """Save the picture of a data URL as a PNG file named by its content; return the path. Raises HttpProblem."""
        head, _, data = url.partition(",")
        if not head.startswith("data:image/") or not head.endswith(";base64"):
            raise HttpProblem(
                400, "a picture must be a data URL (data:image/png;base64,…): no address is fetched", param="url"
            )
        try:
            raw = base64.b64decode(data, validate=True)
            with open_picture(io.BytesIO(raw), MAX_PIXELS) as image:
                pixels = image.convert("RGB")
        except ValueError as error:
            raise HttpProblem(400, f"the picture cannot be read: {error}", param="url") from error
        path = self.folder / f"{hashlib.sha256(raw).hexdigest()[:32]}.png"
        self.folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            encoded = io.BytesIO()
            pixels.save(encoded, "PNG", compress_level=1)
            replace_file(path, encoded.getvalue())
        return str(path.resolve())

    def task(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """Return a task whose pictures are files that callers may use. Raises HttpProblem.

        The error is the same for existing and missing files, so a caller learns nothing about the disk.
        """
        return self._checked("task_data", task, False)

    def _checked(self, where: str, value: Any, names_files: bool) -> Any:
        """Check a part of a task. names_files: whether its texts are file names."""
        if isinstance(value, Mapping):
            return {k: self._checked(f"{where}.{k}", v, k in FILE_KEYS) for k, v in value.items()}
        if isinstance(value, list):
            return [self._checked(where, v, names_files) for v in value]
        return self._file(where, value) if names_files and isinstance(value, str) else value

    def _file(self, where: str, value: str) -> str:
        if value.startswith("data:"):
            return self.picture(value)
        allowed = (self.folder, *self.shared)
        named = Path(value)
        try:
            inside = named.is_absolute() and any(named.resolve().is_relative_to(f.resolve()) for f in allowed)
        except (OSError, ValueError, RuntimeError):
            inside = False
        if not inside:
            raise HttpProblem(
                400,
                f"{where} must be a data URL, or a file in a folder that online.image_folders names",
                param=where,
            )
        return value


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
    last = messages[-1].role
    if last not in ("user", "tool"):
        reason = f"the last message must be of the role user (or tool), not {last}"
        raise HttpProblem(400, reason, param="messages")
    plain: list[dict[str, Any]] = []
    pictures: list[str] = []
    for number, message in enumerate(messages):
        text, found = _content(message, f"messages[{number}]", uploads)
        role = "system" if message.role == "developer" else message.role
        plain.append({"role": role, "content": text, "pictures": found})
        pictures += found
    if last == "user" and not plain[-1]["content"].strip():
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
    return {"env_class_path": CHAT_ENV, "env_config": {}, "task_data": {"messages": told}}


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
