"""Answer questions about pictures and short videos with tools that work on the pixels.

`env` is the environment and `operations` the tools. `scenes`, `questions` and `render` make its tasks. `routes`
shows ways through them, right and wrong. `own_images` reads a user's pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .env import VisualEnv as VisualEnv


def __getattr__(name: str) -> object:
    """Load the environment where it is used: importing this package costs nothing."""
    if name != "VisualEnv":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .env import VisualEnv

    return VisualEnv
