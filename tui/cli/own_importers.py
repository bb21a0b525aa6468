"""Importers that a person uses for every dump."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path


def own_importers() -> Sequence[str]:
    """Return the importers of the personal settings. Nothing is loaded if there are none."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    if not Path(home, "grpo-tui", "config.yaml").is_file():
        return ()
    from ...configs.personal import load_personal
    from ...configs.problems import ConfigError
    from ..text import literal
    from .common import ExitCode, fail

    try:
        return load_personal().importers
    except ConfigError as error:
        fail(literal(str(error)), ExitCode.USAGE)
