"""A `RunConfig` as YAML: plain, as stored with a run, or with a comment above every key."""

from __future__ import annotations

import textwrap
from functools import partial

import yaml
from pydantic import BaseModel

from .expectations import describe, section_of
from .schema import RunConfig
from .yaml_source import CoreDumper

WIDTH = 110


def to_yaml(config: RunConfig, *, comments: bool = False) -> str:
    """All keys with their values. Reading it back with `load_config` gives an equal configuration."""
    lines: list[str] = []
    _write(config, lines, 0, comments)
    return "\n".join(lines) + "\n"


def _write(section: BaseModel, lines: list[str], depth: int, comments: bool) -> None:
    pad = "  " * depth
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        inner = section_of(field.annotation)
        if comments:
            if depth == 0 and lines:
                lines.append("")
            text = field.description or (inner.__doc__ if inner else None) or ""
            if inner is None:
                text = _comment(" ".join(text.split()), describe(field))
            else:
                text = " ".join(text.split("\n\n")[0].split())
            lines += textwrap.wrap(text, WIDTH, initial_indent=f"{pad}# ", subsequent_indent=f"{pad}# ")
        if isinstance(value, BaseModel):
            lines.append(f"{pad}{name}:")
            _write(value, lines, depth + 1, comments)
        else:
            lines += [pad + line for line in _entry(name, section.model_dump(mode="json")[name])]


def _comment(description: str, accepts: str) -> str:
    """Return the field's docstring, and the accepted values unless they are obvious."""
    if not description:
        return accepts[:1].upper() + accepts[1:] + "."
    plain = accepts in ("text", "a number", "true or false", "keys and values")
    return description if plain else f"{description} ({accepts})"


def _entry(name: str, value: object) -> list[str]:
    """Return the lines of a key. Lists and empty mappings stay on one line."""
    dumped = partial(yaml.dump, Dumper=CoreDumper, sort_keys=False, allow_unicode=True, width=1000)
    if isinstance(value, list) or value == {}:
        return [f"{name}: {dumped(value, default_flow_style=True).strip()}"]
    return dumped({name: value}, default_flow_style=False).rstrip("\n").split("\n")


if __name__ == "__main__":
    from .loading import DEFAULT_PATH

    head, end, _ = DEFAULT_PATH.read_text(encoding="utf-8").partition("\n\n")
    DEFAULT_PATH.write_text(head + end + to_yaml(RunConfig(), comments=True), encoding="utf-8")
