"""A person's own settings, `$XDG_CONFIG_HOME/grpo-tui/config.yaml` (else `~/.config`): whichever run they look at.

    importers: [~/formats/mine.py]        # formats of one's own, tried before all others (docs/importing.md)
    alerts:                               # where alerts of running runs are sent (docs/recording.md)
      command: [notify-send, grpo-tui]    # gets the alert as JSON on standard input
      webhook: https://hooks.example/abc  # gets it by POST; `text` is what chat programs show

Nobody needs the file; nothing is loaded for it where there is none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from .explain import checked
from .location import personal_path
from .sections.base import Section
from .yaml_source import read_yaml


class AlertsConfig(Section):
    """Where alerts of running runs are sent. Nowhere by default."""

    command: list[str] = Field(default_factory=list)
    """Program and arguments; run without a shell, with the alert as JSON on standard input."""
    webhook: str = ""
    """An http(s) address that gets the same JSON by POST."""
    severities: list[Literal["failure", "warning", "hint"]] = Field(default_factory=lambda: ["failure", "warning"])
    """Which are sent."""
    every_seconds: float = Field(default=60.0, ge=1)
    """At most one message in so long; what comes sooner is told together."""

    @field_validator("webhook")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value and not value.startswith(("https://", "http://")):
            raise ValueError("a webhook is an address that begins with https:// or http://")
        return value


class PersonalConfig(Section):
    """The personal settings."""

    importers: list[str] = Field(default_factory=list)
    """Python files with formats of one's own; relative paths are relative to this file."""
    alerts: AlertsConfig = Field(default_factory=AlertsConfig)
    """Where alerts of runs are sent."""


def load_personal() -> PersonalConfig:
    """Load the person's settings. Raises `ConfigError` with everything that is wrong in the file."""
    path = personal_path()
    config = checked(PersonalConfig, read_yaml(path))
    importers = [str((path.parent / Path(p).expanduser()).absolute()) for p in config.importers]
    return config.model_copy(update={"importers": importers})
