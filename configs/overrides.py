"""`--set a.b=c`: one value of the configuration, from the command line. The value is YAML."""

from __future__ import annotations

from collections.abc import Sequence

from .expectations import field_at
from .problems import ConfigError, Problem
from .schema import RunConfig
from .yaml_source import Source, parse_value


def apply_overrides(source: Source, overrides: Sequence[str]) -> None:
    """Write each `key=value` into `source`; raises `ConfigError` with all that cannot be read."""
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
    """The value as YAML; for a key that takes text, what is not a YAML scalar is that text: `{question} Be brief.`

    Raises ValueError for what is neither.
    """
    field = field_at(RunConfig, parts)
    takes_text = field is not None and field.annotation in (str, str | None)
    try:
        value = parse_value(text)
    except ValueError:
        if takes_text:
            return text
        raise
    return text if takes_text and isinstance(value, (dict, list)) else value


def set_value(source: Source, parts: tuple[str, ...], value: object, place: str) -> Problem | None:
    """Write `value`, given at `place`, to the key `parts` of `source`; what is in the way when it cannot be written."""
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
