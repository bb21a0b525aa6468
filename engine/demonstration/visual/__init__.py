"""Answer questions about pictures and short videos with tools that work on the pixels.

`env` is the environment and `operations` the tools. `scenes`, `questions` and `render` generate its tasks. `routes`
demonstrates right and wrong solutions. `own_images` reads a user's pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .env import VisualEnv as VisualEnv


def __getattr__(name: str) -> object:
    """Load the environment on first use, so that importing this package is cheap."""
    if name != "VisualEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .env import VisualEnv

    return VisualEnv
