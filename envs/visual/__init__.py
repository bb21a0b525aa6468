"""Looking at pictures and short videos with tools that work on the pixels.

`env` is the environment; `operations` the tools' work; `scenes`, `questions` and `render` make its tasks; `routes`
shows ways through them, right and wrong; `own_images` reads a user's pictures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .env import VisualEnv as VisualEnv


def __getattr__(name: str) -> Any:
    if name == "VisualEnv":
        from .env import VisualEnv

        return VisualEnv
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
