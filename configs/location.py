"""The user's folders for settings, caches and data. Loads nothing, because most people have no settings."""

from __future__ import annotations

import os
from pathlib import Path


def user_folder(variable: str, default: str) -> Path:
    """Return our folder in `$variable` (such as `XDG_CACHE_HOME`), else in `~/<default>`. It need not exist.

    A relative `$variable` does not count, as the XDG specification requires. A user without a home, as in a container,
    has the root folder.
    """
    given, home = os.environ.get(variable, ""), os.path.expanduser("~")
    return Path(given if os.path.isabs(given) else os.path.join("/" if home == "~" else home, default)) / "grpo-tui"


def personal_path() -> Path:
    """Return `$XDG_CONFIG_HOME/grpo-tui/config.yaml`, by default under `~/.config`. It need not exist."""
    return user_folder("XDG_CONFIG_HOME", ".config") / "config.yaml"
