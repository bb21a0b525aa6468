"""Tools from JSON schemas, as MCP servers and other libraries give them; `ToolSpec.schema` is the way back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

from .tools import Argument, ArgumentType, ToolSpec

TYPES: tuple[str, ...] = get_args(ArgumentType)


def tool_of_schema(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> ToolSpec:
    """A tool whose arguments a JSON schema of type `object` describes. What our types cannot say is of type `any`."""
    parameters = parameters or {}
    required = parameters.get("required") or ()
    arguments = tuple(
        _argument(key, schema if isinstance(schema, Mapping) else {}, key in required)
        for key, schema in (parameters.get("properties") or {}).items()
    )
    return ToolSpec(name, " ".join((description or "").split()), arguments)


def _argument(name: str, schema: Mapping[str, Any], required: bool) -> Argument:
    kind = schema.get("type")
    if isinstance(kind, list):
        kinds = [k for k in kind if k != "null"]
        kind = kinds[0] if len(kinds) == 1 and len(kind) == 1 else None
    choices = schema.get("enum")
    texts = tuple(choices) if isinstance(choices, list) and all(isinstance(c, str) for c in choices) else None
    known = cast("ArgumentType", kind) if kind in TYPES else "any"
    minimum = schema.get("minimum") if known in ("integer", "number") else None
    return Argument(
        name,
        known,
        " ".join(str(schema.get("description") or "").split()),
        required,
        minimum=minimum if isinstance(minimum, (int, float)) else None,
        choices=texts if known == "string" else None,
    )
