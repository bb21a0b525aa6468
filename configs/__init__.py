"""The configuration of a run: schema, loading, overrides and the presets in YAML. Knows no other room."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .lazy import loaded_when_used

if TYPE_CHECKING:  # pydantic is loaded when a configuration is
    from .loading import Option, choices, load_config, presets
    from .problems import ConfigError, Problem
    from .schema import RunConfig
    from .writing import to_yaml

__all__ = ["ConfigError", "Option", "Problem", "RunConfig", "choices", "load_config", "presets", "to_yaml"]

__getattr__ = loaded_when_used(
    __name__,
    {
        "loading": ("Option", "choices", "load_config", "presets"),
        "problems": ("ConfigError", "Problem"),
        "schema": ("RunConfig",),
        "writing": ("to_yaml",),
    },
)
