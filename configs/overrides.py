"""`--set a.b=c`: one value of the configuration, from the command line. The value is YAML."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .expectations import field_at
from .problems import ConfigError, Problem
from .schema import RunConfig
from .yaml_source import Source, parse_value

_TEMPLATE = re.compile(r"\{[A-Za-z_]\w*\}")


def apply_overrides(source: Source, overrides: Sequence[str]) -> None:
    """Write each `key=value` into `source`. Raises `ConfigError` with all that cannot be read."""
    problems: list[Problem] = []
    for text in overrides:
        place = f"--set {text}"
        key, equals, value_text = text.partition("=")
        parts = tuple(key.strip().split("."))
        if not equals or not all(parts):
            problems.append(Problem("", "this is not `key=value`", "write `--set training.max_steps=50`", place))
            continue
        try:
            value = _value(parts, value_text)
        except ValueError as error:
            right = "quote it for YAML: `--set 'name=\"a: b\"'`"
            problems.append(Problem(key, f"the value cannot be read as YAML ({error})", right, place))
            continue
        problem = set_value(source, parts, value, place)
        if problem is not None:
            problems.append(problem)
    if problems:
        raise ConfigError(problems)


def _value(parts: tuple[str, ...], text: str) -> object:
    """Read the value as YAML. A template such as `{question} Be brief.` is text, for a key that takes text.

    Raises ValueError for unreadable values.
    """
    field = field_at(RunConfig, parts)
    if field is not None and field.annotation in (str, str | None) and _TEMPLATE.match(text):
        return text
    return parse_value(text)


def set_value(source: Source, parts: tuple[str, ...], value: object, place: str) -> Problem | None:
    """Write `value`, given at `place`, to the key `parts` of `source`. Returns the obstacle, if any."""
    node = source.data
    for i, part in enumerate(parts[:-1], start=1):
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            at = source.place(parts[:i])
            message = f"`{'.'.join(parts[:i])}` holds {child!r} (from {at}), so nothing can be set inside it"
            return Problem(".".join(parts), message, f"set `{'.'.join(parts[:i])}` itself", place)
        source.places.setdefault(parts[:i], place)
        node = child
    node[parts[-1]] = value
    for known in [p for p in source.places if p[: len(parts)] == parts]:
        del source.places[known]
    source.places[parts] = place
    return None
