"""The user's settings for all runs: `$XDG_CONFIG_HOME/grpo-tui/config.yaml` (default `~/.config`).

    importers: [~/formats/mine.py]        # custom formats, tried before all others (docs/importing.md)
    alerts:                               # where to send alerts of active runs (docs/recording.md)
      command: [notify-send, grpo-tui]    # reads the alert as JSON from standard input
      webhook: https://hooks.example/abc  # receives it by POST; chat programs show `text`

The file is optional.
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
    """Where to send alerts of active runs. By default, none are sent."""

    command: list[str] = Field(default_factory=list)
    """Program and arguments. It runs without a shell and reads the alert as JSON from standard input."""
    webhook: str = ""
    """An http(s) URL that receives the same JSON by POST."""
    severities: list[Literal["failure", "warning", "hint"]] = Field(default_factory=lambda: ["failure", "warning"])
    """The severities to send."""
    every_seconds: float = Field(default=60.0, ge=1)
    """Minimum number of seconds between two messages. Alerts in between are combined into one message."""

    @field_validator("webhook")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value and not value.startswith(("https://", "http://")):
            raise ValueError("a webhook is an address that begins with https:// or http://")
        return value


class PersonalConfig(Section):
    """The user's settings."""

    importers: list[str] = Field(default_factory=list)
    """Python files with custom formats. Relative paths are relative to this file."""
    alerts: AlertsConfig = Field(default_factory=AlertsConfig)
    """Where to send alerts of runs."""


def load_personal() -> PersonalConfig:
    """Load the user's settings. Raises `ConfigError` with all errors in the file."""
    path = personal_path()
    config = checked(PersonalConfig, read_yaml(path))
    importers = [str((path.parent / Path(p).expanduser()).absolute()) for p in config.importers]
    return config.model_copy(update={"importers": importers})
