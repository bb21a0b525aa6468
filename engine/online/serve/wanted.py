"""The form of a text that a caller asked for: calls of its tools, or JSON. It is checked once the text is complete."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.validators import extend
from referencing import Registry
from referencing.exceptions import Unresolvable

from ....envs.calls import DECODER, ToolCall
from ....envs.trajectory import Call

MOST_CHECKS = 20_000
"""Maximum schema keywords evaluated in one check. References can make their number grow exponentially."""
UNCHECKED = ("pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef", "$id")
"""Refused keywords: checking them may take unlimited time, or needs another document."""


class NotAsWanted(RuntimeError):
    """No attempt at a text had the form that the caller asked for. The message contains the reason."""


class JsonSchema:
    """A caller's JSON schema (draft 2020-12). Raises ValueError with the reason for one that cannot be checked."""

    def __init__(self, schema: Mapping[str, object]) -> None:
        if (keyword := next(_unchecked(schema), None)) is not None:
            raise ValueError(f"the keyword {keyword} is not supported")
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            raise ValueError(f"it is not a JSON schema: {error.message[:200]}") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        self._schema = schema

    def problem(self, value: object) -> str | None:
        """Return the reason why a value does not match the schema; None if it does."""
        checks = 0

        def counted(keyword: Callable[..., Iterator[object] | None]) -> Callable[..., Iterator[Any]]:
            def check(*arguments: object) -> Iterator[object]:
                nonlocal checks
                checks += 1
                if checks > MOST_CHECKS:
                    raise RecursionError
                yield from keyword(*arguments) or ()

            return check

        base: Any = Draft202012Validator
        validator = extend(base, {name: counted(f) for name, f in base.VALIDATORS.items()})
        try:
            # An empty registry, so that no reference is fetched.
            error = next(validator(self._schema, registry=Registry()).iter_errors(value), None)
        except RecursionError:
            return "the schema is too complex to be checked"
        except Unresolvable as unknown:
            return f"the schema refers to {str(unknown.ref)[:100]!r}, which it does not define"
        except Exception as error:  # such as float overflow: a caller's schema must not stop serving
            return f"the schema cannot be checked ({type(error).__name__})"
        return None if error is None else f"{error.json_path}: {error.message[:200]}"


def _unchecked(value: object) -> Iterator[str]:
    """Yield the refused keywords in a schema. A property with such a name has a schema as its value, not a text."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if name in UNCHECKED and (isinstance(inner, str) or name not in ("pattern", "$id", "$dynamicRef")):
                yield name
            yield from _unchecked(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _unchecked(inner)


@dataclass(frozen=True)
class Wanted:
    """The form of a text. tools: schemas of the caller's tools. required: if not empty, the text must call one of these
    tools. several: whether a text may have several calls. json: the text must be a JSON object, or match `schema`.
    """

    tools: tuple[Mapping[str, Any], ...] = ()
    required: tuple[str, ...] = ()
    several: bool = True
    json: bool = False
    schema: JsonSchema | None = None

    def calls(self, read: ToolCall) -> tuple[Call, ...]:
        """Return the text's calls of known tools, with new ids."""
        names = {tool["function"]["name"] for tool in self.tools}
        found = [call for call in (read, *read.further) if call.name in names]
        # Mistral's templates only accept ids of nine letters and digits.
        calls = tuple(Call(str(call.name), dict(call.arguments), secrets.token_hex(5)[:9]) for call in found)
        return calls if self.several else calls[:1]

    def problem(self, text: str, calls: Sequence[Call]) -> str | None:
        """Return the reason why a text does not have the form that the caller wants; None if it does."""
        if self.required and not {call.name for call in calls} & {*self.required}:
            return f"it does not call {' or '.join(self.required)}"
        if calls or not self.json:
            return None
        try:
            value = DECODER.decode(text)
        except RecursionError:
            return "it is nested too deeply"
        except ValueError as error:
            return f"it is not JSON ({error})"
        if self.schema is not None:
            return self.schema.problem(value)
        return None if isinstance(value, dict) else "it is not a JSON object"
