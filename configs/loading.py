"""From a YAML file, a preset's name and `--set` options to a checked `RunConfig`, or to all that is wrong with them."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .checks import check_paths, check_relations
from .errors import ConfigError, Problem
from .expectations import field_at
from .explain import checked
from .schema import RunConfig
from .yaml_source import Source, parse_value, read_yaml

SHORT = {"training.lr_scheduler": "training.trl.lr_scheduler_type"}
"""Settings with a short name in `--set`."""
_TEMPLATE = re.compile(r"\{[A-Za-z_]\w*\}")
_PLAIN = re.compile(r"\s*[^\s\"'|>&!*]")
"""The beginning of a text without quotes."""


def apply_overrides(source: Source, overrides: Sequence[str]) -> None:
    """Write each `key=value` into `source`. Raises `ConfigError` with all that cannot be read."""
    problems: list[Problem] = []
    for text in overrides:
        place = f"--set {text}"
        key, equals, value_text = text.partition("=")
        parts = tuple(SHORT.get(key.strip(), key.strip()).split("."))
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
    """Read the value as YAML. For a key that takes text, a template such as `{question} Be brief.` is text, and text
    without quotes keeps its line breaks and all after a `#`.

    Raises ValueError for unreadable values.
    """
    field = field_at(RunConfig, parts)
    takes_text = field is not None and field.annotation in (str, str | None)
    if takes_text and _TEMPLATE.match(text):
        return text
    value = parse_value(text)
    cut = isinstance(value, str) or text.lstrip().startswith("#")
    return text.strip() if takes_text and cut and _PLAIN.match(text) else value


def set_value(source: Source, parts: tuple[str, ...], value: object, place: str) -> Problem | None:
    """Write `value`, given at `place`, to the key `parts` of `source`. Returns the obstacle, if any."""
    node = source.data
    for i, part in enumerate(parts[:-1], start=1):
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            origin = source.place(parts[:i])
            message = f"`{'.'.join(parts[:i])}` holds {child!r} (from {origin}), so nothing can be set inside it"
            return Problem(".".join(parts), message, f"set `{'.'.join(parts[:i])}` itself", place)
        source.places.setdefault(parts[:i], place)
        node = child
    node[parts[-1]] = value
    for known in [p for p in source.places if p[: len(parts)] == parts]:
        del source.places[known]
    source.places[parts] = place
    return None


HERE = Path(__file__).parent
DEFAULT_PATH = HERE / "training_params.yaml"
"""Every key with its default and meaning. Loading it gives exactly `RunConfig()`."""


def presets() -> dict[str, Path]:
    """Return the presets of the package, by name."""
    return {path.stem: path for path in sorted((HERE / "presets").glob("*.yaml"))}


def resolve(source: str | Path) -> Path:
    """Return the file of a configuration: a path, or the name of a preset."""
    path = Path(os.path.expanduser(source))
    if path.is_file():
        return path
    known = presets()
    if (name := str(source).removesuffix(".yaml")) in known:
        return known[name]
    if path.is_dir():
        raise ConfigError(
            [Problem("", "this is a folder, not a configuration file", "name the YAML file", str(source))]
        )
    near = difflib.get_close_matches(str(source), [*known, *(str(p) for p in Path().glob("*.yaml"))], n=1)
    right = f"did you mean {near[0]}?" if near else f"give the path of a YAML file, or a preset: {', '.join(known)}"
    raise ConfigError([Problem("", "there is no such file or preset", right, str(source))])


def load_config(source: str | Path | None = None, overrides: Sequence[str] = (), *, paths: bool = False) -> RunConfig:
    """Load the configuration of a run: the schema's defaults, overridden by the file and by the `--set` options.

    source: a YAML file or a preset's name (None: the defaults). overrides: `key=value` texts, later ones win.
    paths: also refuse files that are named but do not exist. Raises `ConfigError` with everything that is wrong.
    """
    return validate(read_source(source, overrides), paths=paths)


def read_source(
    source: str | Path | None, overrides: Sequence[str] = (), options: Mapping[str, tuple[str, object]] | None = None
) -> Source:
    """Read file and options as plain data, without checks. Raises `ConfigError`.

    options: by dotted key, the values that have an option of their own on the command line, each after the name of that
    option. `--set` options win over them.
    """
    loaded = Source() if source is None else read_yaml(resolve(source))
    problems = [set_value(loaded, tuple(key.split(".")), value, name) for key, (name, value) in (options or {}).items()]
    if wrong := [problem for problem in problems if problem is not None]:
        raise ConfigError(wrong)
    apply_overrides(loaded, overrides)
    return loaded


def validate(loaded: Source, *, paths: bool = False) -> RunConfig:
    """Check plain data as a `RunConfig`. Strict: `"3"` is not a number and `1` is not true, but `1` is a number."""
    config = checked(RunConfig, loaded)
    problems = list(check_relations(config))
    if paths:
        problems += check_paths(config)
    if problems:
        raise ConfigError([replace(p, place=loaded.place(tuple(p.key.split(".")))) for p in problems])
    return config
