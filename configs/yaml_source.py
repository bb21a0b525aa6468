"""Read YAML with the position of every key, so that an error can name file and line.

Scalars follow the YAML 1.2 core schema rather than PyYAML's 1.1: `off` and `yes` are strings (`wandb: off` works
unquoted), `1e-3` is a number, `1:30` is a string and a date stays a string.
"""

from __future__ import annotations

import copy
import functools
import pathlib
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from .errors import ConfigError, Problem

Path = tuple[str | int, ...]


_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)


class _CoreLoader(yaml.SafeLoader):
    """`yaml.SafeLoader` with the implicit types of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012


_CoreLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"
)
_CoreLoader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_CoreLoader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][0-9]*)$"), "-+0123456789")
_CoreLoader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, "-+.0123456789")


class CoreDumper(yaml.SafeDumper):
    """`yaml.SafeDumper` that also quotes text which only YAML 1.2 would take for a number, such as `1e3`."""

    yaml_implicit_resolvers = {k: list(v) for k, v in yaml.SafeDumper.yaml_implicit_resolvers.items()}  # noqa: RUF012


def _text(dumper: CoreDumper, value: str) -> yaml.ScalarNode:
    """Escape unprintable text in double quotes (also Unicode's line ends, which folding would change)."""
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=None if value.isprintable() else '"')


CoreDumper.add_representer(str, _text)
CoreDumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


@dataclass
class Source:
    """Plain data, and where each key of it was written (`"my.yaml:12"`, or the `--set` option)."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[Path, str] = field(default_factory=dict)
    default_place: str = ""

    def place(self, path: Path) -> str:
        """Return where `path` was written, or the nearest key above it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return self.default_place


def parse_yaml(text: str, name: str) -> Source:
    """Read a YAML mapping. Raises `ConfigError` with file and line for any other text."""
    return copy.deepcopy(_parsed(text, name))


@functools.lru_cache(maxsize=8)
def _parsed(text: str, name: str) -> Source:
    """Parse a text once: a process reads the configuration of its run several times, at 25 ms each."""
    try:
        loader = _CoreLoader(text)
        node = loader.get_single_node()
        source = Source(default_place=name)
        if node is None:
            return source
        if not isinstance(node, yaml.MappingNode):
            message = "the file must hold keys and values, not a single value or a list"
            raise ConfigError([Problem("", message, "write lines such as `seed: 1`", f"{name}:1")])
        walker = _Walker(loader, name, source)
        source.data = walker.mapping(node, ())
        if walker.problems:
            raise ConfigError(walker.problems)
        return source
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{name}:{mark.line + 1}" if mark is not None else name
        reason = f"this is not valid YAML: {_reason(error)}"
        raise ConfigError([Problem("", reason, "check indentation, quotes and colons there", place)]) from None


def read_yaml(path: pathlib.Path) -> Source:
    """Read a file with a YAML mapping. Raises `ConfigError` with the name of the file."""
    name = str(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError([Problem("", f"cannot be read: {reason}", "give a YAML file", name)]) from None
    return parse_yaml(text, name)


def parse_value(text: str) -> object:
    """One YAML value, as after the `=` of `--set`. Raises `ValueError` with the reason."""
    try:
        loader = _CoreLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        walker = _Walker(loader, "", Source())
        value = walker.value(node, ())
        if walker.problems:
            raise ValueError(walker.problems[0].message)
        return value
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(_reason(error)) from None


class _Walker:
    """Turns nodes into plain data and notes the line of each key."""

    def __init__(self, loader: _CoreLoader, name: str, source: Source) -> None:
        self.loader, self.name, self.source = loader, name, source
        self.problems: list[Problem] = []
        self._open: set[int] = set()
        self._count = 0

    def _at(self, node: yaml.Node) -> str:
        return f"{self.name}:{node.start_mark.line + 1}"

    def _fault(self, node: yaml.Node, path: Path, message: str, right: str) -> None:
        self.problems.append(Problem(".".join(map(str, path)), message, right, self._at(node)))

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self.loader.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                self._fault(key_node, path, f"the key {key!r} is not text", "write keys as plain words")
                continue
            place = (*path, key)
            if key in data:
                first = self.source.places[place].rpartition(":")[2]
                self._fault(key_node, place, f"written twice, first on line {first}", "keep one of the two")
                continue
            self.source.places[place] = self._at(key_node)
            data[key] = self.value(value_node, place)
        return data

    def value(self, node: yaml.Node, path: Path) -> Any:
        self._count += 1
        if id(node) in self._open or self._count > 100_000:  # aliases may repeat a node
            raise yaml.MarkedYAMLError(problem="an alias that contains itself", problem_mark=node.start_mark)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self.mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                items = []
                for i, child in enumerate(node.value):
                    self.source.places[(*path, i)] = self._at(child)
                    items.append(self.value(child, (*path, i)))
                return items
            value = self.loader.construct_object(node, deep=True)
            if not isinstance(value, (str, int, float, type(None))):
                self._fault(
                    node, path, f"{node.tag} makes {type(value).__name__}, which no key accepts", "leave it out"
                )
            return value
        finally:
            self._open.discard(id(node))


def _reason(error: Exception) -> str:
    return getattr(error, "problem", None) or str(error).splitlines()[0]
