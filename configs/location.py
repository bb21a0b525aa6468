"""Where a person's own settings lie. Loads nothing: most people have none."""

from __future__ import annotations

import os
from pathlib import Path


def personal_path() -> Path:
    """`$XDG_CONFIG_HOME/grpo-tui/config.yaml`, else under `~/.config`; it need not exist."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "grpo-tui" / "config.yaml"
