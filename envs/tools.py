"""The declaration of a tool: its arguments with bounds, the modality it needs, the resources it makes and requires.

Penalty rules, prompts and the viewer read these declarations, so an environment that declares its tools gets penalties
for misuse, and their explanations, for free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast, get_args

from ..configs.plain_data import from_plain
from .calls import clean_json

ArgumentType = Literal["integer", "number", "string", "boolean", "array", "object", "box", "any"]
"""`box` is `[x0, y0, x1, y1]` in pixels, `x0 < x1`, `y0 < y1`. `any` is any JSON value; the tool itself checks it."""

TYPES: tuple[str, ...] = get_args(ArgumentType)

Bound = int | float | str
"""A number, or the name of a fact in the step's context, such as `"width"`, whose value is the bound."""


@dataclass(frozen=True)
class Argument:
    """One argument of a tool.

    `minimum` is inclusive and `below` exclusive (a coordinate is `0 <= x < width`). The edges of a `box` are checked
    against the context's `width` and `height`. `refers_to` names a kind of resource (`"mask"`): the value must be the
    id of an existing one. `nullable`: null is allowed. `declared`: the JSON schema of another library, if it has more,
    such as the fields of an object.
    """

    name: str
    type: ArgumentType
    description: str = ""
    required: bool = True
    minimum: Bound | None = None
    below: Bound | None = None
    choices: tuple[str, ...] | None = None
    refers_to: str | None = None
    nullable: bool = False
    declared: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def schema(self) -> dict[str, object]:
        if self.declared:
            return dict(self.declared)
        schema: dict[str, object] = {"description": self.description} if self.description else {}
        if self.type == "box":
            return {"type": "array", "items": {"type": "integer"}, "minItems": 4, "maxItems": 4} | schema
        if self.type != "any":
            schema = {"type": self.type} | schema
        if self.choices is not None:
            schema["enum"] = list(self.choices)
        if isinstance(self.minimum, (int, float)):
            schema["minimum"] = self.minimum
        if self.nullable:
            schema["nullable"] = True  # as `transformers` declares `int | None`
        return schema


@dataclass(frozen=True)
class ToolSpec:
    """One tool of an environment.

    `modality`: the input it requires (`"image"`, `"video"`, `"text"`), empty for any. `produces`: the kind of resource
    that a successful call makes (`"mask"`). Later calls may refer to it. `final`: the call ends the episode with its
    answer.
    """

    name: str
    description: str = ""
    arguments: tuple[Argument, ...] = ()
    modality: frozenset[str] = frozenset()
    produces: str | None = None
    final: bool = False

    @property
    def schema(self) -> dict[str, object]:
        """The tool as `{"type": "function", "function": {...}}`, as chat templates take it."""
        parameters = {
            "type": "object",
            "properties": {argument.name: argument.schema for argument in self.arguments},
            "required": [argument.name for argument in self.arguments if argument.required],
        }
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}

    @property
    def signature(self) -> str:
        """The call format, such as `SEGMENT_OBJECT_AT(x, y)`. Optional arguments end with a question mark."""
        return f"{self.name}({', '.join(a.name if a.required else a.name + '?' for a in self.arguments)})"

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "description": self.description,
            "arguments": [
                {k: v for k, v in vars(a).items() if v is not None and (k not in ("nullable", "declared") or v)}
                for a in self.arguments
            ],
            "modality": sorted(self.modality),
            "produces": self.produces,
            "final": self.final,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, object]) -> ToolSpec:
        return from_plain(cls, data)


ANSWER = ToolSpec("ANSWER", "Ends the task with the answer.", (Argument("text", "string", "the answer"),), final=True)


def tool_of_schema(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> ToolSpec:
    """Create a tool from a JSON schema of type `object`, as MCP servers and other libraries provide it.

    `ToolSpec.schema` is the inverse, with references resolved. Types that `ArgumentType` lacks become `any`.
    """
    parameters = parameters or {}
    required, properties = parameters.get("required") or (), parameters.get("properties")
    definitions = parameters.get("$defs")
    if isinstance(definitions, Mapping):
        properties = _resolved(properties, definitions)
    arguments = tuple(
        _argument(key, schema if isinstance(schema, Mapping) else {}, key in required)
        for key, schema in (properties.items() if isinstance(properties, Mapping) else ())
    )
    return ToolSpec(name, " ".join((description or "").split()), arguments)


def _resolved(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a JSON schema without titles, and with definitions in place of references, except recursive ones."""
    if isinstance(schema, list):
        return [_resolved(each, definitions) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    name = str(schema.get("$ref")).rpartition("/")[2]
    if name in definitions:
        others = {key: each for key, each in definitions.items() if key != name}
        return _resolved({**definitions[name], **{k: v for k, v in schema.items() if k != "$ref"}}, others)
    named = {k: v for k, v in schema.items() if k != "title" or not isinstance(v, str)}
    return {key: _resolved(each, definitions) for key, each in named.items()}


def _argument(name: str, schema: Mapping[str, Any], required: bool) -> Argument:
    kinds = schema.get("type")
    options = [{"type": k} for k in kinds] if isinstance(kinds, list) else schema.get("anyOf")
    options = options if isinstance(options, list) else [{}]
    known = [option for option in options if isinstance(option, Mapping) and option.get("type") != "null"]
    only = {**schema, **known[0]} if len(known) == 1 else {}
    kind = cast("ArgumentType", only.get("type") if only.get("type") in TYPES else "any")
    choices, minimum = only.get("enum"), only.get("minimum")
    texts = tuple(choices) if isinstance(choices, list) and all(isinstance(c, str) for c in choices) else None
    argument = Argument(
        name,
        kind,
        " ".join(str(schema.get("description") or "").split()),
        required,
        minimum=minimum if kind in ("integer", "number") and isinstance(minimum, (int, float)) else None,
        choices=texts if kind == "string" else None,
        nullable=kind != "any" and (bool(schema.get("nullable")) or len(known) < len(options)),
    )
    stated = {key: value for key, value in schema.items() if key not in ("title", "description")}
    if argument.description:
        stated["description"] = argument.description
    try:
        declared = clean_json(stated)
    except ValueError:  # nested too deeply for a record
        return argument
    return argument if argument.schema == declared else replace(argument, declared=declared)
