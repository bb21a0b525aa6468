"""A person's own settings, `$XDG_CONFIG_HOME/grpo-tui/config.yaml` (else `~/.config`): whichever run they look at.

    importers: [~/formats/mine.py]        # formats of one's own, tried before all others (docs/importing.md)

Nobody needs the file; nothing is loaded for it where there is none.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from pydantic import Field, ValidationError

from .explain import explain
from .problems import ConfigError, Problem
from .sections.base import Section
from .yaml_source import parse_yaml


class PersonalConfig(Section):
    """The whole file."""

    importers: list[str] = Field(default_factory=list)
    """Python files with formats of one's own; relative paths are relative to this file."""


def load_personal() -> PersonalConfig:
    """The person's settings. Raises `ConfigError` with everything that is wrong in the file."""
    path = personal_path()
    try:
        loaded = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError([Problem("", f"cannot be read: {reason}", "", str(path))]) from None
    try:
        config = PersonalConfig.model_validate_json(json.dumps(loaded.data), strict=True)
    except ValidationError as error:
        raise ConfigError(explain(error.errors(include_url=False), PersonalConfig, loaded)) from None
    importers = [str((path.parent / Path(p).expanduser()).absolute()) for p in config.importers]
    return config.model_copy(update={"importers": importers})


def personal_path() -> Path:
    """Where the file lies, or would."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "grpo-tui" / "config.yaml"
