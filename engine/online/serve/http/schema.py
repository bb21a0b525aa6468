"""Request bodies as pydantic models. Unsupported fields are refused by name; harmless ones are accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import ErrorDetails

from .problems import HttpProblem

_TEXT = {"format": {"type": "text"}}
HARMLESS: dict[str, tuple[object, ...]] = {
    "audio": (),
    "context_management": ([],),
    "conversation": (),
    "frequency_penalty": (0, 0.0),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include": ([],),
    "logit_bias": ({},),
    "logprobs": (False,),
    "modalities": (["text"],),
    "n": (1,),
    "prediction": (),
    "presence_penalty": (0, 0.0),
    "prompt": (),
    "reasoning": ({}, {"effort": "none"}),
    "reasoning_effort": ("none",),
    "stop": ([], ""),
    "stream_options": ({}, {"include_obfuscation": False}, {"include_obfuscation": True}),
    "text": (_TEXT, {}, {"verbosity": "medium"}, _TEXT | {"verbosity": "medium"}),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
    "top_p": (1, 1.0),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Unsupported fields of OpenAI's API, with the values that have no effect and are accepted, besides null."""

IGNORED = frozenset(
    {
        "background",
        "max_tool_calls",
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "seed",
        "service_tier",
        "store",
    }
)
"""Accepted fields that do not affect the answer."""


Nothing = Annotated[list[object], Field(max_length=0)] | None
"""An empty list, as in messages that clients send back unchanged."""


class Strict(BaseModel):
    """No unknown fields, no silent conversion."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TextPart(Strict):
    """Text in a message. The last fields come with texts of a response that clients return."""

    type: Literal["text", "input_text", "output_text"]
    text: str
    annotations: Nothing = None
    logprobs: Nothing = None


class ImageUrl(Strict):
    """The place of a picture. Only data URLs are read."""

    url: str
    detail: Literal["auto", "low", "high"] | None = None


class ImagePart(Strict):
    """A picture in a message."""

    type: Literal["image_url", "input_image"]
    image_url: ImageUrl | str
    detail: Literal["auto", "low", "high"] | None = None

    @property
    def url(self) -> str:
        return self.image_url if isinstance(self.image_url, str) else self.image_url.url


def _part_kind(value: object) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else getattr(value, "type", None)
    return "image" if kind in ("image_url", "input_image") else "text"


Part = Annotated[Annotated[TextPart, Tag("text")] | Annotated[ImagePart, Tag("image")], Discriminator(_part_kind)]


class FunctionName(Strict):
    """A function by its name."""

    name: str


class CalledFunction(FunctionName):
    """arguments: a JSON object as text."""

    arguments: str


class CallPart(Strict):
    """A call of a tool in a message of the assistant."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class ChatMessage(Strict):
    """One message of a conversation. The last fields come with messages of the assistant that clients return."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    name: str | None = None
    type: Literal["message"] | None = None
    tool_calls: list[CallPart] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    annotations: Nothing = None
    audio: None = None
    function_call: None = None
    id: str | None = None
    status: str | None = None
    phase: str | None = None
    provider_specific_fields: object = None
    """Comes with the messages that litellm returns."""

    @property
    def parts(self) -> list[Part]:
        if isinstance(self.content, str):
            return [TextPart(type="text", text=self.content)]
        return self.content or []

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def template_role(self) -> str:
        """The role as chat templates know it."""
        return "system" if self.role == "developer" else self.role


class FunctionSpec(Strict):
    """A function that the policy may call. parameters: a JSON schema of an object."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, object] | None = None
    strict: bool | None = None


class ToolPart(Strict):
    """A tool of the caller."""

    type: Literal["function"]
    function: FunctionSpec


class NamedTool(Strict):
    """The tool that a text must call."""

    type: Literal["function"]
    function: FunctionName


class NamedSchema(Strict):
    """A JSON schema that a text must fit."""

    name: str
    schema_: dict[str, object] | None = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Strict):
    """The form of a text."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class StreamOptions(Strict):
    """`include_usage`: one more chunk with the tokens spent."""

    include_usage: bool = False
    include_obfuscation: bool = False


MOST_TEXTS = 16
StopString = Annotated[str, Field(max_length=200)]


class Asked(Strict):
    """Common fields of chat completions and responses."""

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=2)
    ensemble: bool | None = None
    """Our extension: answer with a sample that agrees with the majority of several samples."""
    user: str | None = None
    """The caller's user; experience of one user counts together."""
    safety_identifier: str | None = None
    """OpenAI's newer name of `user`."""


class ChatRequest(Asked):
    """The body of `POST /v1/chat/completions`. `task_data` (our extension) is a task of the environment."""

    messages: list[ChatMessage] | None = None
    task_data: dict[str, object] | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    stream_options: StreamOptions | None = None
    n: int | None = Field(default=None, ge=1, le=MOST_TEXTS)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**63)
    stop: StopString | Annotated[list[StopString], Field(max_length=16)] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    tools: Annotated[list[ToolPart], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: ResponseFormat | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(filter(None, stops))


class ResponsesRequest(Asked):
    """The body of `POST /v1/responses`."""

    input: str | list[ChatMessage]
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    previous_response_id: str | None = None


class Feedback(Strict):
    """The body of `POST /v1/feedback`."""

    id: str
    """The completion's or response's id, or the number of the request."""
    verdict: Literal["right", "wrong"] | None = None
    answer: str | None = None
    """The right answer, if known."""
    correction: str | None = None
    """The text that the policy should have written."""
    source: str | None = None
    """The source of the feedback. Labels of one source count together, also all sources of one caller."""


Model = TypeVar("Model", bound=BaseModel)


def read(model: type[Model], data: Mapping[str, object]) -> Model:
    """Parse `data` as `model`. Raises HttpProblem (400) with the field and the fix."""
    kept: dict[str, object] = {}
    for name, value in data.items():
        if name in model.model_fields:
            kept[name] = value
        elif value is None or name in IGNORED:
            continue
        elif name in HARMLESS:
            if value not in HARMLESS[name]:
                asks = "leave it out" + "".join(f" (or {json.dumps(v)})" for v in HARMLESS[name][:1])
                raise HttpProblem(400, f"{name} is not supported here: {asks}", param=name, code="unsupported_value")
        else:
            known = ", ".join(sorted(model.model_fields))
            raise HttpProblem(400, f"unknown field {name[:80]!r}; known fields: {known}", param=name[:80])
    try:
        return model.model_validate(kept)
    except ValidationError as error:
        # The union branch whose error is deepest, or whose type is right, is most likely the intended one.
        found = error.errors(include_url=False, include_input=False)
        first = max(found, key=lambda e: (len(e["loc"]), not e["type"].endswith("_type")))
        path = _path(first["loc"])
        raise HttpProblem(400, f"{path or 'the body'}: {_reason(first)}", param=path or None) from None


_BRANCHES = ("text", "image", "NamedTool")
"""Names of union branches in pydantic's locations."""


def _path(location: tuple[int | str, ...]) -> str:
    """Format a location as `messages[0].content`, without pydantic's names for union branches."""
    text = ""
    for part in location:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part in (*_BRANCHES, "str") or part.startswith(("list[", "function-", "constrained-", "literal[")):
            continue
        else:
            text += f".{part}" if text else part
    return text


def _reason(error: ErrorDetails) -> str:
    message = str(error["msg"])
    if error["type"] == "missing":
        return "is missing"
    if error["type"] == "extra_forbidden":
        return "is not a known field"
    return message[:1].lower() + message[1:]
