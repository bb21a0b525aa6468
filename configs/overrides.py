"""`--set a.b=c`: one value of the configuration, from the command line. The value is YAML."""

from __future__ import annotations

from collections.abc import Sequence

from .problems import ConfigError, Problem
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
            value = parse_value(value_text)
        except ValueError as error:
            right = "quote it for YAML: `--set 'name=\"a: b\"'`"
            problems.append(Problem(key, f"the value cannot be read as YAML ({error})", right, place))
            continue
        node = source.data
        for i, part in enumerate(parts[:-1], start=1):
            child = node.setdefault(part, {})
            if not isinstance(child, dict):
                at = source.place(parts[:i])
                message = f"`{'.'.join(parts[:i])}` holds {child!r} (from {at}), so nothing can be set inside it"
                problems.append(Problem(key, message, f"set `{'.'.join(parts[:i])}` itself", place))
                break
            source.places.setdefault(parts[:i], place)
            node = child
        else:
            node[parts[-1]] = value
            for known in [p for p in source.places if p[: len(parts)] == parts]:
                del source.places[known]
            source.places[parts] = place
    if problems:
        raise ConfigError(problems)
