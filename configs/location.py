"""The path of a person's own settings. Loads nothing, because most people have none."""

from __future__ import annotations

import os
from pathlib import Path


def personal_path() -> Path:
    """Return `$XDG_CONFIG_HOME/grpo-tui/config.yaml`, by default under `~/.config`. It need not exist."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "grpo-tui" / "config.yaml"
