"""Convert a conversation to a task, to the chat template's form, and to the form of text that it asks for. Callers'
images are saved as files of the run. No address is fetched.

A single question (with an optional system message) becomes a task of the run's environment, if that accepts questions.
`ChatEnv` serves all other conversations in one turn.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .....configs.pictures import open_picture
from .....configs.schema import CHAT_ENV
from .....configs.sections import EnvironmentConfig
from .....envs.base import Env
from .....envs.calls import clean_json, format_call
from .....envs.guard import describe, guarded
from ....runs.durable import replace_file
from ..conversations import Told, tool_call
from ..wanted import JsonSchema, Wanted
from .problems import HttpProblem
from .schema import ChatMessage, ChatRequest, ImagePart, NamedTool, ToolPart

log = logging.getLogger(__name__)

SCHEMA_CHARACTERS = 100_000
"""Maximum length of the JSON schema in a `response_format`."""
MAX_PIXELS = 1 << 24
FILE_KEYS = ("image", "images", "video", "frames", "file_name")
"""Keys that name image files, at any depth of a task (`ChatEnv` reads them from its messages)."""


@dataclass(frozen=True)
class Uploads:
    """Images that callers send or name. folder: for uploads. shared: folders in which callers may name images."""

    folder: Path
    shared: tuple[Path, ...] = ()

    def picture(self, url: str) -> str:
        """Save the image in a data URL as a PNG file named by its content, and return the path. Raises HttpProblem."""
        head, _, data = url.partition(",")
        if not head.startswith("data:image/") or not head.endswith(";base64"):
            raise HttpProblem(
                400, "an image must be a data URL (data:image/png;base64,…): no address is fetched", param="url"
            )
        try:
            raw = base64.b64decode(data, validate=True)
            with open_picture(io.BytesIO(raw), MAX_PIXELS) as image:
                pixels = image.convert("RGB")
        except ValueError as error:
            raise HttpProblem(400, f"the image cannot be read: {error}", param="url") from error
        path = self.folder / f"{hashlib.sha256(raw).hexdigest()[:32]}.png"
        if not path.exists():
            encoded = io.BytesIO()
            pixels.save(encoded, "PNG", compress_level=1)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_file(path, encoded.getvalue())
            except OSError as error:
                log.warning("an image could not be saved: %s", error)
                raise HttpProblem(507, f"the image cannot be saved: {error.strerror or error}", param="url") from error
        return str(path.resolve())

    def task(self, value: object, where: str = "task_data", names_files: bool = False) -> Any:
        """Return a task, or a part of it, with all images as files that callers may use. names_files: its strings are
        file names. Raises HttpProblem.

        The error is the same for existing and missing files, so it reveals nothing about the disk.
        """
        if isinstance(value, Mapping):
            return {k: self.task(v, f"{where}.{k}", k in FILE_KEYS) for k, v in value.items()}
        if isinstance(value, list):
            return [self.task(v, where, names_files) for v in value]
        return self._file(where, value) if names_files and isinstance(value, str) else value

    def _file(self, where: str, value: str) -> str:
        if value.startswith("data:"):
            return self.picture(value)
        allowed = (self.folder, *self.shared)
        path = Path(value)
        try:
            inside = path.is_absolute() and any(path.resolve().is_relative_to(f.resolve()) for f in allowed)
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

    sees: whether the policy takes images.
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
        found = [part.url for part in message.parts if isinstance(part, ImagePart)]
        if found and message.role != "user":
            raise HttpProblem(
                400, f"messages[{number}]: only messages of the role user may contain images", param="messages"
            )
        paths = [uploads.picture(url) for url in found]
        plain.append({"role": message.template_role, "content": message.text, "pictures": paths})
        pictures += paths
    if last == "user" and not plain[-1]["content"].strip():
        raise HttpProblem(400, f"messages[{len(plain) - 1}] contains no text", param="messages")
    systems = [m["content"] for m in plain[:-1] if m["role"] == "system"]
    if env_class is not None and len(systems) == len(plain) - 1:
        task = _task_of_question(env_class, plain[-1]["content"], pictures, environment.turn_timeout_s)
        if task is not None:
            prompt = {"system_prompt": "\n\n".join(systems)} if systems else {}
            return {
                "env_class_path": environment.class_path,
                "env_config": environment.config,
                "task_data": task | prompt,
            }
    if pictures and not sees:
        only = "images are only supported in a single question without earlier turns, if the environment takes them"
        raise HttpProblem(400, f"the policy reads no images: {only}", param="messages")
    for m in plain:
        if shown := [{"type": "image", "image": path} for path in m.pop("pictures")]:
            m["content"] = [*shown, {"type": "text", "text": m["content"]}]
    return {"env_class_path": CHAT_ENV, "env_config": {}, "task_data": {"messages": plain}}


def _task_of_question(
    env_class: type[Env], question: str, pictures: list[str], timeout_s: float
) -> dict[str, Any] | None:
    """Return the environment's task for a question. Raises HttpProblem if its author's code fails or hangs."""

    def task(_: None) -> dict[str, Any] | None:
        found: object = env_class.task_of_question(question, pictures)
        if not isinstance(found, dict | None):
            raise TypeError(f"task_of_question returned {describe(found)}, not a task")
        return clean_json(found)

    outcome = guarded(task, None, timeout_s)
    if outcome.error is not None:
        log.warning("task_of_question failed: %s\n%s", outcome.error, outcome.detail)
        raise HttpProblem(422, f"the environment makes no task of this question: {outcome.error}", param="messages")
    return outcome.value


def told(messages: Sequence[ChatMessage]) -> list[Told]:
    """Convert messages to the chat template's form. Raises HttpProblem."""
    found: list[Told] = []
    open_calls: set[str] = set()
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        converted: dict[str, object] = {"role": message.template_role, "content": message.text}
        if message.tool_calls and message.role != "assistant":
            raise HttpProblem(400, f"{where}: only messages of the role assistant call tools", param="messages")
        if message.tool_calls:
            converted["tool_calls"] = [
                tool_call(call.id, call.function.name, _arguments(call.function.arguments, f"{where}.tool_calls[{i}]"))
                for i, call in enumerate(message.tool_calls)
            ]
            open_calls |= {call.id for call in message.tool_calls}
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                reason = f"{where}: tool_call_id must be the id of a call in a message of the assistant before it"
                raise HttpProblem(400, reason, param="messages")
            converted["tool_call_id"] = message.tool_call_id
            converted |= {"name": message.name} if message.name else {}
        found.append(converted)
    return found


def recorded(messages: Sequence[Told]) -> list[dict[str, object]]:
    """Convert messages for a task, with calls as text."""
    plain = []
    for message in messages:
        calls = [format_call(c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls", ())]
        plain.append({"role": message["role"], "content": "\n".join(filter(None, [message["content"], *calls]))})
    return plain


def tools_of(body: ChatRequest) -> tuple[dict[str, object], ...]:
    """Return the schemas of the tools that the prompt will show. Raises HttpProblem."""
    if body.tool_choice == "none":
        return ()
    return tuple(_schema(tool, f"tools[{i}].function") for i, tool in enumerate(body.tools or ()))


def wanted_of(body: ChatRequest, tools: Sequence[dict[str, Any]]) -> Wanted | None:
    """Return the form of text that a caller asks for, if any. Raises HttpProblem."""
    names = tuple(tool["function"]["name"] for tool in tools)
    if len({*names}) < len(names):
        raise HttpProblem(400, "tools: two functions have the same name", param="tools")
    required: tuple[str, ...] = ()
    if isinstance(body.tool_choice, NamedTool):
        required = (body.tool_choice.function.name,)
        if required[0] not in names:
            raise HttpProblem(400, f"tool_choice: tools has no function {required[0][:100]!r}", param="tool_choice")
    elif body.tool_choice == "required":
        required = names
        if not names:
            raise HttpProblem(400, "tool_choice: required needs tools", param="tool_choice")
    form = body.response_format
    is_json = form is not None and form.type != "text"
    if not tools and not is_json:
        return None
    schema = None
    if form is not None and form.type == "json_schema":
        schema = _json_schema(form.json_schema.schema_ if form.json_schema is not None else None)
    return Wanted(tuple(tools), required, body.parallel_tool_calls is not False, is_json, schema)


def _json_schema(schema: dict[str, object] | None) -> JsonSchema:
    where = "response_format.json_schema.schema"
    if schema is None:
        raise HttpProblem(400, f"{where} is missing", param="response_format")
    if len(json.dumps(schema)) > SCHEMA_CHARACTERS:
        raise HttpProblem(400, f"{where} has more than {SCHEMA_CHARACTERS:,} characters", param="response_format")
    try:
        return JsonSchema(schema)
    except ValueError as error:
        raise HttpProblem(400, f"{where}: {error}", param="response_format") from None


def _schema(tool: ToolPart, where: str) -> dict[str, object]:
    function = tool.function
    parameters = function.parameters or {"type": "object", "properties": {}}
    properties = parameters.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(p, dict) for p in properties.values()):
        raise HttpProblem(400, f"{where}.parameters.properties must be JSON schemas by name", param="tools")
    schema = {"name": function.name, "description": function.description or "", "parameters": parameters}
    return {"type": "function", "function": schema}


def _arguments(text: str, where: str) -> dict[str, object]:
    try:
        found = clean_json(json.loads(text or "{}"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HttpProblem(400, f"{where}.function.arguments must be a JSON object as text", param="messages")
    return found
