"""The configuration of a run: schema, loading, overrides and the presets in YAML. Knows no other room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # pydantic is loaded when a configuration is
    from .loading import Option, load_config, presets
    from .problems import ConfigError, Problem
    from .schema import RunConfig
    from .writing import to_yaml

__all__ = ["ConfigError", "Option", "Problem", "RunConfig", "load_config", "presets", "to_yaml"]

_HOMES = {
    "ConfigError": "problems",
    "Option": "loading",
    "Problem": "problems",
    "RunConfig": "schema",
    "load_config": "loading",
    "presets": "loading",
    "to_yaml": "writing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
